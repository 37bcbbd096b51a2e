import type { ComponentChildren } from "preact";
import { api } from "../../api";
import { Empty } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Spark } from "../../components/spark";
import { type Column, Table } from "../../components/table";
import { FirstClient } from "../../components/first";
import { byteRate, number, rate } from "../../format";
import { useData, useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/top";

interface TopClient {
  clientid: string;
  username: string | null;
  in: number;
  out: number;
  in_oct: number;
  out_oct: number;
  node: string;
}

interface TopTopic {
  topic: string;
  topic_cut: boolean;
  in: number;
  in_oct: number;
  /** Messages of six periods of ten seconds. */
  counts: number[];
  from_clientid: string;
}

interface TopGroup {
  topic: string;
  members: number;
  out: number;
  dropped: number;
}

const EVERY = 5_000;
export const ROWS = 50;
const { columns } = texts;

/** By what the node sorts; in the address as `?by=`. */
function Orders({ names, current, onChange }: { names: string[]; current: string; onChange: (name: string) => void }) {
  return (
    <span class="segmented" role="group" aria-label={texts.by}>
      {names.map((name) => (
        <button key={name} type="button" aria-pressed={name === current} onClick={() => onChange(name)}>
          {texts.orders[name]}
        </button>
      ))}
    </span>
  );
}

export function ClientLink({ id, cut = false }: { id: string; cut?: boolean }) {
  if (id === "") return <span class="faint">{texts.noName}</span>;
  if (cut) return <Name text={`${id}…`} />;
  return (
    <a href={link(["clients", id])}>
      <Name text={id} />
    </a>
  );
}

function TopicLink({ row }: { row: TopTopic }) {
  if (row.topic_cut) return <Name text={`${row.topic}…`} />;
  return (
    <a href={link(["topics", "topic"], { topic: row.topic })}>
      <Name text={row.topic} />
    </a>
  );
}

interface ListProps<T> {
  id: string;
  label: string;
  path: string;
  orders: string[];
  rowKey: (row: T) => string;
  shown: (rows: T[]) => Column<T>[];
  none: { none: string; noneText: string };
  more?: ComponentChildren;
}

/** A list that the node keeps and sorts, read again every few seconds. */
function TopList<T>({ id, label, path, orders, rowKey, shown, none, more }: ListProps<T>) {
  const [asked, setBy] = useQuery("by", orders[0]);
  const by = orders.includes(asked) ? asked : (orders[0] ?? "");
  const { data, error, reload } = useData((signal) => api.get<T[]>(path, { _sort: by, _limit: ROWS }, signal), [by], EVERY);
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return null;
  return (
    <Table
      id={id}
      label={label}
      rows={data}
      rowKey={rowKey}
      columns={shown(data)}
      tools={
        <>
          <Orders names={orders} current={by} onChange={setBy} />
          {more}
        </>
      }
      empty={
        <Empty title={none.none}>
          <p>{none.noneText}</p>
          <FirstClient />
        </Empty>
      }
    />
  );
}

export function LoudClients() {
  return (
    <TopList<TopClient>
      id="top-clients"
      label={texts.tabs.clients}
      path="/top/clients"
      orders={["messages", "in", "out", "in_oct", "out_oct"]}
      rowKey={(row) => row.clientid}
      none={texts.clients}
      more={<a href={link(["clients"], { sort: "-queued" })}>{texts.queues}</a>}
      shown={(rows) => [
        { key: "client", title: columns.client, fixed: true, copy: (row) => row.clientid, render: (row) => <ClientLink id={row.clientid} /> },
        { key: "username", room: "medium", title: columns.username, copy: (row) => row.username, render: (row) => <Name text={row.username} /> },
        { key: "in", title: columns.in, right: true, value: (row) => row.in, render: (row) => rate(row.in) },
        { key: "out", title: columns.out, right: true, value: (row) => row.out, render: (row) => rate(row.out) },
        { key: "in_oct", room: "medium", title: columns.in_oct, right: true, value: (row) => row.in_oct, render: (row) => byteRate(row.in_oct) },
        { key: "out_oct", room: "medium", title: columns.out_oct, right: true, render: (row) => byteRate(row.out_oct) },
        { key: "node", title: columns.node, off: rows.every((row) => row.node === rows[0]?.node), render: (row) => <Name text={row.node} /> },
      ]}
    />
  );
}

export function LoudTopics() {
  return (
    <TopList<TopTopic>
      id="top-topics"
      label={texts.tabs.topics}
      path="/top/topics"
      orders={["in", "in_oct"]}
      rowKey={(row) => row.topic}
      none={texts.topics}
      shown={() => [
        { key: "topic", title: columns.topic, fixed: true, render: (row) => <TopicLink row={row} /> },
        { key: "in", title: columns.in, right: true, value: (row) => row.in, render: (row) => rate(row.in) },
        { key: "in_oct", room: "medium", title: columns.in_oct, right: true, value: (row) => row.in_oct, render: (row) => byteRate(row.in_oct) },
        { key: "history", room: "medium", title: columns.minute, render: (row) => <Spark counts={row.counts} title={texts.historyOfTopic} /> },
        { key: "publisher", title: columns.publisher, render: (row) => (row.from_clientid ? <ClientLink id={row.from_clientid} /> : "–") },
      ]}
    />
  );
}

export function LoudGroups() {
  return (
    <TopList<TopGroup>
      id="top-groups"
      label={texts.tabs.groups}
      path="/top/groups"
      orders={["out", "dropped"]}
      rowKey={(row) => row.topic}
      none={texts.groups}
      shown={() => [
        {
          key: "group",
          title: columns.group,
          fixed: true,
          render: (row) => (
            <a href={link(["subscriptions", "groups", row.topic])}>
              <Name text={row.topic} />
            </a>
          ),
        },
        { key: "members", room: "medium", title: columns.members, right: true, render: (row) => number(row.members) },
        { key: "out", title: columns.out, right: true, value: (row) => row.out, render: (row) => rate(row.out) },
        { key: "lost", title: columns.lost, right: true, render: (row) => number(row.dropped) },
      ]}
    />
  );
}
