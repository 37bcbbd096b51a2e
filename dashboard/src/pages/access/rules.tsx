import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { Badge, Change, Empty, Search } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { toast } from "../../components/toast";
import { useQuery, useTyped } from "../../hooks";
import { useKey } from "../../keys";
import { link } from "../../router";
import { texts } from "../../texts/access";

type Kind = "username" | "clientid" | "anonymous" | "all";

interface Rule {
  username?: string;
  clientid?: string;
  anonymous?: string;
  all?: string;
  topic: string;
  action: string;
  access: string;
  listener?: string;
}

const options = (words: Record<string, string>) => Object.entries(words).map(([value, title]) => ({ value, title }));

/** One subject each, without names in it. */
const isNameless = (kind: unknown): boolean => kind === "all" || kind === "anonymous";

function fieldsOf(kind: Kind): Field[] {
  const { fields } = texts.rules;
  return [
    { name: "kind", type: "choice", title: fields.kind, required: true, otherwise: kind, options: options(texts.rules.kinds) },
    { name: "name", type: "text", title: fields.name, required: true, when: (values) => !isNameless(values["kind"]) },
    { name: "topic", type: "text", title: fields.topic, description: fields.topicAbout, required: true },
    { name: "action", type: "choice", title: fields.action, required: true, otherwise: "pubsub", options: options(texts.rules.actions) },
    { name: "access", type: "choice", title: fields.access, required: true, otherwise: "allow", options: options(texts.rules.access) },
    { name: "listener", type: "text", title: fields.listener, description: fields.listenerAbout },
  ];
}

async function add(values: Values): Promise<void> {
  const { kind, name, topic, action, access, listener } = values;
  const subject = kind === "all" ? {} : { [String(kind)]: kind === "anonymous" ? true : name };
  await api.post("/acl", { ...subject, topic, action, access, ...(listener ? { listener } : {}) });
}

export function Rules() {
  const [asked, setKind] = useQuery("kind", "username");
  const kind: Kind = asked === "clientid" || asked === "anonymous" || asked === "all" ? asked : "username";
  const search = useTyped("search");
  const topicSearch = useTyped("topic");
  const [like] = useQuery("search");
  const [topic] = useQuery("topic");
  const [adding, setAdding] = useState(false);
  const [count, setCount] = useState(0);
  useKey("n", texts.rules.new, () => setAdding(true));
  const nameOf = (rule: Rule): string => (isNameless(kind) ? `$${kind}` : (rule[kind] ?? ""));
  const path = isNameless(kind) ? `/acl/$${kind}` : `/acl/${kind}`;

  const remove = async (rule: Rule): Promise<void> => {
    const of = isNameless(kind) ? path : `${path}/${part(nameOf(rule))}`;
    const done = await confirm({
      title: texts.rules.removeTitle,
      hits: [`${nameOf(rule)}: ${rule.topic}`],
      text: texts.rules.removeText,
      action: texts.common.remove,
      work: () => api.del(`${of}/topic/${part(rule.topic)}`),
    });
    if (done) toast(texts.rules.removed);
    setCount(count + 1);
  };
  const close = (): void => {
    setAdding(false);
    setCount(count + 1);
  };
  return (
    <>
      {adding && (
        <Dialog title={texts.rules.new} onClose={close}>
          <Form
            fields={fieldsOf(kind)}
            onCancel={close}
            onSubmit={async (values) => {
              await add(values);
              toast(texts.rules.added);
              close();
            }}
          />
        </Dialog>
      )}
      <p class="faint">
        {texts.rules.order} <a href={link(["topics", "who"])}>{texts.rules.who}</a>
      </p>
      <PagedTable<Rule>
        id={`rules-${kind}`}
        label={texts.tabs.rules}
        deps={[kind, like, topic, count]}
        load={(page, limit, signal) =>
          api.page<Rule>(path, { ...(isNameless(kind) ? {} : { [`_like_${kind}`]: like }), _like_topic: topic, _page: page, _limit: limit }, signal)
        }
        rowKey={(rule) => `${nameOf(rule)} ${rule.topic} ${rule.action} ${rule.access} ${rule.listener ?? ""}`}
        tools={
          <>
            {!isNameless(kind) && <Search label={texts.common.search} {...search} />}
            <input type="search" aria-label={texts.rules.topicSearch} placeholder={texts.rules.topicSearch} spellcheck={false} {...topicSearch} />
            <label>
              {texts.rules.about}{" "}
              <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
                {options(texts.rules.kinds).map(({ value, title }) => (
                  <option key={value} value={value}>
                    {title}
                  </option>
                ))}
              </select>
            </label>
            <Change kind="primary" onClick={() => setAdding(true)} title="n">
              {texts.rules.new}
            </Change>
          </>
        }
        columns={[
          { key: "subject", title: texts.rules.columns.subject, fixed: true, sort: nameOf, render: (rule) => <Name text={nameOf(rule)} /> },
          { key: "topic", title: texts.rules.columns.topic, fixed: true, sort: (rule) => rule.topic, render: (rule) => <Name text={rule.topic} /> },
          {
            key: "action",
            title: texts.rules.columns.action,
            sort: (rule) => rule.action,
            render: (rule) => texts.rules.actions[rule.action] ?? rule.action,
          },
          {
            key: "access",
            title: texts.rules.columns.access,
            sort: (rule) => rule.access,
            render: (rule) => <Badge tone={rule.access === "allow" ? "good" : "bad"}>{texts.rules.access[rule.access] ?? rule.access}</Badge>,
          },
          { key: "listener", title: texts.rules.columns.listener, sort: (rule) => rule.listener ?? "", render: (rule) => rule.listener ?? "" },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (rule) => (
              <Change kind="danger" onClick={() => void remove(rule)}>
                {texts.common.remove}
              </Change>
            ),
          },
        ]}
        empty={
          <Empty title={texts.rules.none}>
            <p>{texts.rules.noneText}</p>
          </Empty>
        }
      />
    </>
  );
}
