/** What happened in a time: changes of people, alarms, clients that were refused. */

import { moment } from "../../format";
import { link } from "../../router";
import { ofAlarm } from "./behind";

export type Kind = "change" | "annotation" | "alarm" | "over" | "refused";

export interface Happening {
  /** Unix milliseconds. */
  at: number;
  kind: Kind;
  /** An alarm, a client ID, or an endpoint or command. */
  what: string;
  /** Its message, its reason, or what was changed. */
  detail: string;
  /** Who changed it; empty: nobody is known. */
  who: string;
  node: string;
  href: string | undefined;
}

export interface AuditRow {
  time: number;
  door: string;
  who: string;
  what: string;
  target: string;
  node: string;
}

export interface AnnotationRow {
  /** Unix milliseconds. */
  time: number;
  text: string;
  created_by: string;
}

export interface AlarmRow {
  name: string;
  message: string;
  /** Microseconds; the latter "infinity" while the alarm is active. */
  activate_at: number;
  deactivate_at: number | string;
}

export interface RefusedRow {
  clientid: string;
  reason: string;
  last_at: string;
  node: string;
}

const MICROSECONDS = 1_000;
/** An annotation is listed by itself, not also as a change. */
const ANNOTATES = ["POST /annotations", "annotate"];

/** In this time, both in Unix milliseconds, the latest first. */
export function happenings(
  changes: AuditRow[],
  alarms: { node: string; alarms: AlarmRow[] }[],
  refused: RefusedRow[],
  from: number,
  to: number,
  annotations: AnnotationRow[] = [],
): Happening[] {
  const found: Happening[] = changes.filter(({ what }) => !ANNOTATES.includes(what)).map(({ time, what, target, who, door, node }) => ({
    at: time,
    kind: "change",
    what,
    detail: target,
    who: who || door,
    node,
    href: link(["trouble", "audit"], { _gte_at: Math.floor(time / 1_000) - 1, _lte_at: Math.ceil(time / 1_000) + 1 }),
  }));
  for (const { time, text, created_by } of annotations) {
    found.push({ at: time, kind: "annotation", what: text, detail: "", who: created_by, node: "", href: undefined });
  }
  for (const { node, alarms: ofNode } of alarms) {
    for (const { name, message, activate_at, deactivate_at } of ofNode) {
      const alarm = { what: name, detail: message, who: "", node, href: ofAlarm(name) ?? link(["trouble"]) };
      found.push({ ...alarm, kind: "alarm", at: activate_at / MICROSECONDS });
      if (typeof deactivate_at === "number") found.push({ ...alarm, kind: "over", at: deactivate_at / MICROSECONDS });
    }
  }
  for (const { clientid, reason, last_at, node } of refused) {
    const href = clientid === "" ? link(["trouble", "refused"]) : link(["clients", clientid]);
    found.push({ at: moment(last_at) ?? 0, kind: "refused", what: clientid, detail: reason, who: "", node, href });
  }
  return found.filter(({ at }) => at >= from && at <= to).sort((left, right) => right.at - left.at);
}

/** Those that are drawn over charts: refusals are a line of their own there. */
export const MARKED: Partial<Record<Kind, string>> = { annotation: "--accent", change: "--line-4", alarm: "--bad", over: "--good" };
