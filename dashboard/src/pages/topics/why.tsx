import { api } from "../../api";
import { Badge, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { number } from "../../format";
import { useData } from "../../hooks";
import { link, place, setQuery } from "../../router";
import { texts } from "../../texts/topics";

interface Check {
  check: string;
  result: "pass" | "fail" | "wait" | "note";
  text: string;
  setting: string;
}

interface Event {
  event: string;
  reason: string;
  text: string;
  advice: string;
  count: number;
  last_at: string;
}

interface Explained {
  clientid: string;
  topic: string;
  node: string;
  outcome: "received" | "waits" | "shared" | "not_received";
  reason: string;
  checks: Check[];
  events: Event[];
}

const words = texts.why;
const FIELDS: Field[] = [
  { name: "clientid", type: "text", title: words.fields.clientid, required: true },
  { name: "topic", type: "text", title: words.fields.topic, description: texts.topic.about, required: true },
  { name: "qos", type: "choice", title: words.fields.qos, options: ["0", "1", "2"].map((value) => ({ value, title: value })), rare: true },
  { name: "publisher", type: "text", title: words.fields.publisher, description: words.fields.publisherAbout, rare: true },
];
const OUTCOMES = { received: "good", waits: "warn", shared: "warn", not_received: "bad" } as const;
const RESULTS = { pass: "good", wait: "warn", fail: "bad", note: "plain" } as const;

/** Why a client gets the messages of a topic or not; what is asked stands in the address. */
export function WhyNot() {
  const { query } = place.value;
  const asked = Object.fromEntries(FIELDS.flatMap(({ name }) => (query[name] ? [[name, query[name]]] : [])));
  const submit = async (values: Values): Promise<void> =>
    setQuery(Object.fromEntries(FIELDS.map(({ name }) => [name, values[name] ? String(values[name]) : undefined])), true);
  const key = JSON.stringify(asked);
  return (
    <>
      <p class="faint">{words.about}</p>
      <Form key={key} fields={FIELDS} values={asked} submit={words.ask} focus={!asked["clientid"] || !asked["topic"]} readOnlyUse onSubmit={submit} />
      {asked["clientid"] && asked["topic"] && <Answer key={`answer ${key}`} asked={asked} />}
    </>
  );
}

function Answer({ asked }: { asked: Record<string, string> }) {
  const { data, error, reload } = useData((signal) => api.get<Explained>("/explain/delivery", asked, signal), [], 5_000);
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return null;
  return (
    <>
      <div class={`panel ${OUTCOMES[data.outcome]}`} role="status">
        <strong>{words.outcomes[data.outcome]}</strong>
        <p>
          <Name text={data.reason} max={500} />
        </p>
        <p>
          <a href={link(["clients", data.clientid])}>
            <Name text={data.clientid} />
          </a>
          {" · "}
          <a href={link(["topics", "topic"], { topic: data.topic })}>
            <Name text={data.topic} />
          </a>
          {data.node && (
            <span class="faint">
              {" · "}
              <Name text={data.node} />
            </span>
          )}
        </p>
      </div>
      <Section title={words.checks}>
        <Table
          id="delivery-checks"
          label={words.checks}
          rows={data.checks.map((check, index) => ({ ...check, index }))}
          rowKey={(check) => String(check.index)}
          columns={[
            { key: "check", title: words.columns.check, fixed: true, nowrap: true, render: (one) => words.names[one.check] ?? one.check },
            { key: "result", title: words.columns.result, fixed: true, render: (one) => <Badge tone={RESULTS[one.result]}>{words.results[one.result]}</Badge> },
            { key: "text", title: words.columns.text, fixed: true, render: (one) => <Name text={one.text} max={600} /> },
            { key: "setting", room: "medium", title: words.columns.setting, render: (one) => <Name text={one.setting || null} max={200} /> },
          ]}
        />
      </Section>
      {data.events.length > 0 && (
        <Section title={words.events}>
          <Table
            id="delivery-events"
            label={words.events}
            rows={data.events}
            rowKey={(one) => `${one.event} ${one.reason} ${one.last_at}`}
            columns={[
              { key: "last", title: words.columns.last, fixed: true, nowrap: true, render: (one) => <TimeAgo at={one.last_at} /> },
              { key: "count", title: words.columns.count, right: true, render: (one) => number(one.count) },
              { key: "reason", title: words.columns.reason, fixed: true, render: (one) => <code>{one.reason}</code> },
              { key: "text", room: "medium", title: words.columns.text, render: (one) => `${one.text} ${one.advice}` },
            ]}
          />
        </Section>
      )}
    </>
  );
}
