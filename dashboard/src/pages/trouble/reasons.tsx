import { useMemo } from "preact/hooks";
import { api } from "../../api";
import { Empty, Search } from "../../components/basic";
import { Chart } from "../../components/chart";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { RangeBar } from "../../components/range_bar";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { number, rate } from "../../format";
import { useData, useQuery, useTyped } from "../../hooks";
import { chooseSpan, resolutionOf, useRange } from "../../range";
import { useSeries } from "../../series";
import { texts } from "../../texts/trouble";
import { behind, ofCounter } from "../overview/behind";
import { type ReasonTotal, totals } from "./drops";

interface Explained {
  reason: string;
  settings: string[];
  text: string;
  /** The names under which it is counted. */
  counters: string[];
}

/** By the name under which it is counted, as the history has it. One may mean several things. */
function byName(known: Explained[]): Map<string, Explained[]> {
  const found = new Map<string, Explained[]>();
  for (const one of known) {
    for (const name of one.counters) found.set(name, [...(found.get(name) ?? []), one]);
  }
  return found;
}

function meaning(found: Explained[] | undefined): string | null {
  return [...new Set(found?.map((one) => one.text))].join("; or ") || null;
}

function settings(found: Explained[] | undefined): string | null {
  return [...new Set(found?.flatMap((one) => one.settings))].join(", ") || null;
}

const DRAWN = 8;

/** What was refused and dropped, by reason, over time. */
export function Reasons() {
  const range = useRange("hour");
  const [node, setNode] = useQuery("node");
  const nodes = useData((signal) => api.get<{ node: string; node_status: string }[]>("/nodes", {}, signal), []);
  const known = useData((signal) => api.get<Explained[]>("/reasons", {}, signal), []);
  const { series, error, reload } = useSeries({
    node: node || "all",
    span: range.span,
    from: range.from,
    to: range.to,
    resolution: resolutionOf(range),
    columns: "at",
  });
  const found = useMemo(() => (series ? totals(series) : []), [series]);
  const lines = useMemo(
    () => found.slice(0, DRAWN).map(({ reason }) => ({ label: reason, values: series?.drops[reason] ?? [] })),
    [series, found],
  );
  const about = useMemo(() => byName(known.data ?? []), [known.data]);
  const search = useTyped("reason");
  const rows = found.filter(({ reason }) => reason.includes(search.value));
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!series) return null;
  return (
    <>
      <div class="table-tools">
        <RangeBar range={range} usual="hour" />
        {(nodes.data?.length ?? 0) > 1 && (
          <label>
            {texts.reasons.node}{" "}
            <select value={node} onChange={(event) => setNode(event.currentTarget.value)}>
              <option value="">{texts.reasons.allNodes}</option>
              {nodes.data?.map((one) => (
                <option key={one.node} value={one.node}>
                  {nameText(one.node)}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {found.length === 0 ? (
        <Empty title={texts.reasons.none}>
          <p>{texts.reasons.noneText}</p>
        </Empty>
      ) : (
        <>
          <Chart title={texts.reasons.chart} at={series.at} series={lines} format={rate} height={220} onSelect={chooseSpan} />
          <Table
            id="reasons"
            label={texts.tabs.reasons}
            rows={rows}
            tools={<Search label={texts.reasons.search} {...search} />}
            rowKey={(one: ReasonTotal) => one.reason}
            columns={[
              {
                key: "reason",
                title: texts.reasons.columns.reason,
                fixed: true,
                sort: (one) => one.reason,
                render: (one) => (
                  <a href={behind(one.reason)}>
                    <Name text={one.reason} />
                  </a>
                ),
              },
              {
                key: "count",
                title: texts.reasons.columns.count,
                right: true,
                sort: (one) => one.count,
                render: (one) => number(Math.round(one.count)),
              },
              { key: "last", room: "medium", title: texts.reasons.columns.last, sort: (one) => one.last, render: (one) => <TimeAgo at={one.last} /> },
              {
                key: "what",
                prose: true,
                title: texts.reasons.columns.what,
                render: (one) => <Name text={meaning(ofCounter(about, one.reason))} max={400} />,
              },
              {
                key: "setting", room: "wide",
                title: texts.reasons.columns.setting,
                render: (one) => <Name text={settings(ofCounter(about, one.reason))} />,
              },
            ]}
          />
        </>
      )}
    </>
  );
}
