import { useMemo, useState } from "preact/hooks";
import { api } from "../../api";
import { Badge, Change, Section } from "../../components/basic";
import type { Mark } from "../../components/chart";
import { Dialog } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { toast } from "../../components/toast";
import { exact } from "../../format";
import { nodeNow } from "../../clock";
import { type Loaded, useData } from "../../hooks";
import { type Range, atOf } from "../../range";
import { mayChange } from "../../session";
import { localInput } from "../trouble/notices";
import { texts } from "../../texts/overview";
import { type AlarmRow, type AnnotationRow, type AuditRow, type Happening, type Kind, MARKED, type RefusedRow, happenings } from "./happened";

const EVERY = 15_000;
/** Rows of the audit that are asked for. */
const CHANGES = 500;

/** What happened in the range of the charts. */
export function useHappenings({ span, from, to }: Range): Loaded<Happening[]> {
  const admin = mayChange.value;
  return useData(
    async (signal) => {
      const end = to ?? nodeNow() + 60_000;
      const start = from ?? end - 60_000 - span;
      const when = { _gte_at: Math.floor(start / 1_000), _lte_at: Math.ceil(end / 1_000), _limit: CHANGES };
      const [changes, alarms, refused, annotations] = await Promise.all([
        admin ? api.get<AuditRow[]>("/audit", when, signal) : [],
        api.get<{ node: string; alarms: AlarmRow[] }[]>("/alarms", {}, signal),
        api.get<RefusedRow[]>("/refused_clients", {}, signal),
        api.get<AnnotationRow[]>("/annotations", { ...when, _limit: CHANGES }, signal),
      ]);
      return happenings(changes, alarms, refused, start, end, annotations);
    },
    [span, from, to, admin],
    to === undefined ? EVERY : 0,
  );
}

/** As marks of charts; the same marks for as long as nothing else happened. */
export function useMarks(found: Happening[] | undefined): Mark[] {
  const key = (found ?? []).flatMap(({ at, kind }) => (MARKED[kind] === undefined ? [] : [`${at} ${MARKED[kind]}`])).join("|");
  return useMemo(
    () =>
      key.split("|").flatMap((one) => {
        const [at, colour] = one.split(" ");
        return at && colour ? [{ at: Number(at), colour }] : [];
      }),
    [key],
  );
}

/** A moment that the charts mark, such as a deployment. */
function Annotate({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const words = texts.annotate;
  const fields: Field[] = [
    { name: "text", type: "text", title: words.text, description: words.textAbout, required: true },
    {
      name: "time",
      type: "text",
      title: words.time,
      required: true,
      control: ({ id, value, onValue, invalid }) => (
        <input id={id} type="datetime-local" value={value} aria-invalid={invalid || undefined} aria-required onInput={(event) => onValue(event.currentTarget.value)} />
      ),
    },
  ];
  const submit = async ({ text, time }: Values): Promise<void> => {
    const typed = new Date(String(time)).getTime();
    // The field is exact to a minute: one that was not changed means now.
    await api.post("/annotations", String(time) === opened ? { text } : { text, time: Math.floor(typed / 1_000) });
    toast(words.added);
    onDone();
  };
  const [opened] = useState(() => localInput(nodeNow()));
  return (
    <Dialog title={words.title} onClose={onClose}>
      <Form fields={fields} values={{ time: opened }} submit={words.button} onSubmit={submit} onCancel={onClose} />
    </Dialog>
  );
}

const TONES: Record<Kind, "bad" | "warn" | "good" | "plain"> = { annotation: "good", change: "plain", alarm: "bad", over: "good", refused: "warn" };
const SHOWN = 8;

export function HappenedList({ found, span, title }: { found: Loaded<Happening[]>; span: number; title: string }) {
  const [all, setAll] = useState(false);
  const [adding, setAdding] = useState(false);
  if (found.error) return <ErrorPanel error={found.error} retry={found.reload} />;
  const rows = found.data ?? [];
  const shown = all ? rows : rows.slice(0, SHOWN);
  const several = new Set(rows.filter((one) => one.node !== "").map((one) => one.node)).size > 1;
  return (
    <Section title={title} actions={<Change onClick={() => setAdding(true)}>{texts.annotate.button}</Change>}>
      {adding && (
        <Annotate
          onClose={() => setAdding(false)}
          onDone={() => {
            setAdding(false);
            found.reload();
          }}
        />
      )}
      {found.data && rows.length === 0 && <p class="faint">{texts.happened.none}</p>}
      <ul class="happened">
        {shown.map((one) => (
          <li key={`${one.at} ${one.kind} ${one.what} ${one.detail} ${one.node}`}>
            <time dateTime={new Date(one.at).toISOString()} title={exact(one.at)}>
              {atOf(span)(one.at)}
            </time>
            <Badge tone={TONES[one.kind]}>{texts.happened.kinds[one.kind]}</Badge>
            <span>
              {one.href === undefined ? (
                <Name text={one.what} />
              ) : (
                <a href={one.href}>
                  <Name text={one.what} />
                </a>
              )}{" "}
              <Name text={one.detail} />
              {one.who !== "" && (
                <span class="faint">
                  {" · "}
                  <Name text={one.who} />
                </span>
              )}
              {several && one.node !== "" && (
                <span class="faint">
                  {" · "}
                  <Name text={one.node} />
                </span>
              )}
            </span>
          </li>
        ))}
      </ul>
      {rows.length > SHOWN && (
        <button type="button" class="link" onClick={() => setAll(!all)}>
          {all ? texts.happened.fewer : texts.happened.all(rows.length)}
        </button>
      )}
    </Section>
  );
}
