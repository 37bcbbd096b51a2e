/** Figures and times as a reader wants them. */

const locale = "en";
const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const few = new Intl.NumberFormat(locale, { maximumSignificantDigits: 3 });

export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Number.isInteger(value) ? whole.format(value) : few.format(value);
}

/** 12,345 as 12.3K: for figures that change while one looks. */
export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return Math.abs(value) < 10_000 ? number(value) : short.format(value);
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
  return `${unit === 0 ? whole.format(left) : few.format(left)} ${UNITS[unit]}`;
}

export function rate(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${compact(value)}/s`;
}

export function byteRate(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${bytes(value)}/s`;
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value >= 10_000 ? `${few.format(value / 1000)} s` : `${few.format(value)} ms`;
}

export function percent(part: number, of: number): string {
  return of > 0 ? `${few.format((100 * part) / of)} %` : "–";
}

/** 93784 as `1 d 2 h`: the two largest units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const parts: string[] = [];
  let left = Math.max(0, Math.floor(seconds));
  for (const [size, unit] of [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]] as const) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0) parts.push(`${count} ${unit}`);
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

const relative = new Intl.RelativeTimeFormat(locale, { numeric: "auto" });

/** Both in unix milliseconds. */
export function ago(at: number, now: number): string {
  const seconds = Math.round((at - now) / 1000);
  const distance = Math.abs(seconds);
  if (distance < 5) return "now";
  if (distance < 60) return relative.format(seconds, "second");
  if (distance < 3_600) return relative.format(Math.trunc(seconds / 60), "minute");
  if (distance < 86_400) return relative.format(Math.trunc(seconds / 3_600), "hour");
  return relative.format(Math.trunc(seconds / 86_400), "day");
}

const exactFormat = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const clockFormat = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium" });
const zone = new Intl.DateTimeFormat(locale, { timeZoneName: "short" });

/** `2026-01-31 13:05:09 UTC`, in the browser's time zone. */
export function exact(at: number): string {
  const name = zone.formatToParts(at).find((part) => part.type === "timeZoneName")?.value ?? "";
  return `${exactFormat.format(at)} ${name}`.trim();
}

/** `13:05:09`. */
export function clock(at: number): string {
  return clockFormat.format(at);
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
