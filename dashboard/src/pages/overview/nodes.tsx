/** The nodes: a picture of several, and a card for each. */

import { Badge, Section } from "../../components/basic";
import { Name } from "../../components/name";
import { Sparkline } from "../../components/sparkline";
import { Since } from "../../components/time";
import { bytes, compact, duration, rate, secondsOf } from "../../format";
import { api } from "../../api";
import { useData } from "../../hooks";
import { type NodeWithCopies, copiesOf, hostedOf, toneOf } from "../../replicas";
import type { NodeLink } from "../../links";
import { link } from "../../router";
import { type Monitor, Series } from "../../series";
import { texts as common } from "../../texts/common";
import { texts } from "../../texts/overview";
import type { Alarm } from "./health";
import { ClusterPicture } from "./picture";

export interface NodeRecord extends NodeWithCopies {
  node_status: string;
  uptime: string;
  version: string;
  connections: number;
  load1: string;
  memory_used: string;
}

export interface Nodes {
  nodes: NodeRecord[];
  stats: Map<string, Record<string, number>>;
  alarms: Alarm[];
}

interface NodeStats {
  node: string;
  stats: Record<string, number>;
}

export async function readNodes(signal: AbortSignal): Promise<Nodes> {
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

/** Of so many nodes the traffic of each is read. */
const WITH_TRAFFIC = 6;
/** So many nodes are drawn as a picture. */
const DRAWN = 8;
const EVERY = 10_000;
const LINKS_EVERY = 2_000;
const SPAN = 600_000;

/** The messages of each node in the last ten minutes, in and out. */
async function traffic(names: string[], signal: AbortSignal): Promise<Map<string, Series>> {
  const columns = "at,messages_received,messages_sent";
  const read = async (node: string): Promise<[string, Series] | undefined> => {
    try {
      return [node, Series.of(await api.get<Monitor>("/monitor", { node, span: SPAN, resolution: "second", columns }, signal))];
    } catch (error) {
      // One that does not answer has a card all the same, and one may keep no history.
      if (signal.aborted) throw error;
      return undefined;
    }
  };
  return new Map((await Promise.all(names.map(read))).filter((one) => one !== undefined));
}

/** Who has the copies of a node's data, and the lost nodes that it runs. */
function Copies({ row }: { row: NodeRecord }) {
  const copies = copiesOf([row]);
  const named = texts.nodes;
  return (
    <>
      {row.hosted_by && (
        <p class="small">
          <a href={link(["node", "copies"])}>
            <Name text={named.hostedBy(row.hosted_by)} max={300} />
          </a>
        </p>
      )}
      {copies.length > 0 && (
        <p class="small node-copies">
          <a href={link(["node", "copies"])}>{named.copies}</a>
          {copies.map((one) => (
            <span key={one.follower}>
              {one.follower !== undefined && <Name text={one.follower} />} <Badge tone={toneOf(one.state)}>{common.copyStates[one.state] ?? one.state}</Badge>
            </span>
          ))}
        </p>
      )}
      {hostedOf([row]).map((one) => (
        <p key={one.node} class="small">
          <a href={link(["node", "copies"])}>
            <Name text={named.hosts(one.node)} max={300} />
          </a>{" "}
          (<Since at={one.since} />)
        </p>
      ))}
    </>
  );
}

const TONES: Record<string, "good" | "warn" | "bad"> = { Running: "good", Suspect: "warn" };

function Card({ row, stats, series, alarms }: { row: NodeRecord; stats: Record<string, number> | undefined; series: Series | undefined; alarms: number }) {
  const named = texts.nodes;
  const stat = (name: string): string => compact(stats?.[`${name}.count`]);
  const facts: [string, string][] = [
    [named.connections, stat("connections")],
    [named.sessions, stat("sessions")],
    [named.subscriptions, stat("subscriptions")],
    [named.memory, bytes(stats?.["memory.used.count"])],
    [named.load, row.load1],
    [named.uptime, duration(secondsOf(row.uptime))],
  ];
  const running = row.node_status === "Running";
  return (
    <li class={`node-card ${running ? "" : "away"}`}>
      <header>
        <a href={link(["overview"], { node: row.node })}>
          <Name text={row.node} />
        </a>
        <span class="actions">
          {alarms > 0 && (
            <a href={link(["trouble"])} class="badge bad">
              {named.alarms(alarms)}
            </a>
          )}
          <Badge tone={TONES[row.node_status] ?? "bad"}>{common.nodeStates[row.node_status] ?? row.node_status}</Badge>
        </span>
      </header>
      {series && (
        <p class="node-traffic">
          <span>
            {named.in} <b>{rate(series.value("messages_received"))}</b>
          </span>
          <Sparkline values={series.column("messages_received")} />
          <span>
            {named.out} <b>{rate(series.value("messages_sent"))}</b>
          </span>
          <Sparkline values={series.column("messages_sent")} />
        </p>
      )}
      {running && (
        <dl>
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      <Copies row={row} />
      <p class="faint small">
        {named.version} {row.version || "–"}
      </p>
    </li>
  );
}

export function NodeCards({ nodes }: { nodes: Nodes }) {
  const running = nodes.nodes.filter((one) => one.node_status === "Running").map((one) => one.node);
  const names = running.length <= WITH_TRAFFIC ? running : [];
  const { data } = useData((signal) => traffic(names, signal), [names.join("\n")], EVERY);
  const drawn = nodes.nodes.length > 1 && nodes.nodes.length <= DRAWN;
  const { data: links } = useData(async (signal) => (drawn ? api.get<NodeLink[]>("/cluster_links", {}, signal) : undefined), [drawn], LINKS_EVERY);
  return (
    <Section title={texts.nodes.title}>
      {drawn && (
        <ClusterPicture
          links={links}
          nodes={nodes.nodes.map(({ node, node_status: status }) => ({
            name: node,
            status,
            connections: nodes.stats.get(node)?.["connections.count"],
            series: data?.get(node),
          }))}
        />
      )}
      <ul class="node-cards">
        {nodes.nodes.map((row) => (
          <Card
            key={row.node}
            row={row}
            stats={nodes.stats.get(row.node)}
            series={data?.get(row.node)}
            alarms={nodes.alarms.filter((alarm) => (alarm.node ?? row.node) === row.node).length}
          />
        ))}
      </ul>
    </Section>
  );
}
