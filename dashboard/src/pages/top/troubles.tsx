import { api } from "../../api";
import { Empty } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Spark } from "../../components/spark";
import { type Column, Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { number } from "../../format";
import { useData, useQuery } from "../../hooks";
import { link, setQuery } from "../../router";
import { texts } from "../../texts/top";
import { ClientLink, ROWS } from "./rates";

interface Trouble {
  clientid: string;
  clientid_cut: boolean;
  event: string;
  reason: string;
  counter: string;
  setting: string;
  text: string;
  advice: string;
  count: number;
  /** Of ten minutes. */
  counts: number[];
  topic: string;
  peerhost: string;
  last_at: string;
  node: string;
}

const EVERY = 5_000;
const { columns } = texts;

/** Whose messages are lost, or who is refused: `?reason=` is a reason or its counter, `?client=` a client. */
export function Troubles({ list }: { list: "dropped" | "refused" }) {
  const [reason] = useQuery("reason");
  const [client] = useQuery("client");
  const wanted = { ...(reason && { reason }), ...(client && { clientid: client }), _limit: ROWS };
  const { data, error, reload } = useData(
    (signal) => api.get<Trouble[]>(`/top/${list}`, wanted, signal),
    [list, reason, client],
    EVERY,
  );
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return null;
  const several = data.some((row) => row.node !== data[0]?.node);
  const shown: Column<Trouble>[] = [
    { key: "client", title: columns.client, fixed: true, render: (row) => <ClientLink id={row.clientid} cut={row.clientid_cut} /> },
    { key: "count", title: columns.count, right: true, fixed: true, render: (row) => number(row.count) },
    { key: "history", room: "wide", title: columns.history, render: (row) => <Spark counts={row.counts} title={texts.history} /> },
    {
      key: "reason",
      title: columns.reason,
      render: (row) => (
        <>
          {list === "refused" && <div>{texts.events[row.event] ?? row.event}</div>}
          <code>{row.reason}</code>
        </>
      ),
    },
    { key: "topic", room: "wide", title: columns.latest, render: (row) => (row.topic ? <Name text={row.topic} /> : "–") },
    {
      key: "meaning",
      room: "medium",
      prose: true,
      title: columns.meaning,
      render: (row) => (
        <>
          {row.text} {row.advice && <p>{row.advice}</p>}
          {row.setting !== "-" && (
            <div class="small faint">
              {columns.setting}: <code><Name text={row.setting} max={400} /></code>
            </div>
          )}
        </>
      ),
    },
    { key: "address", off: list === "dropped", room: "wide", title: columns.address, nowrap: true, render: (row) => row.peerhost || "–" },
    { key: "last", room: "medium", title: columns.last, nowrap: true, render: (row) => <TimeAgo at={row.last_at} /> },
    { key: "node", off: !several, title: columns.node, render: (row) => <Name text={row.node} /> },
  ];
  const chosen = [reason && texts.onlyReason(reason), client && texts.onlyClient(client)].filter(Boolean).join(" · ");
  return (
    <Table
      id={`top-${list}`}
      label={texts.tabs[list]}
      rows={data}
      rowKey={(row) => [row.node, row.event, row.clientid, row.reason, row.setting].join(" ")}
      columns={shown}
      tools={
        <>
          {chosen && (
            <span class="chosen">
              <Name text={chosen} />
              <button type="button" class="small" onClick={() => setQuery({ reason: undefined, client: undefined }, true)}>
                {texts.all}
              </button>
            </span>
          )}
          {list === "refused" ? (
            <a href={link(["trouble", "refused"])}>{texts.refusedClients}</a>
          ) : (
            <>
              <a href={link(["clients"], { sort: "-queued" })}>{texts.queues}</a>
              <a href={link(["trouble", "slow"])}>{texts.slow}</a>
            </>
          )}
        </>
      }
      empty={
        <Empty title={texts[list].none}>
          <p>{texts[list].noneText}</p>
        </Empty>
      }
    />
  );
}
