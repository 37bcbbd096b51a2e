import { api } from "../../api";
import { Badge } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { bytes, compact, duration, number, secondsOf, sizeOf } from "../../format";
import { useData } from "../../hooks";
import { link } from "../../router";
import { texts as common } from "../../texts/common";
import { texts } from "../../texts/node";
import { Links } from "./links";

export interface NodeRecord {
  node: string;
  /** Running, Suspect or Stopped. */
  node_status: string;
  otp_release: string;
  version: string;
  uptime: string;
  connections: number;
  load1: string;
  load5: string;
  load15: string;
  max_fds: number;
  memory_total: string;
  memory_used: string;
  process_available: number;
  process_used: number;
}

export function Nodes() {
  const { data, error, reload } = useData((signal) => api.get<NodeRecord[]>("/nodes", {}, signal), [], 5_000);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const { columns } = texts.nodes;
  return (
    <>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="nodes"
        label={texts.tabs.nodes}
        rows={data}
        rowKey={(one) => one.node}
        columns={[
          {
            key: "node",
            title: columns.node,
            fixed: true,
            sort: (one) => one.node,
            render: (one) => (
              <a href={link(["overview"], { node: one.node })}>
                <Name text={one.node} />
              </a>
            ),
          },
          {
            key: "status",
            title: columns.status,
            sort: (one) => one.node_status,
            render: (one) => {
              const running = one.node_status === "Running";
              return (
                <span title={running ? "" : texts.nodes.away}>
                  <Badge tone={running ? "good" : one.node_status === "Suspect" ? "warn" : "bad"}>{common.nodeStates[one.node_status] ?? one.node_status}</Badge>
                </span>
              );
            },
          },
          { key: "version", room: "medium", title: columns.version, sort: (one) => one.version, render: (one) => one.version },
          { key: "runtime", title: columns.runtime, off: true, render: (one) => <Name text={one.otp_release} /> },
          { key: "uptime", room: "medium", title: columns.uptime, nowrap: true, sort: (one) => secondsOf(one.uptime), render: (one) => duration(secondsOf(one.uptime)) },
          { key: "connections", title: columns.connections, right: true, sort: (one) => one.connections, render: (one) => compact(one.connections) },
          { key: "memory", title: columns.memory, right: true, sort: (one) => sizeOf(one.memory_used), render: (one) => bytes(sizeOf(one.memory_used)) },
          { key: "machine", title: columns.machine, right: true, off: true, sort: (one) => sizeOf(one.memory_total), render: (one) => bytes(sizeOf(one.memory_total)) },
          {
            key: "load", room: "wide",
            title: columns.load,
            right: true,
            sort: (one) => Number(one.load1),
            render: (one) => `${one.load1}, ${one.load5}, ${one.load15}`,
          },
          { key: "files", title: columns.files, right: true, off: true, render: (one) => number(one.max_fds) },
          { key: "threads", title: columns.threads, right: true, off: true, render: (one) => number(one.process_used) },
        ]}
      />
      {data.length > 1 && <Links />}
    </>
  );
}
