/** Copies of the nodes' data, from the records of `/nodes`. */

export interface Copy {
  follower: string;
  state: string;
  behind_batches: number;
  behind_bytes: number;
  /** The local time of the node; null: unknown, because the node is stopped. */
  since: string | null;
}

export interface NodeWithCopies {
  node: string;
  /** Absent: the node keeps no copies of its data (`cluster.replicas`). */
  replicas?: Copy[];
  /** The lost nodes that this node runs from their copies. */
  hosts?: { node: string; since: string; owed: Record<string, number> }[];
  hosted_by?: string;
}

/** A row of the table of copies. Without a follower: no node has a copy, or is about to. */
export interface CopyRow extends Omit<Copy, "follower"> {
  node: string;
  follower: string | undefined;
}

export function copiesOf(nodes: NodeWithCopies[]): CopyRow[] {
  return nodes.flatMap(({ node, replicas, hosted_by: host }): CopyRow[] => {
    if (replicas === undefined) return [];
    // A node that runs from its copy moves its data away, and may have no other copy.
    if (replicas.length === 0 && !host) return [{ node, follower: undefined, state: "none", behind_batches: 0, behind_bytes: 0, since: null }];
    return replicas.map((one) => ({ ...one, node }));
  });
}

export interface HostedRow {
  node: string;
  host: string;
  since: string | null;
  owed: Record<string, number>;
}

export function hostedOf(nodes: NodeWithCopies[]): HostedRow[] {
  return nodes.flatMap(({ node: host, hosts }) => (hosts ?? []).map((one) => ({ ...one, host })));
}

export function toneOf(state: string): "good" | "warn" | "bad" {
  if (state === "in_sync") return "good";
  return state === "absent" || state === "none" ? "bad" : "warn";
}
