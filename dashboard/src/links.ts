/** The messages between the nodes, as `/cluster_links` has them. */

import { texts } from "./texts/common";
import { duration, milliseconds } from "./format";

export interface NodeLink {
  node: string;
  to: string;
  /** open, opening or closed. */
  state: string;
  rate: number;
  sent: number;
  waiting: number;
  waiting_bytes: number;
  /** Seconds. */
  oldest: number | null;
  dropped: number;
}

/** From this age on, in seconds, messages do not only pass. */
const LATE = 1;

export function toneOf(link: NodeLink): "good" | "warn" | "bad" {
  if (link.state === "closed") return "bad";
  return link.state === "opening" || (link.oldest ?? 0) >= LATE ? "warn" : "good";
}

export function stateOf(link: NodeLink): string {
  const state = link.state === "open" && toneOf(link) === "warn" ? "late" : link.state;
  return texts.linkStates[state] ?? state;
}

export function ageOf(link: NodeLink): string {
  if (link.oldest === null) return "–";
  return link.oldest < 1 ? milliseconds(link.oldest * 1000) : duration(link.oldest);
}
