/** Client tool: MQTT over WebSocket, in the page. */

import { useState } from "preact/hooks";
import { api } from "../api";
import { Badge, Empty, PageHead } from "../components/basic";
import { Dialog } from "../components/dialog";
import { type Field, Form, type Values } from "../components/form";
import { Name } from "../components/name";
import { useData } from "../hooks";
import { useKey } from "../keys";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/tool";
import { Connection, type Wanted, connections } from "./tool/connection";
import { One } from "./tool/one";
import { wrongTopic } from "./tool/payloads";

const { fields: words } = texts;
const QOS = ["0", "1", "2"].map((value) => ({ value, title: value }));
const five = (values: Values): boolean => values["version"] === "5";
const hasWill = (values: Values): boolean => values["willTopic"] !== undefined;

/** Addresses of the node's WebSocket listeners, as this page reaches them. */
async function addresses(signal: AbortSignal): Promise<string[]> {
  const nodes = await api.get<{ listeners: { protocol: string; identifier: string; listen_on: string; running?: boolean }[] }[]>("/listeners", {}, signal);
  const found: string[] = [];
  for (const { listeners } of nodes) {
    for (const one of listeners) {
      const kind = /^mqtt:(wss?)\b/.exec(one.identifier)?.[1];
      const port = /:(\d+)$/.exec(one.listen_on)?.[1];
      if (kind && port && one.running !== false) found.push(`${kind}://${location.hostname}:${port}/mqtt`);
    }
  }
  // A page that came over TLS may open secure ones only.
  return [...new Set(found)].sort((left, right) => Number(right.startsWith(secure())) - Number(left.startsWith(secure())));
}

function secure(): string {
  return location.protocol === "https:" ? "wss:" : "ws:";
}

function wrongUrl(value: unknown): string | undefined {
  return typeof value === "string" && !(/^wss?:\/\/./.test(value) && URL.canParse(value)) ? texts.badUrl : undefined;
}

function fieldsOf(urls: string[]): Field[] {
  return [
    { name: "url", type: "text", title: words.url, description: words.urlAbout, required: true, check: wrongUrl, otherwise: urls[0] ?? `ws://${location.hostname}:8083/mqtt`, suggestions: urls },
    { name: "clientid", type: "text", title: words.clientid, required: true, otherwise: `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0]?.toString(16)}` },
    { name: "version", type: "choice", title: words.version, required: true, otherwise: "5", options: ["5", "4", "3"].map((value) => ({ value, title: texts.versions[value] ?? value })) },
    { name: "username", type: "text", title: words.username },
    { name: "password", type: "password", title: words.password },
    { name: "clean", type: "switch", title: words.clean, description: words.cleanAbout, otherwise: true },
    { name: "expiry", type: "number", title: words.expiry, min: 0, max: 4294967295, rare: true, when: five },
    { name: "keepalive", type: "number", title: words.keepalive, min: 0, max: 65535, otherwise: 60, required: true, rare: true },
    { name: "receiveMaximum", type: "number", title: words.receiveMaximum, min: 1, max: 65535, rare: true, when: five },
    { name: "properties", type: "map", title: words.properties, rare: true, when: five },
    { name: "willTopic", type: "text", title: words.willTopic, check: wrongTopic, rare: true },
    { name: "willPayload", type: "multiline", title: words.willPayload, rare: true, when: hasWill },
    { name: "willQos", type: "choice", title: words.willQos, options: QOS, otherwise: "0", required: true, rare: true, when: hasWill },
    { name: "willRetain", type: "switch", title: words.willRetain, rare: true, when: hasWill },
    { name: "willDelay", type: "number", title: words.willDelay, min: 0, max: 4294967295, rare: true, when: (values) => hasWill(values) && five(values) },
  ];
}

function wantedOf(values: Values): Wanted {
  const text = (name: string): string | undefined => values[name] as string | undefined;
  const figure = (name: string): number | undefined => values[name] as number | undefined;
  const willTopic = text("willTopic");
  return {
    url: String(values["url"]),
    clientid: String(values["clientid"]),
    version: Number(values["version"]) as Wanted["version"],
    username: text("username"),
    password: text("password"),
    clean: values["clean"] === true,
    expiry: figure("expiry"),
    keepalive: figure("keepalive") ?? 60,
    receiveMaximum: figure("receiveMaximum"),
    properties: (values["properties"] ?? {}) as Record<string, string>,
    will:
      willTopic === undefined
        ? undefined
        : {
            topic: willTopic,
            payload: text("willPayload") ?? "",
            qos: Number(values["willQos"]) as 0 | 1 | 2,
            retain: values["willRetain"] === true,
            delay: figure("willDelay"),
          },
  };
}

export default function Page() {
  const urls = useData(addresses, []);
  const [adding, setAdding] = useState(false);
  useKey("n", texts.new, () => setAdding(true));
  const open = connections.value;
  const asked = Number(place.value.path[1]);
  const current = open.find((one) => one.id === asked) ?? open[open.length - 1];
  return (
    <>
      <PageHead title={common.pages.tool} sub={texts.about}>
        <button type="button" class="primary" onClick={() => setAdding(true)} title="n">
          {texts.new}
        </button>
      </PageHead>
      {adding && urls.data && (
        <Dialog title={texts.new} onClose={() => setAdding(false)}>
          <Form
            fields={fieldsOf(urls.data)}
            submit={texts.connect}
            readOnlyUse
            onCancel={() => setAdding(false)}
            onSubmit={async (values) => {
              const made = new Connection(wantedOf(values));
              connections.value = [...connections.value, made];
              location.hash = link(["tool", String(made.id)]);
              setAdding(false);
            }}
          />
        </Dialog>
      )}
      {open.length === 0 && (
        <Empty title={texts.none}>
          <p>{texts.noneText}</p>
        </Empty>
      )}
      {open.length > 0 && (
        <nav class="tabs" aria-label={texts.connections}>
          {open.map((one) => (
            <a key={one.id} href={link(["tool", String(one.id)])} aria-current={one === current ? "page" : undefined}>
              <Name text={one.wanted.clientid} max={30} />{" "}
              <Badge tone={one.state.value === "connected" ? "good" : one.state.value === "connecting" ? "warn" : "bad"}>
                {texts.states[one.state.value]}
              </Badge>
            </a>
          ))}
        </nav>
      )}
      {current && <One key={current.id} connection={current} />}
    </>
  );
}
