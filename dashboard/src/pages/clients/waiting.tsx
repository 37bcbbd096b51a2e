import { api, part } from "../../api";
import { Badge, Empty } from "../../components/basic";
import { Name } from "../../components/name";
import { type Column, PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { bytes, duration, milliseconds, number } from "../../format";
import { link } from "../../router";
import { texts } from "../../texts/clients";

/** A message of the queue or in flight, without its payload. */
interface Message {
  state: "queued" | "sent" | "released";
  packet_id: number | null;
  topic: string | null;
  qos: number | null;
  retain: boolean | null;
  publish_at: string | null;
  /** Seconds. */
  age: number | null;
  expires_at: string | null;
  payload_size: number | null;
  on_disk: boolean | null;
  share: string;
  from_clientid: string | null;
  from_username: string | null;
}

const { waiting } = texts;
const EVERY = 2_000;

const age = (seconds: number | null): string => (seconds === null ? "–" : seconds < 1 ? milliseconds(Math.round(seconds * 1000)) : duration(seconds));

const COLUMNS: Column<Message & { key: string }>[] = [
  { key: "topic", title: waiting.topic, fixed: true, sort: (one) => one.topic, copy: (one) => one.topic, render: (one) => <Name text={one.topic} /> },
  { key: "age", title: waiting.age, right: true, sort: (one) => one.age, render: (one) => age(one.age) },
  { key: "qos", room: "medium", title: waiting.qos, right: true, sort: (one) => one.qos, render: (one) => one.qos ?? "–" },
  {
    key: "size", room: "medium",
    title: waiting.size,
    right: true,
    sort: (one) => one.payload_size,
    render: (one) => (one.on_disk ? waiting.about(bytes(one.payload_size)) : bytes(one.payload_size)),
  },
  {
    key: "from",
    title: waiting.from,
    sort: (one) => one.from_clientid,
    render: (one) =>
      one.from_clientid ? (
        <a href={link(["clients", one.from_clientid])}>
          <Name text={one.from_clientid} />
        </a>
      ) : (
        "–"
      ),
  },
  { key: "user", title: waiting.fromUser, off: true, sort: (one) => one.from_username, render: (one) => <Name text={one.from_username} /> },
  { key: "expires", room: "wide", title: waiting.expires, nowrap: true, sort: (one) => one.expires_at, render: (one) => <TimeAgo at={one.expires_at} otherwise={texts.never} /> },
  { key: "at", title: waiting.at, off: true, nowrap: true, sort: (one) => one.publish_at, render: (one) => <TimeAgo at={one.publish_at} /> },
  { key: "share", title: waiting.share, off: true, sort: (one) => one.share, render: (one) => (one.share ? <Name text={one.share} /> : "–") },
  { key: "retain", title: waiting.retain, off: true, render: (one) => texts.values[String(one.retain)] ?? "–" },
  { key: "disk", title: waiting.disk, off: true, render: (one) => texts.values[String(one.on_disk)] ?? "–" },
];

const INFLIGHT: Column<Message & { key: string }>[] = [
  { key: "packet", title: waiting.packet, right: true, sort: (one) => one.packet_id, render: (one) => number(one.packet_id) },
  { key: "state", title: waiting.state, sort: (one) => one.state, render: (one) => <Badge>{waiting.states[one.state] ?? one.state}</Badge> },
];

export function Waiting({ id, kind }: { id: string; kind: "queue" | "inflight" }) {
  const queue = kind === "queue";
  return (
    <PagedTable
      id={`client-${kind}`}
      label={texts.tabs[kind]}
      columns={queue ? COLUMNS : [...COLUMNS, ...INFLIGHT]}
      rowKey={(one) => one.key}
      load={async (page, limit, signal) => {
        const found = await api.page<Message>(`/clients/${part(id)}/${kind}`, { _page: page, _limit: limit }, signal);
        return { ...found, rows: found.rows.map((row, index) => ({ ...row, key: row.packet_id === null ? `${index}` : `p${row.packet_id}` })) };
      }}
      deps={[id, kind]}
      every={EVERY}
      empty={
        <Empty title={queue ? waiting.noneQueue : waiting.noneInflight}>
          <p>{queue ? waiting.noneQueueText : waiting.noneInflightText}</p>
        </Empty>
      }
    />
  );
}
