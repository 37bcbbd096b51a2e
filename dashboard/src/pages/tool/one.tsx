import { useState } from "preact/hooks";
import { save } from "../../api";
import { Badge, Empty, Facts, Section } from "../../components/basic";
import { Dialog } from "../../components/dialog";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { Payload } from "../../components/payload";
import { Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";
import { bytes, clock, exact, number } from "../../format";
import { useQuery, useTyped } from "../../hooks";
import { texts } from "../../texts/tool";
import { type Connection, KEPT, type Message, type Qos, forget } from "./connection";
import { bytesOf, jsonLines, readable, wrongFilter, wrongTopic } from "./payloads";

const QOS = ["0", "1", "2"].map((value) => ({ value, title: value }));

function subscribeFields(five: boolean): Field[] {
  const { subscribeFields: words } = texts;
  const fields: Field[] = [
    { name: "filter", type: "text", title: words.filter, required: true, check: wrongFilter, otherwise: "#" },
    { name: "qos", type: "choice", title: words.qos, required: true, otherwise: "0", options: QOS },
  ];
  if (!five) return fields;
  return [
    ...fields,
    { name: "nl", type: "switch", title: words.noLocal, rare: true },
    { name: "rap", type: "switch", title: words.retainAsPublished, rare: true },
    { name: "rh", type: "choice", title: words.retainHandling, required: true, otherwise: "0", options: Object.entries(words.retainHandlings).map(([value, title]) => ({ value, title })), rare: true },
    { name: "identifier", type: "number", title: words.identifier, min: 1, max: 268435455, rare: true },
  ];
}

function publishFields(five: boolean): Field[] {
  const { publishFields: words } = texts;
  const fields: Field[] = [
    { name: "topic", type: "text", title: words.topic, required: true, check: wrongTopic },
    {
      name: "payload",
      type: "multiline",
      title: words.payload,
      check: (value, values) =>
        value !== undefined && bytesOf(String(value), String(values["encoding"])) === undefined ? texts.badPayload : undefined,
    },
    { name: "encoding", type: "choice", title: words.encoding, required: true, otherwise: "text", options: Object.entries(words.encodings).map(([value, title]) => ({ value, title })) },
    { name: "qos", type: "choice", title: words.qos, required: true, otherwise: "0", options: QOS },
    { name: "retain", type: "switch", title: words.retain },
  ];
  if (!five) return fields;
  return [
    ...fields,
    { name: "contentType", type: "text", title: words.contentType, rare: true },
    { name: "responseTopic", type: "text", title: words.responseTopic, check: wrongTopic, rare: true },
    { name: "correlation", type: "text", title: words.correlation, rare: true },
    { name: "expiry", type: "number", title: words.expiry, min: 0, max: 4294967295, rare: true },
    { name: "properties", type: "map", title: words.properties, rare: true },
  ];
}

function propertiesOf(values: Values): Record<string, unknown> | undefined {
  const found: Record<string, unknown> = {};
  if (values["contentType"] !== undefined) found["contentType"] = values["contentType"];
  if (values["responseTopic"] !== undefined) found["responseTopic"] = values["responseTopic"];
  if (values["correlation"] !== undefined) found["correlationData"] = new TextEncoder().encode(String(values["correlation"]));
  if (values["expiry"] !== undefined) found["messageExpiryInterval"] = values["expiry"];
  const own = values["properties"];
  if (own && Object.keys(own).length > 0) found["userProperties"] = own;
  return Object.keys(found).length > 0 ? found : undefined;
}

const decoder = new TextDecoder();

function begin(payload: Uint8Array): string {
  return decoder.decode(payload.subarray(0, 200));
}

export function One({ connection }: { connection: Connection }) {
  const { wanted } = connection;
  const five = wanted.version === 5;
  const state = connection.state.value;
  const search = useTyped("search");
  const [like] = useQuery("search");
  const [shown, setShown] = useState<Message | undefined>(undefined);
  const rows = connection.messages.value.filter((message) => message.topic.includes(like)).reverse();

  const subscribe = async (values: Values): Promise<void> => {
    const filter = String(values["filter"]);
    const asked = five
      ? { qos: Number(values["qos"]) as Qos, nl: values["nl"] === true, rap: values["rap"] === true, rh: Number(values["rh"] ?? 0) }
      : { qos: Number(values["qos"]) as Qos };
    try {
      const qos = await connection.subscribe(filter, asked, values["identifier"] as number | undefined);
      toast(texts.subscribed(filter, qos));
    } catch (error) {
      throw new Error(texts.notGranted(filter, error instanceof Error ? error.message : ""));
    }
  };
  const publish = async (values: Values): Promise<void> => {
    const payload = bytesOf(String(values["payload"] ?? ""), String(values["encoding"])) ?? new Uint8Array();
    const qos = Number(values["qos"]) as Qos;
    await connection.publish(String(values["topic"]), payload, qos, values["retain"] === true, propertiesOf(values) as never);
    toast(qos === 0 ? texts.published : texts.publishedAck);
  };
  const saveAll = (): void => {
    const content = new Blob([`${jsonLines([...rows].reverse())}\n`], { type: "application/x-ndjson" });
    save(content, `mqtt-${new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-")}.jsonl`);
  };

  return (
    <>
      <Section
        title={texts.states[state] ?? state}
        actions={
          state === "connected" || state === "connecting" ? (
            <>
              <button type="button" onClick={() => connection.close(false)}>
                {texts.disconnect}
              </button>
              <button type="button" title={texts.abortAbout} onClick={() => connection.close(true)}>
                {texts.abort}
              </button>
            </>
          ) : (
            <>
              <button type="button" class="primary" onClick={() => void connection.open()}>
                {texts.again}
              </button>
              <button type="button" onClick={() => forget(connection)}>
                {texts.remove}
              </button>
            </>
          )
        }
      >
        {connection.reason.value !== "" && (
          <p class="wrong" role="alert">
            <Name text={connection.reason.value} max={300} />
          </p>
        )}
        <Facts
          rows={[
            [texts.fields.url, <Name text={wanted.url} />],
            [texts.fields.clientid, <Name text={wanted.clientid} />],
            [texts.fields.version, texts.versions[String(wanted.version)]],
            [texts.fields.username, <Name text={wanted.username ?? null} />],
          ]}
        />
      </Section>
      {state === "connected" && (
        <div class="columns-2">
          <Section title={texts.subscribe}>
            <Form fields={subscribeFields(five)} submit={texts.subscribe} readOnlyUse onSubmit={subscribe} />
            <h3>{texts.subscriptions}</h3>
            {connection.subscriptions.value.length === 0 && <p class="faint">{texts.noSubscriptions}</p>}
            <ul class="hits">
              {connection.subscriptions.value.map((one) => (
                <li key={one.filter}>
                  <Name text={one.filter} /> <Badge>QoS {one.qos}</Badge>{" "}
                  <button type="button" class="small" onClick={() => void attempt(() => connection.unsubscribe(one.filter))}>
                    {texts.unsubscribe}
                  </button>
                </li>
              ))}
            </ul>
          </Section>
          <Section title={texts.publish}>
            <Form fields={publishFields(five)} submit={texts.publish} readOnlyUse onSubmit={publish} />
          </Section>
        </div>
      )}
      <Section
        title={`${texts.messages} (${number(connection.messages.value.length)})`}
        actions={
          <>
            <button type="button" disabled={rows.length === 0} onClick={saveAll}>
              {texts.exportIt}
            </button>
            <button type="button" disabled={connection.messages.value.length === 0} onClick={() => connection.clear()}>
              {texts.clear}
            </button>
          </>
        }
      >
        <Table
          id="tool"
          label={texts.list}
          rows={rows.slice(0, 200)}
          rowKey={(message) => String(message.id)}
          tools={<input type="search" data-search aria-label={texts.filter} placeholder={texts.filter} spellcheck={false} {...search} />}
          columns={[
            { key: "at", title: texts.columns.at, fixed: true, render: (message) => <span title={exact(message.at)}>{clock(message.at)}</span> },
            {
              key: "direction",
              title: texts.columns.direction,
              fixed: true,
              render: (message) => <Badge tone={message.out ? "plain" : "good"}>{message.out ? texts.went : texts.came}</Badge>,
            },
            { key: "topic", title: texts.columns.topic, fixed: true, render: (message) => <Name text={message.topic} /> },
            { key: "qos", title: texts.columns.qos, right: true, render: (message) => message.qos },
            { key: "retain", title: texts.columns.retain, render: (message) => (message.retain ? texts.retained : "") },
            { key: "size", title: texts.columns.size, right: true, render: (message) => bytes(message.payload.length) },
            { key: "payload", title: texts.columns.payload, render: (message) => <Name text={begin(message.payload)} max={80} /> },
            {
              key: "act",
              title: "",
              fixed: true,
              render: (message) => (
                <button type="button" class="small" onClick={() => setShown(message)}>
                  {texts.show}
                </button>
              ),
            },
          ]}
          empty={<Empty title={texts.noMessages} />}
          foot={rows.length > 200 ? <p class="faint small">{texts.kept(number(KEPT))}</p> : undefined}
        />
      </Section>
      {shown && (
        <Dialog title={texts.message} onClose={() => setShown(undefined)} wide>
          <Facts
            rows={[
              [texts.columns.at, exact(shown.at)],
              [texts.columns.topic, <Name text={shown.topic} max={2_000} />],
              [texts.columns.qos, shown.qos],
              [texts.columns.retain, shown.retain ? texts.retained : ""],
              [texts.properties, <Name text={Object.keys(shown.properties).length > 0 ? JSON.stringify(readable(shown.properties)) : null} max={2_000} />],
            ]}
          />
          <Payload bytes={shown.payload} />
        </Dialog>
      )}
    </>
  );
}
