/** How to connect a first client: the listeners of the node, and programs for them. */

import { api } from "../../api";
import { Empty, Facts, Section } from "../../components/basic";
import { copyText } from "../../components/copy";
import { ErrorPanel } from "../../components/error";
import { ChosenFilter, TypedFilter } from "../../components/filters";
import { Name } from "../../components/name";
import { toast, toastError } from "../../components/toast";
import { useData, useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/node";
import type { Setting } from "./settings";
import { type Endpoint, type Language, type MqttListener, endpointOf, languagesOf, snippet } from "./snippets";

interface Found {
  listeners: { id: string; endpoint: Endpoint }[];
}

async function load(signal: AbortSignal): Promise<Found> {
  const [nodes, settings] = await Promise.all([
    api.get<{ node: string; listeners: MqttListener[] }[]>("/listeners", {}, signal),
    api.page<Setting>("/configuration", { _limit: 10_000 }, signal),
  ]);
  const listeners: Found["listeners"] = [];
  for (const { listeners: ofNode } of nodes) {
    for (const one of ofNode) {
      const endpoint = one.running === false ? undefined : endpointOf(one, settings.rows, location.hostname);
      if (endpoint && !listeners.some((other) => other.id === one.identifier)) listeners.push({ id: one.identifier, endpoint });
    }
  }
  return { listeners };
}

const T = texts.connect;

export function Connect() {
  const { data, error, reload } = useData(load, []);
  const [asked] = useQuery("listener");
  const [username] = useQuery("username");
  const [wanted] = useQuery("language");
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const chosen = data.listeners.find((one) => one.id === asked) ?? data.listeners[0];
  if (!chosen) {
    return (
      <Empty title={T.none}>
        <p>{T.noneText}</p>
      </Empty>
    );
  }
  const { endpoint } = chosen;
  const languages = languagesOf(endpoint);
  const language = languages.find((one) => one === wanted) ?? (languages[0] as Language);
  const text = snippet(language, endpoint, username) ?? "";
  const copy = (): void => void copyText(text).then(() => toast(T.copied), toastError);
  const others = data.listeners.filter((one) => one !== data.listeners[0]).map((one) => one.id);
  return (
    <>
      <div class="filters" role="search" aria-label={T.label}>
        <ChosenFilter name="listener" title={T.listener} any={data.listeners[0]?.id ?? ""} options={others} titles={{}} />
        <TypedFilter name="username" title={T.username} />
        <ChosenFilter name="language" title={T.language} any={T.languages[languages[0] as Language]} options={languages.slice(1)} titles={T.languages} />
      </div>
      <Section title={T.where}>
        <Facts
          rows={[
            [T.host, <Name text={endpoint.host} />],
            [T.port, String(endpoint.port)],
            [T.transport, endpoint.path === undefined ? T.tcp : <>{T.websocket} <Name text={endpoint.path} /></>],
            [T.tls, endpoint.tls ? T.tlsOn : T.tlsOff],
          ]}
        />
        {endpoint.local && <p class="faint">{T.local}</p>}
        {endpoint.tls && <p class="faint">{T.authority}</p>}
        <p class="faint">
          {T.login} <a href={link(["access", "users"])}>{T.users}</a>
        </p>
      </Section>
      <Section
        title={T.languages[language]}
        actions={
          <button type="button" onClick={copy}>
            {T.copy}
          </button>
        }
      >
        <pre class="log" tabIndex={0} aria-label={T.languages[language]}>{text}</pre>
        <p class="faint">
          {T.after} <a href={link(["clients"])}>{T.clients}</a> · <a href={link(["top", "refused"])}>{T.refused}</a>
        </p>
      </Section>
    </>
  );
}
