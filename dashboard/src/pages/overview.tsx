import { useMemo, useState } from "preact/hooks";
import { ApiError, api } from "../api";
import { nodeNow } from "../clock";
import { PageHead, Section } from "../components/basic";
import { Chart, type Mark, type Series as Line } from "../components/chart";
import { ErrorPanel } from "../components/error";
import { Name } from "../components/name";
import { RangeBar } from "../components/range_bar";
import { Table } from "../components/table";
import { number, rate } from "../format";
import { useData, useParts, useQuery } from "../hooks";
import { type Range, atOf, chooseSpan, earlier, resolutionOf, useRange } from "../range";
import { link } from "../router";
import { type Monitor, Series, aligned, backOf, changes, placeOf, useSeries } from "../series";
import { texts as common } from "../texts/common";
import { texts } from "../texts/overview";
import { OF_FIGURES, behind } from "./overview/behind";
import { HappenedList, useHappenings, useMarks } from "./overview/happened_list";
import { Figures } from "./overview/figures";
import { format, isBinary, title } from "./overview/format";
import { type Trouble, troubles } from "./overview/health";
import { NodeCards, readNodes } from "./overview/nodes";

const SYNC = "overview";
/** Milliseconds of the figures of now. */
const NOW = 600_000;

/** So many sentences are in sight. */
const SENTENCES = 5;

function Sentence({ one }: { one: Trouble }) {
  return (
    <li class={one.tone}>
      <a href={one.href}>
        <Name text={one.text} max={500} />
      </a>
    </li>
  );
}

function Health({ found }: { found: Trouble[] | undefined }) {
  if (!found) return <div class="panel health">{texts.health.reading}</div>;
  if (found.length === 0) {
    return (
      <div class="panel health good" role="status">
        <strong>{texts.health.good}</strong>
      </div>
    );
  }
  const others = found.slice(SENTENCES);
  return (
    <div class={`panel health ${found.some((one) => one.tone === "bad") ? "bad" : "warn"}`} role="status">
      <ul>
        {found.slice(0, SENTENCES).map((one) => (
          <Sentence key={one.text} one={one} />
        ))}
      </ul>
      {others.length > 0 && (
        <details>
          <summary>{texts.health.more(others.length)}</summary>
          <ul>
            {others.map((one) => (
              <Sentence key={one.text} one={one} />
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function Changed({ series, index }: { series: Series; index: number | null }) {
  const at = index === null ? undefined : series.at[index];
  const found = useMemo(() => (index === null ? undefined : changes(series, index, backOf(series))), [series, index]);
  if (at === undefined || !found) return <p class="changed faint">{texts.changed.hint}</p>;
  const said = found.figures.map(({ name, by, to }) =>
    (by > 0 ? texts.changed.up : texts.changed.down)(title(name), format(name)(Math.abs(by)), format(name)(to)),
  );
  said.push(...found.reasons.map(texts.changed.reason));
  const before = { 1_000: texts.changed.minute, 60_000: texts.changed.hour }[series.step] ?? texts.changed.day;
  return (
    <p class="changed">
      <strong>{texts.changed.at(atOf((series.at.at(-1) ?? 0) - (series.at[0] ?? 0))(at), before)}</strong>{" "}
      <Name text={said.join(" · ") || texts.changed.none} max={600} />
    </p>
  );
}

const CHARTS: { key: keyof typeof texts.charts; columns: string[] }[] = [
  { key: "messages", columns: ["messages_received", "messages_sent"] },
  { key: "clients", columns: ["connections", "sessions"] },
  { key: "bytes", columns: ["bytes_received", "bytes_sent"] },
  { key: "times", columns: ["loop_lag", "commit_time"] },
  { key: "subscriptions", columns: ["subscriptions", "retained"] },
  { key: "memory", columns: ["memory"] },
  { key: "disk", columns: ["disk_used", "disk_free"] },
];

interface ChartsProps {
  series: Series;
  range: Range;
  /** Of an earlier time, at the times of `series`. */
  before: Record<string, (number | null)[]> | undefined;
  marks: Mark[];
  onHover: (index: number | null) => void;
  onPick: (at: number) => void;
}

function Charts({ series, range, before, marks, onHover, onPick }: ChartsProps) {
  const most = series.dropsOf(series.at.length).slice(0, 8);
  const reasons: Line[] = most.map(([reason]) => ({ label: reason, values: series.drops[reason] ?? [] }));
  const named = range.span > 86_400_000 ? texts.compare.week : texts.compare.day;
  const lines = (columns: string[]): Line[] => [
    ...columns.map((name) => ({ label: title(name), values: series.column(name) })),
    ...columns.flatMap((name, color) => {
      const values = before?.[name];
      return values ? [{ label: named(title(name)), values, color, faint: true }] : [];
    }),
  ];
  const common = { at: series.at, sync: SYNC, marks, onSelect: chooseSpan, onPick };
  const limits = range.from === undefined || range.to === undefined ? {} : { from: range.from, to: range.to };
  return (
    <div class="grid charts">
      {CHARTS.map(({ key, columns }, position) => (
        <Chart
          key={key}
          title={texts.charts[key]}
          href={OF_FIGURES[columns[0] ?? ""]}
          {...common}
          {...limits}
          series={lines(columns)}
          format={format(columns[0] ?? "")}
          binary={columns.some(isBinary)}
          {...(position === 0 ? { onHover } : {})}
        />
      ))}
      {reasons.length > 0 && <Chart title={texts.charts.drops} href={link(["trouble", "reasons"])} {...common} {...limits} series={reasons} format={rate} />}
    </div>
  );
}

function Drops({ series, current }: { series: Series; current: Series | undefined }) {
  const rows = useMemo(() => {
    const inSpan = new Map(series.dropsOf(series.at.length));
    const now = new Map(current?.dropsOf(5));
    return [...inSpan].map(([reason, mean]) => ({
      reason,
      now: now.get(reason) ?? 0,
      count: Math.round((mean * series.at.length * series.step) / 1_000),
    }));
  }, [series, current]);
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

export default function Overview() {
  const range = useRange();
  const [compared, setCompared] = useQuery("compare");
  const [picked, setPicked] = useQuery("moment");
  const [asked, setNode] = useQuery("node");
  const [index, setIndex] = useState<number | null>(null);
  const { span, from, to } = range;
  const nodes = useData(readNodes, [], 5_000);
  const names = nodes.data?.nodes.map((one) => one.node) ?? [];
  const node = asked || (names.length > 1 ? "all" : "");
  // The figures and the health are those of now, whatever the charts show.
  const follows = resolutionOf(range) === "second";
  const { series: now, error } = useSeries({ node, span: follows ? span : NOW, resolution: "second", live: true });
  const past = useSeries(follows ? null : { node, span, from, to, resolution: resolutionOf(range) });
  const current = useMemo(() => now?.last(NOW), [now]);
  const shown = useMemo(() => (follows ? now?.last(span) : past.series), [follows, now, past.series, span]);

  const shift = earlier(span);
  const comparing = compared !== "" && shift !== undefined;
  const before = useData(
    async (signal) => {
      if (!comparing) return undefined;
      const end = to ?? nodeNow();
      const start = from ?? end - span;
      return Series.of(await api.get<Monitor>("/monitor", { node, from: Math.max(0, start - shift), to: end - shift }, signal));
    },
    [comparing, node, span, from, to],
    60_000,
  );
  const earlierValues = useMemo(
    () => (comparing && shown && before.data ? aligned(shown, before.data, shift) : undefined),
    [comparing, shown, before.data, shift],
  );
  const noneEarlier = comparing && before.data?.at.length === 0;

  const happenings = useHappenings(range);
  const happened = useMarks(happenings.data);
  const at = /^\d+$/.test(picked) ? Number(picked) : undefined;
  const marks = useMemo(() => (at === undefined ? happened : [...happened, { at, colour: "--ink" }]), [happened, at]);
  const near = shown ? Math.max(60_000, 2 * shown.step) : 60_000;
  const nearby = useMemo(
    () => (at === undefined ? happenings : { ...happenings, data: happenings.data?.filter((one) => Math.abs(one.at - at) <= near) }),
    [happenings.data, happenings.error, at, near],
  );
  const limits = [...(nodes.data?.stats ?? [])].filter(([name]) => node === "all" || node === "" || node === name);
  const limit = limits.reduce((sum, [, stats]) => sum + (stats["memory.limit.count"] ?? 0), 0) || undefined;

  const found = useMemo(() => {
    if (!current || !nodes.data) return undefined;
    const stopped = nodes.data.nodes.filter((one) => one.node_status !== "Running").map((one) => one.node);
    return troubles({ series: current, alarms: nodes.data.alarms, stopped, memoryLimit: limit });
  }, [current, nodes.data, limit]);

  // Each is drawn anew only where what it shows is another: not while one points at the charts.
  const tiles = useMemo(() => current && <Figures series={current} limit={limit} found={found} />, [current, limit, found]);
  const charts = useMemo(
    () =>
      shown && (
        <Charts series={shown} range={range} before={earlierValues} marks={marks} onHover={setIndex} onPick={(moment) => setPicked(String(moment))} />
      ),
    [shown, earlierValues, marks, span, from, to],
  );
  const drops = useMemo(() => shown && <Drops series={shown} current={current} />, [shown, current]);
  const cards = useMemo(() => nodes.data && <NodeCards nodes={nodes.data} />, [nodes.data]);
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
      </PageHead>
      <Health found={found} />
      {error && (error instanceof ApiError && error.code === 101 ? <p class="panel warn">{texts.noHistory}</p> : <ErrorPanel error={error} />)}
      {tiles}
      <div class="range-head">
        <h2>{texts.charts.title}</h2>
        <RangeBar range={range} />
        <label class="check" title={shift === undefined ? texts.compare.none : ""}>
          <input type="checkbox" checked={comparing} disabled={shift === undefined} onChange={(event) => setCompared(event.currentTarget.checked ? "1" : "")} />
          {span > 86_400_000 ? texts.compare.withWeek : texts.compare.withDay}
        </label>
      </div>
      {noneEarlier && <p class="faint">{texts.compare.unknown}</p>}
      {past.error && <ErrorPanel error={past.error} retry={past.reload} />}
      {shown && (
        <>
          {at === undefined ? (
            <Changed series={shown} index={index} />
          ) : (
            <div class="moment">
              <Changed series={shown} index={index ?? placeOf(shown, at)} />
              <span class="actions">
                <button type="button" class="small" onClick={() => chooseSpan(at - span / 10, at + span / 10)}>
                  {texts.happened.zoom}
                </button>
                <button type="button" class="small" onClick={() => setPicked("")}>
                  {texts.happened.close}
                </button>
              </span>
            </div>
          )}
          {parts > 1 && charts}
          {parts > 1 && <HappenedList found={nearby} span={span} title={at === undefined ? texts.happened.title : texts.happened.near(atOf(span)(at))} />}
          {parts > 2 && (
            <div class={names.length > 1 ? "" : "grid"}>
              {drops}
              {cards}
            </div>
          )}
        </>
      )}
      {nodes.error && <ErrorPanel error={nodes.error} retry={nodes.reload} />}
    </>
  );
}
