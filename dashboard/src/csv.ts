/** Lists as CSV, RFC 4180. */

/** A program for tables takes these for a formula, which strangers may have named their clients. */
const FORMULA = /^[=+\-@\t\r]/;

function field(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function csv(titles: string[], rows: unknown[][]): string {
  return [titles, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}
