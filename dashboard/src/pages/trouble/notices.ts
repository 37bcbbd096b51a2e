/** Targets of alarms and silences: their records, and what is shown of them. */

import type { Json } from "../../api";
import type { Values } from "../../components/form";

export interface Status {
  node: string;
  state: "ready" | "sending" | "failing" | "disabled";
  sent: number;
  failed: number;
  dropped: number;
  waiting: number;
  last_sent_at: number | null;
  last_error: string;
  last_error_at: number | null;
}

export interface Target {
  id: string;
  type: string;
  enabled: boolean;
  alarms: string[];
  config: Record<string, Json>;
  status: Status[];
}

export interface Silence {
  id: string;
  alarms: string;
  /** Unix seconds. */
  until: number;
  reason: string;
  created_by: string;
  created_at: number;
}

export interface Overall {
  state: Status["state"];
  sent: number;
  dropped: number;
  waiting: number;
  error: string;
  errorAt: number | null;
}

const WORST: Status["state"][] = ["failing", "sending", "ready", "disabled"];

/** The status over all nodes: the worst state, the sums, the latest error. */
export function overall(target: Target): Overall {
  const states = target.status.map((one) => one.state);
  const latest = target.status.reduce<Status | undefined>(
    (best, one) => (one.last_error_at !== null && one.last_error_at > (best?.last_error_at ?? 0) ? one : best),
    undefined,
  );
  const sum = (of: (one: Status) => number): number => target.status.reduce((all, one) => all + of(one), 0);
  return {
    state: WORST.find((state) => states.includes(state)) ?? "disabled",
    sent: sum((one) => one.sent),
    dropped: sum((one) => one.dropped),
    waiting: sum((one) => one.waiting),
    error: latest?.last_error ?? "",
    errorAt: latest?.last_error_at ?? null,
  };
}

/** The body of a request from the values of the form. */
export function targetBody({ id: _, type: __, enabled, alarms, ...config }: Values): Record<string, Json> {
  const given = Object.fromEntries(Object.entries(config).filter(([, value]) => value !== undefined)) as Record<string, Json>;
  if (typeof given["qos"] === "string") given["qos"] = Number(given["qos"]);
  return { enabled: enabled === true, alarms: alarms as Json, config: given };
}

/** A moment as `<input type="datetime-local">` has it: local time, to the minute. */
export function localInput(at: number): string {
  const date = new Date(at);
  return new Date(at - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export interface Threshold {
  name: string;
  /** null: no alarm. */
  value: number | null;
  default: number | null;
  unit: string;
  below: boolean;
  current: number | null;
}
