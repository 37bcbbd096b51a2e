/** The time range of charts, in the address: `?range=week`, or `?from=…&to=…` in Unix milliseconds, as the API has them. */

import { useComputed } from "@preact/signals";
import { clock, exact } from "./format";
import { place, setQuery } from "./router";

export const MINUTE = 60_000;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

/** Those that end now, by their names in the address. */
export const RANGES: Record<string, number> = { "10m": 10 * MINUTE, hour: HOUR, day: DAY, week: 7 * DAY, month: 30 * DAY };
export type Resolution = "second" | "minute" | "ten_minutes";
/** Milliseconds from one point to the next. */
export const STEPS: Record<Resolution, number> = { second: 1_000, minute: MINUTE, ten_minutes: 10 * MINUTE };

export interface Range {
  /** Undefined: an absolute one. */
  name: string | undefined;
  /** Milliseconds. */
  span: number;
  /** Of an absolute one, Unix milliseconds. */
  from?: number;
  to?: number;
}

const LATEST = 253_402_300_799_999;

function time(text: string | undefined): number | undefined {
  if (text === undefined || !/^\d{1,15}$/.test(text)) return undefined;
  return Math.min(Number(text), LATEST);
}

/** What is not a range is the usual one. */
export function rangeOf(query: Record<string, string>, usual = "10m"): Range {
  const [from, to] = [time(query["from"]), time(query["to"])];
  if (from !== undefined && to !== undefined && to > from) return { name: undefined, span: to - from, from, to };
  const asked = query["range"] ?? usual;
  const name = Object.hasOwn(RANGES, asked) ? asked : usual;
  return { name, span: RANGES[name] ?? HOUR };
}

/** The resolution of a range that ends now; of an absolute one the node chooses the finest that it still has. */
export function resolutionOf({ name, span }: Range): Resolution | undefined {
  if (name === undefined) return undefined;
  if (span <= HOUR) return "second";
  return span <= DAY ? "minute" : "ten_minutes";
}

/** How much earlier the range is with which this one is compared: a day, or a week. Undefined: no node keeps as much. */
export function earlier(span: number): number | undefined {
  if (span <= DAY) return DAY;
  return span <= 7 * DAY ? 7 * DAY : undefined;
}

/** The least that can be chosen: some points. */
export const SHORTEST = 10_000;

/** The query of an absolute range. `from` and `to` may be in any order. */
export function absolute(from: number, to: number): Record<string, string | undefined> {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  const more = Math.max(0, SHORTEST - (high - low)) / 2;
  return { range: undefined, from: String(Math.floor(low - more)), to: String(Math.ceil(high + more)), moment: undefined };
}

/** The range of this page. */
export function useRange(usual = "10m"): Range {
  const { value } = useComputed(() => {
    const { query } = place.value;
    return [query["range"], query["from"], query["to"]].join(" ");
  });
  const [range = "", from = "", to = ""] = value.split(" ");
  return rangeOf({ ...(range && { range }), ...(from && { from }), ...(to && { to }) }, usual);
}

export function chooseRange(name: string, usual = "10m"): void {
  setQuery({ range: name === usual ? undefined : name, from: undefined, to: undefined, moment: undefined }, true);
}

export function chooseSpan(from: number, to: number): void {
  setQuery(absolute(from, to), true);
}

/** A moment of a chart: with its date where the chart shows more than a part of a day. */
export function atOf(span: number): (at: number) => string {
  return span > 20 * HOUR ? exact : clock;
}

/** Unix milliseconds as a field for date and time has them, in this browser's zone, with seconds. */
export function toField(at: number): string {
  const local = new Date(at - new Date(at).getTimezoneOffset() * MINUTE);
  return Number.isNaN(local.getTime()) ? "" : local.toISOString().slice(0, 19);
}
