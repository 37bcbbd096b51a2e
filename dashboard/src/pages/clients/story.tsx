import { Badge, Empty, Section } from "../../components/basic";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { bytes, duration, exact, moment, number } from "../../format";
import { texts } from "../../texts/clients";

export interface Event {
  event: string;
  reason: string;
  /** `-`: none. */
  setting: string;
  /** What the reason means; empty where nothing is known. */
  text: string;
  /** What helps; empty where nothing is known. */
  advice: string;
  topic: string;
  detail: string;
  count: number;
  at: string;
  last_at: string;
  node?: string;
}

export interface Limit {
  setting: string;
  /** Null: it is a rate, which is not counted. */
  now: number | null;
  /** Of a rate: so many, in so many seconds. */
  most: number | [number, number];
  reached: boolean;
}

export interface Session {
  created_at: string;
  expires_at: string | null;
  durable: boolean;
  owner: string | null;
  queue_full: string;
}

/** `GET /clients/{clientid}/explain`. */
export interface Explained {
  clientid: string;
  connected: boolean;
  session: Session | null;
  limits: Limit[];
  events: Event[];
}

const GOOD = new Set(["client_connected"]);
const CALM = new Set(["normal", "disconnect_with_will_message"]);

function tone(event: Event): "good" | "warn" | "bad" | "plain" {
  if (GOOD.has(event.event)) return "good";
  if (event.event === "client_refused") return "bad";
  return CALM.has(event.reason) ? "plain" : "warn";
}

/** The end of a ban as all other times are shown. */
export function detailText(reason: string, detail: string): string {
  if (reason !== "banned") return detail;
  return detail.replace(/ until (\d{9,12})(?=: )/, (_, at: string) => ` until ${exact(Number(at) * 1000)}`).replace(/: $/, "");
}

/** What happened to it, the latest first, and what helps. */
export function Story({ events }: { events: Event[] }) {
  const many = events.some((event) => event.node !== undefined);
  return (
    <Table
      id="story"
      label={texts.story.label}
      rows={events.map((event, index) => ({ ...event, index }))}
      rowKey={(event) => `${event.index}`}
      columns={[
        {
          key: "when",
          title: texts.story.when,
          fixed: true,
          nowrap: true,
          render: (event) => (
            <>
              <TimeAgo at={event.last_at} />
              {event.count > 1 && <div class="faint small">{texts.story.first(exact(moment(event.at) ?? 0))}</div>}
            </>
          ),
        },
        {
          key: "what",
          title: texts.story.what,
          fixed: true,
          render: (event) => (
            <Badge tone={tone(event)}>
              {texts.story.events[event.event] ?? event.event}
              {event.count > 1 && ` × ${number(event.count)}`}
            </Badge>
          ),
        },
        {
          key: "reason",
          title: texts.story.reason,
          render: (event) => (
            <>
              <code>{event.reason}</code>
              {event.detail && (
                <div class="small">
                  <Name text={detailText(event.reason, event.detail)} />
                </div>
              )}
            </>
          ),
        },
        { key: "setting", room: "medium", title: texts.story.setting, render: (event) => (event.setting === "-" || event.setting === "" ? "–" : <code><Name text={event.setting} /></code>) },
        {
          key: "meaning",
          prose: true,
          title: texts.story.meaning,
          render: (event) => (
            <>
              {event.text || texts.story.reasons[event.reason]} {event.advice && <p><strong>{event.advice}</strong></p>}
            </>
          ),
        },
        { key: "topic", room: "medium", title: texts.story.topic, render: (event) => (event.topic === "" ? "–" : <Name text={event.topic} />) },
        { key: "node", title: texts.story.node, off: !many, render: (event) => <Name text={event.node} /> },
      ]}
      empty={
        <Empty title={texts.story.none}>
          <p>{texts.story.noneText}</p>
        </Empty>
      }
    />
  );
}

/** A limit of bytes is shown as all sizes are. */
function amount(limit: Limit, value: number | null): string {
  return /(^|_)bytes?(_|$)/.test(limit.setting) ? bytes(value) : number(value);
}

function most(limit: Limit): string {
  if (typeof limit.most === "number") return limit.most === 0 ? texts.tiles.unlimited : amount(limit, limit.most);
  return `${amount(limit, limit.most[0])} / ${duration(limit.most[1])}`;
}

export function limitText(limit: Limit): string {
  return limit.now === null ? texts.limits.rate(limit.setting, most(limit)) : texts.limits.one(limit.setting, amount(limit, limit.now), most(limit));
}

export function Limits({ limits }: { limits: Limit[] }) {
  return (
    <Section title={texts.limits.title}>
      <Table
        id="limits"
        label={texts.limits.title}
        rows={limits}
        rowKey={(limit) => limit.setting}
        columns={[
          { key: "l-setting", title: texts.limits.setting, fixed: true, render: (limit) => <code>{limit.setting}</code> },
          { key: "l-now", title: texts.limits.now, fixed: true, right: true, render: (limit) => amount(limit, limit.now) },
          { key: "l-most", title: texts.limits.most, fixed: true, right: true, render: most },
          {
            key: "l-state",
            title: texts.limits.state,
            fixed: true,
            render: (limit) => <Badge tone={limit.reached ? "warn" : "plain"}>{limit.reached ? texts.limits.holds : texts.limits.free}</Badge>,
          },
        ]}
      />
    </Section>
  );
}
