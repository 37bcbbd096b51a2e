/** Figures and times as a reader wants them, in the language of the page. */

import { language } from "./language";
import { texts } from "./texts/common";

// Figures are written by ourselves, and what is left to `Intl` is made when it is wanted: each object of `Intl` takes
// the browser milliseconds, and all of them stood before the first view.
/** A text of digits, with a comma before each three. */
function grouped(digits: string): string {
  const point = digits.indexOf(".");
  const before = point < 0 ? digits : digits.slice(0, point);
  return before.replace(/\B(?=(\d{3})+$)/g, ",") + (point < 0 ? "" : digits.slice(point));
}

function whole(value: number): string {
  return grouped(value.toFixed(0));
}

/** Three significant digits. */
function few(value: number): string {
  const rounded = Number(value.toPrecision(3));
  if (Number.isInteger(rounded)) return whole(rounded);
  const digits = Math.min(100, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded)))));
  return grouped(rounded.toFixed(digits).replace(/\.?0+$/, ""));
}

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Number.isInteger(value) ? whole(value) : few(value);
}

/** 12,345 as 12.3K, in Chinese as 1.2万: for figures that change while one looks. */
export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) < 10_000) return number(value);
  const { step, names } = texts.units.short;
  let unit = 1;
  // What is rounded to the next unit is one of it.
  const tenths = (): number => Math.round(Math.abs(value) / (step ** unit / 10));
  while (tenths() >= 10 * step && unit < names.length) unit += 1;
  return `${value < 0 ? "-" : ""}${tenths() / 10}${names[unit - 1]}`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let left = value;
  let unit = 0;
  while (Math.abs(left) >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? whole(left) : few(left)} ${UNITS[unit]}`;
}

export function rate(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : texts.units.perSecond(compact(value));
}

export function byteRate(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : texts.units.perSecond(bytes(value));
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value >= 10_000 ? `${few(value / 1000)} ${texts.units.second}` : `${few(value)} ${texts.units.millisecond}`;
}

export function percent(part: number, of: number): string {
  return of > 0 ? texts.units.percent(few((100 * part) / of)) : "–";
}

/** 93784 as `1 d 2 h`: the two largest units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const parts: string[] = [];
  let left = Math.max(0, Math.floor(seconds));
  const { units } = texts;
  for (const [size, unit] of [[86_400, units.day], [3_600, units.hour], [60, units.minute], [1, units.second]] as const) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0) parts.push(`${count} ${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ") || `0 ${units.second}`;
}

const NAMED: Record<string, number> = { day: 86_400, hour: 3_600, minute: 60, second: 1 };

/** `1 days, 2 hours, 3 minutes` of the API as the same in seconds. */
export function secondsOf(text: string): number {
  let seconds = 0;
  for (const [, count, unit] of text.matchAll(/(\d+) (day|hour|minute|second)s?/g)) seconds += Number(count) * (NAMED[unit ?? ""] ?? 0);
  return seconds;
}

const SIZES: Record<string, number> = { "": 1, B: 1, K: 1024, M: 1024 ** 2, G: 1024 ** 3, T: 1024 ** 4 };

/** `107.43M` of the API as bytes. Undefined: it is no size. */
export function sizeOf(text: string): number | undefined {
  const found = /^([\d.]+)([BKMGT]?)B?$/.exec(text);
  const unit = SIZES[found?.[2] ?? ""];
  return found && unit !== undefined ? Number(found[1]) * unit : undefined;
}

let relative: Intl.RelativeTimeFormat | undefined;

/** Both in unix milliseconds. */
export function ago(at: number, now: number): string {
  const seconds = Math.round((at - now) / 1000);
  const distance = Math.abs(seconds);
  if (distance < 5) return texts.time.now;
  relative ??= new Intl.RelativeTimeFormat(language(), { numeric: "auto" });
  if (distance < 60) return relative.format(seconds, "second");
  if (distance < 3_600) return relative.format(Math.trunc(seconds / 60), "minute");
  if (distance < 86_400) return relative.format(Math.trunc(seconds / 3_600), "hour");
  return relative.format(Math.trunc(seconds / 86_400), "day");
}

const two = (value: number): string => String(value).padStart(2, "0");
/** By its difference to UTC: names of this browser's zone, in summer and in winter. */
const zones = new Map<number, string>();

function zone(when: Date): string {
  const offset = when.getTimezoneOffset();
  let name = zones.get(offset);
  if (name === undefined) {
    const parts = new Intl.DateTimeFormat(language(), { timeZoneName: "short" }).formatToParts(when);
    name = parts.find((part) => part.type === "timeZoneName")?.value ?? "";
    zones.set(offset, name);
  }
  return name;
}

/** `2026-01-31 13:05:09 UTC`, in the browser's time zone. */
export function exact(at: number): string {
  const when = new Date(at);
  const day = `${String(when.getFullYear()).padStart(4, "0")}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return `${day} ${clock(at)} ${zone(when)}`.trim();
}

/** `13:05:09`. */
export function clock(at: number): string {
  const when = new Date(at);
  return `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
}

/**
 * Unix milliseconds of what the API has: unix seconds, milliseconds or microseconds (alarms), ISO 8601 with its zone, or
 * the node's own `YYYY-MM-DD HH:mm:ss`, which is read as of this browser's zone. Undefined: it is no time.
 */
export function moment(value: number | string | null | undefined): number | undefined {
  if (value === null || value === undefined || value === "") return undefined;
  if (typeof value === "number") {
    if (value <= 0) return undefined;
    if (value < 1e11) return value * 1000;
    return value < 1e14 ? value : value / 1000;
  }
  if (/^\d+(\.\d+)?$/.test(value)) return moment(Number(value));
  const parsed = Date.parse(value.replace(" ", "T"));
  return Number.isNaN(parsed) ? undefined : parsed;
}
