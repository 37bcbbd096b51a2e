import { useMemo, useState } from "preact/hooks";
import { ApiError, api } from "../api";
import { Badge, PageHead, Section, Tile } from "../components/basic";
import { Chart, type Series as Line } from "../components/chart";
import { ErrorPanel } from "../components/error";
import { Name } from "../components/name";
import { Table } from "../components/table";
import { byteRate, bytes, clock, compact, duration, milliseconds, number, percent, rate, secondsOf } from "../format";
import { useData, useParts, useQuery } from "../hooks";
import { link } from "../router";
import { type Series, changes, useSeries } from "../series";
import { texts as common } from "../texts/common";
import { texts } from "../texts/overview";
import { OF_FIGURES, behind } from "./overview/behind";
import { type Alarm, troubles } from "./overview/health";

const SPANS: Record<string, number> = { "10m": 600_000, hour: 3_600_000, day: 86_400_000 };
const SYNC = "overview";

type Format = (value: number | null | undefined) => string;
const FORMATS: Record<string, Format> = {
  messages_received: rate,
  messages_sent: rate,
  messages_dropped: rate,
  deliveries_dropped: rate,
  bytes_received: byteRate,
  bytes_sent: byteRate,
  loop_lag: milliseconds,
  commit_time: milliseconds,
  disk_free: bytes,
  disk_used: bytes,
  memory: bytes,
};

const BINARY = new Set([bytes, byteRate]);

const format = (name: string): Format => FORMATS[name] ?? compact;
const title = (name: string): string => texts.columns[name] ?? name;

interface NodeRecord {
  node: string;
  node_status: string;
  uptime: string;
  version: string;
  connections: number;
  load1: string;
  memory_used: string;
}

interface NodeStats {
  node: string;
  stats: Record<string, number>;
}

interface Nodes {
  nodes: NodeRecord[];
  stats: Map<string, Record<string, number>>;
  alarms: Alarm[];
}

async function readNodes(signal: AbortSignal): Promise<Nodes> {
  const [nodes, stats, alarms] = await Promise.all([
    api.get<NodeRecord[]>("/nodes", {}, signal),
    api.get<NodeStats[]>("/stats", {}, signal),
    api.get<{ node: string; alarms: Alarm[] }[]>("/alarms/activated", {}, signal),
  ]);
  const many = nodes.length > 1;
  return {
    nodes,
    stats: new Map(stats.map((one) => [one.node, one.stats])),
    alarms: alarms.flatMap((one) => one.alarms.map((alarm) => (many ? { ...alarm, node: one.node } : alarm))),
  };
}

function Health({ series, nodes, limit }: { series: Series | undefined; nodes: Nodes | undefined; limit: number | undefined }) {
  if (!series || !nodes) return <div class="panel health">{texts.health.reading}</div>;
  const stopped = nodes.nodes.filter((one) => one.node_status !== "Running").map((one) => one.node);
  const found = troubles({ series, alarms: nodes.alarms, stopped, memoryLimit: limit });
  const [first, ...others] = found;
  if (!first) {
    return (
      <div class="panel health good" role="status">
        <strong>{texts.health.good}</strong>
      </div>
    );
  }
  return (
    <div class={`panel health ${first.tone}`} role="status">
      <p>
        <a href={first.href}>
          <Name text={first.text} max={500} />
        </a>
      </p>
      {others.length > 0 && (
        <details>
          <summary>{texts.health.more(others.length)}</summary>
          <ul>
            {others.map((one) => (
              <li key={one.text}>
                <a href={one.href}>
                  <Name text={one.text} max={500} />
                </a>
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function Changed({ series, index }: { series: Series; index: number | null }) {
  const at = index === null ? undefined : series.at[index];
  const found = useMemo(() => (index === null ? undefined : changes(series, index)), [series, index]);
  if (at === undefined || !found) return <p class="changed faint">{texts.changed.hint}</p>;
  const said = found.figures.map(({ name, by, to }) =>
    (by > 0 ? texts.changed.up : texts.changed.down)(title(name), format(name)(Math.abs(by)), format(name)(to)),
  );
  said.push(...found.reasons.map(texts.changed.reason));
  return (
    <p class="changed">
      <strong>{texts.changed.at(clock(at), series.step === 1_000 ? texts.changed.minute : texts.changed.hour)}</strong>{" "}
      <Name text={said.join(" · ") || texts.changed.none} max={600} />
    </p>
  );
}

function Figure({ series, name, limit }: { series: Series; name: string; limit?: number | undefined }) {
  const last = series.at.length - 1;
  const now = series.value(name, last);
  const before = series.step === 1_000 ? series.value(name, last - 60) : series.value(name, last - 1);
  const show = format(name);
  const parts = [before === null ? undefined : texts.minuteAgo(show(before))];
  if (limit && now !== null) parts.unshift(texts.ofLimit(percent(now, limit), bytes(limit)));
  return <Tile label={title(name)} href={OF_FIGURES[name]} value={show(now)} sub={parts[0] ?? ""} title={[texts.about[name], ...parts].filter(Boolean).join(" · ")} />;
}

const TILES = [
  "messages_received", "messages_sent", "deliveries_dropped", "messages_dropped", "connections", "sessions",
  "subscriptions", "retained", "bytes_received", "bytes_sent", "loop_lag", "commit_time", "memory", "disk_free",
];

const CHARTS: { key: keyof typeof texts.charts; columns: string[] }[] = [
  { key: "messages", columns: ["messages_received", "messages_sent"] },
  { key: "clients", columns: ["connections", "sessions"] },
  { key: "bytes", columns: ["bytes_received", "bytes_sent"] },
  { key: "times", columns: ["loop_lag", "commit_time"] },
  { key: "subscriptions", columns: ["subscriptions", "retained"] },
  { key: "memory", columns: ["memory"] },
  { key: "disk", columns: ["disk_used", "disk_free"] },
];

function Tiles({ series, limit }: { series: Series; limit: number | undefined }) {
  return (
    <div class="tiles overview">
      {TILES.map((name) => (
        <Figure key={name} series={series} name={name} limit={name === "memory" ? limit : undefined} />
      ))}
    </div>
  );
}

function Charts({ series, onHover }: { series: Series; onHover: (index: number | null) => void }) {
  const most = series.dropsOf(series.at.length).slice(0, 8);
  const reasons: Line[] = most.map(([reason]) => ({ label: reason, values: series.drops[reason] ?? [] }));
  return (
    <div class="grid charts">
      {CHARTS.map(({ key, columns }, position) => (
        <Chart
          key={key}
          title={texts.charts[key]}
          href={OF_FIGURES[columns[0] ?? ""]}
          at={series.at}
          series={columns.map((name) => ({ label: title(name), values: series.column(name) }))}
          format={format(columns[0] ?? "")}
          sync={SYNC}
          binary={columns.some((name) => BINARY.has(format(name)))}
          {...(position === 0 ? { onHover } : {})}
        />
      ))}
      {reasons.length > 0 && <Chart title={texts.charts.drops} href={link(["trouble", "reasons"])} at={series.at} series={reasons} format={rate} sync={SYNC} />}
    </div>
  );
}

function Drops({ series }: { series: Series }) {
  const rows = useMemo(() => {
    const inSpan = new Map(series.dropsOf(series.at.length));
    const now = new Map(series.dropsOf(5));
    return [...inSpan].map(([reason, mean]) => ({
      reason,
      now: now.get(reason) ?? 0,
      count: Math.round((mean * series.at.length * series.step) / 1_000),
    }));
  }, [series]);
  return (
    <Section title={texts.drops.title}>
      {rows.length === 0 ? (
        <p class="faint">{texts.drops.none}</p>
      ) : (
        <Table
          id="overview-drops"
          label={texts.drops.title}
          rows={rows}
          rowKey={(row) => row.reason}
          columns={[
            {
              key: "reason",
              title: texts.drops.reason,
              fixed: true,
              render: (row) => (
                <a href={behind(row.reason)}>
                  <Name text={row.reason} />
                </a>
              ),
            },
            { key: "now", title: texts.drops.rate, right: true, fixed: true, render: (row) => rate(row.now) },
            { key: "count", title: texts.drops.hour, right: true, fixed: true, render: (row) => number(row.count) },
          ]}
        />
      )}
    </Section>
  );
}

function NodeTable({ nodes }: { nodes: Nodes }) {
  const stat = (node: string, name: string): number | undefined => nodes.stats.get(node)?.[`${name}.count`];
  const named = texts.nodes;
  return (
    <Section title={named.title}>
      <Table
        id="overview-nodes"
        label={named.title}
        rows={nodes.nodes}
        rowKey={(row) => row.node}
        columns={[
          {
            key: "node",
            title: named.name,
            fixed: true,
            render: (row) => (
              <a href={link(["overview"], { node: row.node })}>
                <Name text={row.node} />
              </a>
            ),
          },
          {
            key: "status",
            title: named.status,
            render: (row) => <Badge tone={row.node_status === "Running" ? "good" : "bad"}>{common.nodeStates[row.node_status] ?? row.node_status}</Badge>,
          },
          { key: "uptime", room: "medium", title: named.uptime, nowrap: true, render: (row) => duration(secondsOf(row.uptime)) },
          { key: "connections", title: named.connections, right: true, render: (row) => number(stat(row.node, "connections") ?? row.connections) },
          { key: "sessions", title: named.sessions, right: true, render: (row) => number(stat(row.node, "sessions")) },
          { key: "subscriptions", room: "medium", title: named.subscriptions, right: true, render: (row) => number(stat(row.node, "subscriptions")) },
          { key: "memory", title: named.memory, right: true, render: (row) => bytes(stat(row.node, "memory.used")) },
          { key: "load", room: "wide", title: named.load, right: true, render: (row) => row.load1 },
          { key: "version", title: named.version, off: true, render: (row) => row.version },
        ]}
      />
    </Section>
  );
}

export default function Overview() {
  const [range, setRange] = useQuery("range", "10m");
  const [asked, setNode] = useQuery("node");
  const [index, setIndex] = useState<number | null>(null);
  const span = SPANS[range] ?? 600_000;
  const nodes = useData(readNodes, [], 5_000);
  const names = nodes.data?.nodes.map((one) => one.node) ?? [];
  const node = asked || (names.length > 1 ? "all" : "");
  const { series, error } = useSeries({ node, span, resolution: span > 3_600_000 ? "minute" : "second", live: true });
  const shown = useMemo(() => series?.last(span), [series, span]);
  const limits = [...(nodes.data?.stats ?? [])].filter(([name]) => node === "all" || node === "" || node === name);
  const limit = limits.reduce((sum, [, stats]) => sum + (stats["memory.limit.count"] ?? 0), 0) || undefined;

  // Each is drawn anew only where what it shows is another: not while one points at the charts.
  const tiles = useMemo(() => shown && <Tiles series={shown} limit={limit} />, [shown, limit]);
  const charts = useMemo(() => shown && <Charts series={shown} onHover={setIndex} />, [shown]);
  const drops = useMemo(() => shown && <Drops series={shown} />, [shown]);
  const table = useMemo(() => nodes.data && <NodeTable nodes={nodes.data} />, [nodes.data]);
  const parts = useParts(3, shown !== undefined);

  return (
    <>
      <PageHead title={common.pages.overview}>
        {names.length > 1 && (
          <label>
            <span class="sr">{texts.node}</span>
            <select value={node} onChange={(event) => setNode(event.currentTarget.value)}>
              <option value="all">{texts.allNodes}</option>
              {names.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        )}
        <span class="segmented" role="group" aria-label={texts.range}>
          {Object.keys(SPANS).map((name) => (
            <button key={name} type="button" aria-pressed={name === range} onClick={() => setRange(name)}>
              {texts.ranges[name]}
            </button>
          ))}
        </span>
      </PageHead>
      <Health series={series} nodes={nodes.data} limit={limit} />
      {error && (error instanceof ApiError && error.code === 101 ? <p class="panel warn">{texts.noHistory}</p> : <ErrorPanel error={error} />)}
      {shown && (
        <>
          {tiles}
          <Changed series={shown} index={index} />
          {parts > 1 && charts}
          {parts > 2 && (
            <div class="grid">
              {drops}
              {table}
            </div>
          )}
        </>
      )}
      {nodes.error && <ErrorPanel error={nodes.error} retry={nodes.reload} />}
    </>
  );
}
