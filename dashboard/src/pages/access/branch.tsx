import { useEffect, useState } from "preact/hooks";
import { Badge } from "../../components/basic";
import { Dialog } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { toast } from "../../components/toast";
import { isAbort } from "../../api";
import { texts } from "../../texts/access";
import { type Found, NotUndone, type Step, carryOut, find, planOf } from "./branch_plan";
import type { Shown } from "./secret";
import type { UserKind } from "./user_requests";
import { credentials } from "./users";

const words = texts.branch;
/** Milliseconds after the last letter of a name until the node is asked about it. */
const REST = 250;

/** `exists`: whether there is such a user; undefined: nobody knows yet. */
function fieldsOf(kind: UserKind, named: boolean, exists: boolean | undefined): Field[] {
  const creates = (values: Values): boolean => exists === false && values["create"] !== false;
  return [
    ...(named ? [] : [{ name: "name", type: "text", title: texts.users.name[kind] ?? kind, required: true } as const]),
    { name: "topic", type: "text", title: words.topic, description: words.topicAbout, placeholder: "devices/%u/#", required: true },
    {
      name: "action",
      type: "choice",
      title: words.action,
      required: true,
      otherwise: "pubsub",
      options: ["pubsub", "pub", "sub"].map((value) => ({ value, title: texts.rules.actions[value] ?? value })),
    },
    { name: "only", type: "switch", title: words.only, description: words.onlyAbout, otherwise: true },
    { name: "create", type: "switch", title: words.create, description: words.createAbout, otherwise: true, when: () => exists === false },
    { name: "generate", type: "switch", title: texts.users.generate, description: texts.users.generateAbout, otherwise: true, when: creates },
    { name: "password", type: "password", title: texts.users.password, required: true, when: (values) => creates(values) && values["generate"] !== true },
  ];
}

/** A user and the rules for one branch of topics, made at once. `name`: of the user whose page it is. */
export function Branch(props: { kind: UserKind; name?: string; onClose: () => void; onSecret: (shown: Shown) => void }) {
  const { kind } = props;
  const [values, setValues] = useState<Values>({});
  const [found, setFound] = useState<Found | undefined>(undefined);
  const [failure, setFailure] = useState<Error | undefined>(undefined);
  const name = props.name ?? String(values["name"] ?? "");
  useEffect(() => {
    setFound(undefined);
    setFailure(undefined);
    if (name === "") return;
    const controller = new AbortController();
    const timer = setTimeout(() => {
      find(kind, name, controller.signal).then(setFound, (thrown: unknown) => {
        if (!isAbort(thrown)) setFailure(thrown instanceof Error ? thrown : new Error(String(thrown)));
      });
    }, REST);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [kind, name]);

  const topic = String(values["topic"] ?? "");
  const steps = found && topic !== "" ? planOf(found.lines, { topic, action: String(values["action"]), only: values["only"] === true }) : undefined;
  const creates = found !== undefined && !found.exists && values["create"] !== false;
  const submit = async (given: Values): Promise<void> => {
    // Only what was shown is done.
    if (!found || !steps) throw new Error(words.wait);
    let secret: string | undefined;
    try {
      secret = await carryOut(kind, found, steps, creates ? credentials(given) : undefined);
    } catch (thrown) {
      if (thrown instanceof NotUndone) throw new Error(words.notUndone(thrown.why.message, thrown.undo.message));
      throw thrown;
    }
    props.onClose();
    if (secret === undefined) toast(words.done);
    else props.onSecret({ name, secret });
  };
  return (
    <Dialog title={words.title} onClose={props.onClose} wide>
      <Form fields={fieldsOf(kind, props.name !== undefined, found?.exists)} submit={words.submit} onChange={setValues} onSubmit={submit} onCancel={props.onClose}>
        {failure && <ErrorPanel error={failure} />}
        {steps && found && <Preview kind={kind} found={found} steps={steps} creates={creates} generates={values["generate"] === true} />}
      </Form>
    </Dialog>
  );
}

function Preview(props: { kind: UserKind; found: Found; steps: Step[]; creates: boolean; generates: boolean }) {
  const { kind, found, steps } = props;
  return (
    <section class="panel branch-preview" aria-label={words.preview} aria-live="polite">
      <h3>{words.preview}</h3>
      <p>
        {texts.users.name[kind]} <Name text={found.name} max={60} />: {props.creates ? <Badge tone="good">{words.isNew}</Badge> : found.exists ? words.exists : words.elsewhere}
        {props.creates && ` ${props.generates ? words.withSecret : words.withPassword}`}
      </p>
      {found.superuser && <p class="wrong">{words.superuser}</p>}
      <p>{words.rules}</p>
      <ol>
        {steps.map(({ rule, isNew }) => (
          <li key={`${rule.topic} ${rule.action} ${rule.access} ${rule.listener ?? ""}`}>
            <Badge tone={rule.access === "allow" ? "good" : "bad"}>{texts.rules.access[rule.access] ?? rule.access}</Badge> {texts.rules.actions[rule.action] ?? rule.action}{" "}
            <code>
              <Name text={rule.topic} />
            </code>{" "}
            {rule.listener && <span class="faint">{rule.listener}</span>} {isNew && <Badge>{words.isNew}</Badge>}
          </li>
        ))}
      </ol>
    </section>
  );
}
