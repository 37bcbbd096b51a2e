import { useMemo, useState } from "preact/hooks";
import { type Page, api } from "../../api";
import { Badge, Change, Empty, PageHead } from "../../components/basic";
import { ChosenFilter, TypedFilter } from "../../components/filters";
import { Name } from "../../components/name";
import { type Column, PagedTable, orderOf } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toastError } from "../../components/toast";
import { FirstClient } from "../../components/first";
import { bytes, duration, number } from "../../format";
import { useQuery } from "../../hooks";
import { link, place, setQuery } from "../../router";
import { texts as common } from "../../texts/common";
import { texts } from "../../texts/clients";
import { FILTERS, FIRST, type FilterName, NAMES, filtersOf, fromLocal, namedBy, toLocal } from "./filters";
import { ClientMenu, kickAll } from "./orders";
import { NotHere } from "./refused";
import { type Client, NEVER, addressOf, stateOf, userOf, versionOf } from "./record";

const EVERY = 5_000;
/** Clients that are ended by their filters at most, in one go. */
const MATCHING = 10_000;

function TimeFilter({ name }: { name: FilterName }) {
  const [value, set] = useQuery(name);
  return (
    <label>
      {texts.filterNames[name]}
      <input type="datetime-local" value={toLocal(value)} onChange={(event) => set(fromLocal(event.currentTarget.value))} />
    </label>
  );
}

function Filter({ name }: { name: FilterName }) {
  const kind = FILTERS[name];
  const title = texts.filterNames[name];
  if (kind === "time") return <TimeFilter name={name} />;
  if (kind === "text" || kind === "number") {
    return <TypedFilter name={name} title={title} numeric={kind === "number"} search={name === "_like_clientid"} />;
  }
  return <ChosenFilter name={name} title={title} any={texts.filters.any} options={kind} titles={texts.values} />;
}

export function StateBadge({ client }: { client: Client }) {
  const state = stateOf(client);
  return <Badge tone={state === "connected" ? "good" : "plain"}>{texts.states[state]}</Badge>;
}

/** 0: it ends with its connection; 0xFFFFFFFF: never. */
export function expiryOf(client: Client): string {
  if (client.expiry_interval === 0) return texts.atOnce;
  return client.expiry_interval >= NEVER ? texts.never : duration(client.expiry_interval);
}

/** What a small window has no room for beside what is in flight, queued and dropped. */
const ROOM: Record<string, "medium" | "wide"> = { subscriptions: "wide", inflight: "medium" };

/** The figures by which the node sorts all clients have an `order`: the field of the record. */
function figure(key: string, title: string, value: (client: Client) => number, order?: string, off = false, format = number): Column<Client> {
  const needs = ROOM[key];
  const sorted = order === undefined ? { sort: value } : { order };
  return { key, title, right: true, off, ...(needs ? { room: needs } : {}), ...sorted, render: (client) => format(value(client)) };
}

const { columns } = texts;
const COLUMNS: Column<Client>[] = [
  {
    key: "clientid",
    title: columns.clientid,
    fixed: true,
    order: "clientid",
    copy: (client) => client.clientid,
    render: (client) => (
      <a href={link(["clients", client.clientid])}>
        <Name text={client.clientid} />
      </a>
    ),
  },
  { key: "state", title: columns.state, order: "connected", value: (client) => texts.states[stateOf(client)], render: (client) => <StateBadge client={client} /> },
  { key: "username", room: "medium", title: columns.username, order: "username", copy: userOf, render: (client) => <Name text={userOf(client)} /> },
  { key: "address", room: "wide", title: columns.address, nowrap: true, order: "ip_address", value: addressOf, render: addressOf },
  { key: "protocol", title: columns.protocol, off: true, order: "proto_ver", value: versionOf, render: versionOf },
  { key: "since", room: "wide", title: columns.since, nowrap: true, order: "connected_at", render: (client) => <TimeAgo at={client.connected_at} /> },
  {
    key: "ended",
    title: columns.ended,
    nowrap: true,
    off: true,
    order: "disconnected_at",
    render: (client) => <TimeAgo at={client.disconnected_at} />,
  },
  { key: "created", title: columns.created, nowrap: true, off: true, order: "created_at", render: (client) => <TimeAgo at={client.created_at} /> },
  figure("subscriptions", columns.subscriptions, (client) => client.subscriptions_cnt, "subscriptions_cnt"),
  figure("inflight", columns.inflight, (client) => client.inflight, "inflight"),
  figure("queued", columns.queued, (client) => client.mqueue_len, "mqueue_len"),
  figure("dropped", columns.dropped, (client) => client.mqueue_dropped, "mqueue_dropped"),
  figure("awaiting", columns.awaiting, (client) => client.awaiting_rel, "awaiting_rel", true),
  figure("received", columns.received, (client) => client.recv_msg, "recv_msg", true),
  figure("receivedDropped", columns.receivedDropped, (client) => client["recv_msg.dropped"], "recv_msg.dropped", true),
  figure("receivedBytes", columns.receivedBytes, (client) => client.recv_oct, "recv_oct", true, bytes),
  figure("sent", columns.sent, (client) => client.send_msg, "send_msg", true),
  figure("sentDropped", columns.sentDropped, (client) => client["send_msg.dropped"], "send_msg.dropped", true),
  figure("sentBytes", columns.sentBytes, (client) => client.send_oct, "send_oct", true, bytes),
  figure("mailbox", columns.mailbox, (client) => client.mailbox_len, undefined, true),
  figure("memory", columns.memory, (client) => client.heap_size, undefined, true, bytes),
  figure("keepalive", columns.keepalive, (client) => client.keepalive, "keepalive", true, duration),
  { key: "expiry", title: columns.expiry, off: true, right: true, order: "expiry_interval", render: expiryOf },
  { key: "cleanStart", title: columns.cleanStart, off: true, sort: (client) => client.clean_start, render: (client) => texts.values[String(client.clean_start)] },
  { key: "bridge", title: columns.bridge, off: true, sort: (client) => client.is_bridge, render: (client) => texts.values[String(client.is_bridge)] },
  { key: "zone", title: columns.zone, off: true, order: "zone", render: (client) => <Name text={client.zone} /> },
  { key: "node", title: columns.node, off: true, sort: (client) => client.node, render: (client) => <Name text={client.node} /> },
];

function kickColumn(onDone: () => void): Column<Client> {
  return { key: "act", title: "", fixed: true, render: (client) => <ClientMenu id={client.clientid} onDone={onDone} /> };
}

export function ClientList() {
  const [kicked, setKicked] = useState(0);
  const filters = filtersOf(place.value.query);
  const set = Object.keys(filters).length;
  const folded = NAMES.filter((name) => !FIRST.includes(name));
  const hidden = folded.filter((name) => name in filters).length;
  const clear = (): void => setQuery(Object.fromEntries([...NAMES, "page"].map((name) => [name, undefined])), true);
  const shown = useMemo(() => [...COLUMNS, kickColumn(() => setKicked((count) => count + 1))], []);
  const order = orderOf(COLUMNS, place.value.query["sort"]);
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Client>> =>
    api.page<Client>("/clients", { ...filters, ...(order && { _sort: order }), _page: page, _limit: limit }, signal);
  const matching = async (): Promise<string[]> => {
    // A set: while the pages are read, a client may move to the next one.
    const ids = new Set<string>();
    for (let page = 1; ids.size < MATCHING; page += 1) {
      const { rows, meta } = await api.page<Client>("/clients", { ...filters, _page: page, _limit: 1_000 });
      for (const client of rows) ids.add(client.clientid);
      if (!meta.hasnext || rows.length === 0) break;
    }
    return [...ids];
  };
  return (
    <>
      <PageHead title={common.pages.clients}>
        <a href={link(["trouble", "refused"])}>{texts.refused.link}</a>
      </PageHead>
      <div class="filters" role="search" aria-label={texts.search}>
        {FIRST.map((name) => (
          <Filter key={name} name={name} />
        ))}
        {set > 0 && (
          <button type="button" onClick={clear}>
            {texts.filters.clear}
          </button>
        )}
      </div>
      <details class="filters-more" open={hidden > 0}>
        <summary>{hidden > 0 ? texts.filters.set(hidden) : texts.filters.more}</summary>
        <div class="filters">
          {folded.map((name) => (
            <Filter key={name} name={name} />
          ))}
        </div>
      </details>
      <PagedTable
        id="clients"
        label={texts.list}
        columns={shown}
        rowKey={(client) => client.clientid}
        reuse
        load={load}
        deps={[JSON.stringify(filters), order, kicked]}
        every={EVERY}
        tools={
          set > 0 && (
            <Change operates onClick={() => void kickAll(matching, () => setKicked((count) => count + 1)).catch(toastError)}>
              {texts.kick.all}
            </Change>
          )
        }
        empty={
          set > 0 ? (
            <NotHere search={namedBy(filters)} clientid={filters["clientid"] ?? filters["_like_clientid"]} />
          ) : (
            <Empty title={texts.none}>
              <p>
                <code>{texts.noneText(location.hostname)}</code>
              </p>
              <FirstClient />
            </Empty>
          )
        }
      />
    </>
  );
}
