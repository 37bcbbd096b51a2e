/** The list behind each figure, reason and alarm: who or what it is. */

import { link } from "../../router";

/** Where to look for a counter without clients, by the beginning of its name: the lists of clients do not have it. */
const OF_NOBODY: [string, string][] = [
  ["messages.dropped.no_subscribers", link(["top", "topics"])],
  ["rule_row_", link(["rules", "resources"])],
  ["bridge_", link(["rules", "resources"])],
  ["kafka_", link(["rules", "resources"])],
  ["rules_", link(["rules"])],
];

/** Whether the counter is of deliveries that a subscriber missed; else something was refused. */
export function isLost(counter: string): boolean {
  return counter.startsWith("delivery.dropped.") || counter.startsWith("delivery_");
}

/** The clients behind a reason of drops or refusals, by the name of its counter. */
export function behind(counter: string): string {
  const place = OF_NOBODY.find(([start]) => counter.startsWith(start));
  if (place) return place[1];
  if (isLost(counter)) return link(["top", "dropped"], { reason: counter });
  return link(["top", "refused"], { reason: counter });
}

/** What is known of a counter. `webhook_failed_<reason>` is about all whose names begin so. */
export function ofCounter<T>(known: ReadonlyMap<string, T>, counter: string): T | undefined {
  for (const [name, found] of known) {
    const [start, placeholder] = name.split("<");
    if (name === counter || (placeholder !== undefined && counter.startsWith(start ?? name))) return found;
  }
  return undefined;
}

/** The list behind a figure of the overview. */
export const OF_FIGURES: Record<string, string> = {
  messages_received: link(["top", "clients"], { by: "in" }),
  messages_sent: link(["top", "clients"], { by: "out" }),
  messages_dropped: link(["top", "topics"]),
  deliveries_dropped: link(["top", "dropped"]),
  bytes_received: link(["top", "clients"], { by: "in_oct" }),
  bytes_sent: link(["top", "clients"], { by: "out_oct" }),
  connections: link(["clients"], { conn_state: "connected" }),
  sessions: link(["clients"]),
  subscriptions: link(["subscriptions"]),
  topics: link(["topics"]),
  retained: link(["retained"]),
  loop_lag: link(["top", "clients"]),
  commit_time: link(["trouble", "slow"]),
  memory: link(["clients"], { sort: "-queued" }),
  disk_free: link(["node"]),
};

/** The page that shows the cause of an alarm, if there is one. */
export function ofAlarm(name: string): string | undefined {
  const resource = /^resource\/[^/]+\/(.+)\/down$/.exec(name)?.[1];
  if (resource !== undefined) return link(["rules", "resources", resource]);
  if (name.startsWith("replica") || name.startsWith("node_hosted/")) return link(["node", "copies"]);
  if (name.includes("memory")) return link(["clients"], { sort: "-queued" });
  if (name.startsWith("certificate")) return link(["node", "listeners"]);
  if (name.startsWith("node_down") || name.startsWith("nats_") || name.startsWith("cluster_")) return link(["node"]);
  return undefined;
}
