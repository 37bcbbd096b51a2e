import type { ComponentChildren } from "preact";
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
import { link, place } from "../../router";
import { texts } from "../../texts/access";
import { Order } from "./order";
import { type Kind, KINDS, type Rule, isNameless, pathOf } from "./rule_lines";
import { SubjectRules } from "./subject_rules";

interface Listed extends Rule {
  username?: string;
  clientid?: string;
}

const options = (words: Record<string, string>) => Object.entries(words).map(([value, title]) => ({ value, title }));

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
  const [, , ofKind, ofName] = place.value.path;
  const [asked, setKind] = useQuery("kind", "username");
  const [adding, setAdding] = useState(false);
  const [count, setCount] = useState(0);
  useKey("n", texts.rules.new, () => setAdding(true));
  const kind = KINDS.find((one) => one === (ofKind ?? asked)) ?? "username";
  const close = (): void => {
    setAdding(false);
    setCount(count + 1);
  };
  const name = isNameless(kind) ? "" : ofKind === kind ? (ofName ?? "") : undefined;
  const choice = (
    <>
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
  );
  return (
    <>
      {adding && (
        <Dialog title={texts.rules.new} onClose={close}>
          <Form
            fields={fieldsOf(kind)}
            values={name ? { name } : {}}
            onCancel={close}
            onSubmit={async (values) => {
              await add(values);
              toast(texts.rules.added);
              close();
            }}
          />
        </Dialog>
      )}
      <Order here={kind} />
      <p class="faint">
        {texts.rules.order} <a href={link(["topics", "who"])}>{texts.rules.who}</a>
      </p>
      {name === undefined ? (
        <List key={kind} kind={kind} count={count} onChange={() => setCount(count + 1)} tools={choice} />
      ) : (
        <>
          {name === "" ? (
            <div class="filters-row">{choice}</div>
          ) : (
            <header class="subject-head">
              <a href={link(["access", "rules"], { kind: kind === "username" ? undefined : kind })}>{texts.rules.back}</a>
              <h2>
                {texts.users.name[kind]}:{" "}
                <a href={link(["access", "users", kind, name])}>
                  <Name text={name} />
                </a>
              </h2>
            </header>
          )}
          <SubjectRules key={`${kind} ${name}`} kind={kind} name={name} version={count} />
        </>
      )}
    </>
  );
}

/** The rules of all usernames, or of all client IDs. */
function List(props: { kind: Kind; count: number; onChange: () => void; tools: ComponentChildren }) {
  const { kind, count } = props;
  const search = useTyped("search");
  const topicSearch = useTyped("topic");
  const [like] = useQuery("search");
  const [topic] = useQuery("topic");
  const nameOf = (rule: Listed): string => (kind === "clientid" ? rule.clientid : rule.username) ?? "";

  const remove = async (rule: Listed): Promise<void> => {
    const done = await confirm({
      title: texts.rules.removeTitle,
      hits: [`${nameOf(rule)}: ${rule.topic}`],
      text: texts.rules.removeText,
      action: texts.common.remove,
      work: () => api.del(`${pathOf(kind, nameOf(rule))}/topic/${part(rule.topic)}`),
    });
    if (done) toast(texts.rules.removed);
    props.onChange();
  };
  return (
    <PagedTable<Listed>
      id={`rules-${kind}`}
      label={texts.tabs.rules}
      deps={[kind, like, topic, count]}
      load={(page, limit, signal) => api.page<Listed>(`/acl/${kind}`, { [`_like_${kind}`]: like, _like_topic: topic, _page: page, _limit: limit }, signal)}
      rowKey={(rule) => `${nameOf(rule)} ${rule.topic} ${rule.action} ${rule.access} ${rule.listener ?? ""}`}
      tools={
        <>
          <Search label={texts.common.search} {...search} />
          <input type="search" aria-label={texts.rules.topicSearch} placeholder={texts.rules.topicSearch} spellcheck={false} {...topicSearch} />
          {props.tools}
        </>
      }
      columns={[
        {
          key: "subject",
          title: texts.rules.columns.subject,
          fixed: true,
          sort: nameOf,
          render: (rule) => (
            <a href={link(["access", "rules", kind, nameOf(rule)])}>
              <Name text={nameOf(rule)} />
            </a>
          ),
        },
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
            <span class="actions">
              <a class="button" href={link(["access", "rules", kind, nameOf(rule)])}>
                {texts.common.change}
              </a>
              <Change kind="danger" onClick={() => void remove(rule)}>
                {texts.common.remove}
              </Change>
            </span>
          ),
        },
      ]}
      empty={
        <Empty title={texts.rules.none}>
          <p>{texts.rules.noneText}</p>
        </Empty>
      }
    />
  );
}
