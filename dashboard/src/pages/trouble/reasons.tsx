import { useMemo } from "preact/hooks";
import { api } from "../../api";
import { Empty } from "../../components/basic";
import { Chart } from "../../components/chart";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { number, rate } from "../../format";
import { useData, useQuery } from "../../hooks";
import { texts } from "../../texts/trouble";
import { type Monitor, type ReasonTotal, totals, withGaps } from "./drops";

interface Explained {
  reason: string;
  description: string;
  setting?: string;
}

const DRAWN = 8;

/** What was refused and dropped, by reason, over the last hour or day. */
export function Reasons() {
  const [span, setSpan] = useQuery("span", "hour");
  const [node, setNode] = useQuery("node");
  const day = span === "day";
  const nodes = useData((signal) => api.get<{ node: string; node_status: string }[]>("/nodes", {}, signal), []);
  const known = useData((signal) => api.get<Explained[]>("/reasons", {}, signal), []);
  const { data, error, reload } = useData(
    (signal) => api.get<Monitor>("/monitor", { resolution: day ? "minute" : "second", node: node || "all" }, signal),
    [day, node],
    day ? 60_000 : 5_000,
  );
  const found = useMemo(() => (data ? totals(data) : []), [data]);
  const drawn = useMemo(() => (data ? withGaps(data, found.slice(0, DRAWN).map(({ reason }) => reason)) : undefined), [data, found]);
  const about = new Map((known.data ?? []).map((one) => [one.reason, one]));
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data || !drawn) return null;
  return (
    <>
      <div class="table-tools">
        <label>
          {texts.reasons.span}{" "}
          <select value={day ? "day" : "hour"} onChange={(event) => setSpan(event.currentTarget.value)}>
            <option value="hour">{texts.reasons.hour}</option>
            <option value="day">{texts.reasons.day}</option>
          </select>
        </label>
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
          <Chart title={texts.reasons.chart} at={drawn.at} series={drawn.series} format={rate} height={220} />
          <Table
            id="reasons"
            label={texts.tabs.reasons}
            rows={found}
            rowKey={(one: ReasonTotal) => one.reason}
            columns={[
              {
                key: "reason",
                title: texts.reasons.columns.reason,
                fixed: true,
                sort: (one) => one.reason,
                render: (one) => <Name text={one.reason} />,
              },
              {
                key: "count",
                title: texts.reasons.columns.count,
                right: true,
                sort: (one) => one.count,
                render: (one) => number(Math.round(one.count)),
              },
              { key: "last", title: texts.reasons.columns.last, sort: (one) => one.last, render: (one) => <TimeAgo at={one.last} /> },
              {
                key: "what",
                title: texts.reasons.columns.what,
                render: (one) => <Name text={about.get(one.reason)?.description ?? ""} max={400} />,
              },
              {
                key: "setting",
                title: texts.reasons.columns.setting,
                render: (one) => <Name text={about.get(one.reason)?.setting ?? null} />,
              },
            ]}
          />
        </>
      )}
    </>
  );
}
