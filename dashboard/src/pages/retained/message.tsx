import { useMemo, useState } from "preact/hooks";
import { ApiError, type Json, api, part } from "../../api";
import { Change, Empty, Facts, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Payload, fromBase64 } from "../../components/payload";
import { PublishDialog } from "../../components/publish";
import { TimeAgo } from "../../components/time";
import { bytes } from "../../format";
import { useData } from "../../hooks";
import { below } from "../../levels";
import { link } from "../../router";
import { texts } from "../../texts/retained";
import { Publisher } from "./list";
import { removeOne } from "./remove";

export interface Retained {
  node: string;
  topic: string;
  qos: number;
  payload_size: number;
  publish_at: string;
  /** Null: never. */
  expires_at: string | null;
  /** Null: the node itself. */
  from_clientid: string | null;
  from_username: string | null;
}

interface Whole extends Retained {
  payload: string;
  encoding: "plain" | "base64";
  properties: Record<string, Json>;
}

const EVERY = 5_000;
const NOT_FOUND = 404;

export function Message({ topic, changed }: { topic: string; changed: number }) {
  // As it was when the dialog opened, which stays when the message has gone or cannot be read.
  const [open, setOpen] = useState<Whole | undefined>(undefined);
  const { data, error, reload } = useData((signal) => api.get<Whole>(`/retained/${part(topic)}`, {}, signal), [topic, changed], EVERY);
  return (
    <>
      {open && (
        <PublishDialog
          values={{
            ...open.properties,
            topic,
            payload: open.payload,
            encoding: open.encoding,
            qos: String(open.qos),
            retain: true,
            payload_format_indicator: open.properties["payload_format_indicator"] === 1,
            // In pairs, since a name may come more than once; what is published has each once.
            user_properties: Object.fromEntries((open.properties["user_properties"] as [string, string][] | undefined) ?? []),
          }}
          onClose={(done) => {
            setOpen(undefined);
            if (done) reload();
          }}
        />
      )}
      {error && !(error instanceof ApiError && error.status === NOT_FOUND) ? (
        <ErrorPanel error={error} retry={reload} />
      ) : (
        <Found topic={topic} data={error ? null : data} reload={reload} onPublish={setOpen} />
      )}
    </>
  );
}

/** `data`: null where there is none. */
function Found({ topic, data, reload, onPublish }: { topic: string; data: Whole | null | undefined; reload: () => void; onPublish: (data: Whole) => void }) {
  // The same bytes, read again, are the same object: what was chosen to be seen stays.
  const content = useMemo(
    () => (data ? (data.encoding === "base64" ? fromBase64(data.payload) : new TextEncoder().encode(data.payload)) : undefined),
    [data?.payload, data?.encoding],
  );
  const levels = topic.split("/");
  const back = <a href={link(["retained"], levels.length > 1 ? below(levels.slice(0, -1).join("/")) : {})}>{texts.message.back}</a>;
  if (data === null) {
    return (
      <Section title={texts.message.title} actions={back}>
        <p>
          <Name text={topic} />
        </p>
        <Empty title={texts.message.gone}>
          <p>{texts.message.goneText}</p>
        </Empty>
      </Section>
    );
  }
  if (!data || !content) return null;
  const properties = Object.entries(data.properties);
  const { columns } = texts.list;
  const remove = async (): Promise<void> => {
    if (await removeOne(topic)) reload();
  };
  return (
    <>
      <Section
        title={texts.message.title}
        actions={
          <>
            {back}
            <Change operates onClick={() => onPublish(data)}>{texts.message.republish}</Change>
            <Change kind="danger" onClick={() => void remove()}>
              {texts.remove.one}
            </Change>
          </>
        }
      >
        <Facts
          rows={[
            [texts.message.topic, <Name text={topic} max={400} />],
            [texts.message.size, bytes(data.payload_size)],
            [columns.qos, data.qos],
            [columns.at, <TimeAgo at={data.publish_at} />],
            [columns.expires, <TimeAgo at={data.expires_at} otherwise={texts.list.never} />],
            [columns.from, <Publisher message={data} />],
            [columns.user, <Name text={data.from_username} />],
          ]}
        />
      </Section>
      <Section title={texts.message.payload}>
        <Payload bytes={content} />
      </Section>
      {properties.length > 0 && (
        <Section title={texts.message.properties}>
          <Facts rows={properties.map(([name, value]) => [name, <Name text={typeof value === "string" ? value : JSON.stringify(value)} max={400} />])} />
        </Section>
      )}
    </>
  );
}
