import { type Json, api } from "../../api";
import { Badge, Facts, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { useData } from "../../hooks";
import { link, place, setQuery } from "../../router";
import { texts } from "../../texts/topics";

interface Step {
  source: string;
  rule: string;
  matched: boolean;
  permission: string | null;
  detail: string;
}

interface Explained {
  allowed: boolean | null;
  reason: string;
  rule: string;
  client: {
    clientid: string;
    username: string | null;
    proved_by: string;
    is_superuser: boolean;
    address: string;
    listener: string;
    zone: string;
    connected: boolean;
    node: string;
  };
  steps: Step[];
}

const { fields: words } = texts.who;
const FIELDS: Field[] = [
  { name: "clientid", type: "text", title: words.clientid, description: words.clientidAbout },
  {
    name: "action",
    type: "choice",
    title: words.action,
    required: true,
    otherwise: "publish",
    options: Object.entries(texts.who.actions).map(([value, title]) => ({ value, title })),
  },
  { name: "topic", type: "text", title: words.topic, description: words.topicAbout, required: true },
  { name: "username", type: "text", title: words.username, description: words.usernameAbout, rare: true },
  { name: "address", type: "text", title: words.address, rare: true },
  { name: "listener", type: "text", title: words.listener, rare: true },
  {
    name: "qos",
    type: "choice",
    title: words.qos,
    options: ["0", "1", "2"].map((value) => ({ value, title: value })),
    rare: true,
    when: (values) => values["action"] === "publish",
  },
  { name: "retain", type: "switch", title: words.retain, rare: true, when: (values) => values["action"] === "publish" },
  { name: "ask", type: "switch", title: words.ask, description: words.askAbout, rare: true },
];

/** What is asked stands in the address, so that the answer can be shown to somebody. */
function asked(): Values {
  const values: Values = {};
  for (const field of FIELDS) {
    const value = place.value.query[field.name];
    if (value !== undefined) values[field.name] = field.type === "switch" ? value === "true" : (value as Json);
  }
  return values;
}

export function WhoMay() {
  const { query } = place.value;
  const ready = (query["topic"] ?? "") !== "" && query["action"] !== undefined;
  const submit = async (values: Values): Promise<void> => {
    const next: Record<string, string | undefined> = {};
    for (const field of FIELDS) {
      const value = values[field.name];
      next[field.name] = value === undefined || value === false ? undefined : String(value);
    }
    setQuery(next, true);
  };
  const key = JSON.stringify(query);
  return (
    <>
      <p class="faint">{texts.who.about}</p>
      <Form key={key} fields={FIELDS} values={asked()} submit={texts.who.ask} readOnlyUse onSubmit={submit} />
      {ready && <Answer key={`answer ${key}`} />}
    </>
  );
}

function Answer() {
  const { query } = place.value;
  const { data, error, reload } = useData(
    (signal) => {
      const { ask, retain, ...rest } = query;
      const given = { ...rest, retain: retain === "true" ? "true" : undefined, ask: ask === "true" ? 1 : undefined };
      delete (given as Record<string, unknown>)["sort"];
      return api.get<Explained>("/access/explain", given, signal);
    },
    [],
  );
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return null;
  const { client } = data;
  const { facts, columns } = texts.who;
  const yes = (value: boolean): string => (value ? texts.who.yes : texts.who.no);
  return (
    <>
      <div class={`panel ${data.allowed === null ? "warn" : data.allowed ? "good" : "bad"}`} role="status">
        <strong>{data.allowed === null ? texts.who.open : data.allowed ? texts.who.allowed : texts.who.denied}</strong>
        <p>
          <Name text={data.reason} max={400} />
        </p>
        {data.rule !== "" && (
          <p>
            {texts.who.decides}: <code><Name text={data.rule} /></code>
          </p>
        )}
      </div>
      <Section title={texts.who.client}>
        <Facts
          rows={[
            [
              words.clientid,
              client.connected ? (
                <a href={link(["clients", client.clientid])}>
                  <Name text={client.clientid} />
                </a>
              ) : (
                <Name text={client.clientid} />
              ),
            ],
            [facts.username, <Name text={client.username} />],
            [facts.proved, <Name text={client.proved_by || null} />],
            [facts.superuser, yes(client.is_superuser)],
            [facts.address, <Name text={client.address} />],
            [facts.listener, <Name text={client.listener} />],
            [facts.zone, <Name text={client.zone} />],
            [facts.connected, yes(client.connected)],
            [facts.node, <Name text={client.node} />],
          ]}
        />
      </Section>
      <Section title={texts.who.steps}>
        <Table
          id="access-steps"
          label={texts.who.steps}
          rows={data.steps.map((step, index) => ({ ...step, index }))}
          rowKey={(step) => String(step.index)}
          columns={[
            { key: "source", title: columns.source, fixed: true, render: (step) => <Name text={step.source} /> },
            { key: "rule", title: columns.rule, render: (step) => <Name text={step.rule || null} /> },
            { key: "matched", title: columns.matched, render: (step) => (step.matched ? texts.who.matched : <span class="faint">{texts.who.notMatched}</span>) },
            {
              key: "permission",
              title: columns.permission,
              render: (step) =>
                step.permission === null ? <span class="faint">–</span> : <Badge tone={step.permission === "allow" ? "good" : "bad"}>{texts.who.results[step.permission] ?? step.permission}</Badge>,
            },
            { key: "detail", title: columns.detail, render: (step) => <Name text={step.detail} max={300} /> },
          ]}
        />
      </Section>
    </>
  );
}
