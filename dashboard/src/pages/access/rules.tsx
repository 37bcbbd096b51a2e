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

type Kind = "username" | "clientid" | "all";

interface Rule {
  username?: string;
  clientid?: string;
  all?: string;
  topic: string;
  action: string;
  access: string;
}

const options = (words: Record<string, string>) => Object.entries(words).map(([value, title]) => ({ value, title }));

function fieldsOf(kind: Kind): Field[] {
  const { fields } = texts.rules;
  return [
    { name: "kind", type: "choice", title: fields.kind, required: true, otherwise: kind, options: options(texts.rules.kinds) },
    { name: "name", type: "text", title: fields.name, required: true, when: (values) => values["kind"] !== "all" },
    { name: "topic", type: "text", title: fields.topic, description: fields.topicAbout, required: true },
    { name: "action", type: "choice", title: fields.action, required: true, otherwise: "pubsub", options: options(texts.rules.actions) },
    { name: "access", type: "choice", title: fields.access, required: true, otherwise: "allow", options: options(texts.rules.access) },
  ];
}

async function add(values: Values): Promise<void> {
  const { kind, name, topic, action, access } = values;
  await api.post("/acl", { ...(kind === "all" ? {} : { [String(kind)]: name }), topic, action, access });
}

export function Rules() {
  const [asked, setKind] = useQuery("kind", "username");
  const kind: Kind = asked === "clientid" || asked === "all" ? asked : "username";
  const search = useTyped("search");
  const topicSearch = useTyped("topic");
  const [like] = useQuery("search");
  const [topic] = useQuery("topic");
  const [adding, setAdding] = useState(false);
  const [count, setCount] = useState(0);
  useKey("n", texts.rules.new, () => setAdding(true));
  const nameOf = (rule: Rule): string => (kind === "all" ? "$all" : (rule[kind] ?? ""));
  const path = kind === "all" ? "/acl/$all" : `/acl/${kind}`;

  const remove = async (rule: Rule): Promise<void> => {
    const of = kind === "all" ? path : `${path}/${part(nameOf(rule))}`;
    const done = await confirm({
      title: texts.rules.removeTitle,
      hits: [`${nameOf(rule)}: ${rule.topic}`],
      text: texts.rules.removeText,
      action: texts.common.remove,
      work: () => api.del(`${of}/topic/${part(rule.topic)}`),
    });
    if (done) toast(texts.common.removed);
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
          api.page<Rule>(path, { ...(kind === "all" ? {} : { [`_like_${kind}`]: like }), _like_topic: topic, _page: page, _limit: limit }, signal)
        }
        rowKey={(rule) => `${nameOf(rule)} ${rule.topic} ${rule.action} ${rule.access}`}
        tools={
          <>
            {kind !== "all" && <Search label={texts.common.search} {...search} />}
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
