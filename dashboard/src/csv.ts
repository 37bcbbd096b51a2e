/** Lists as CSV, RFC 4180. */

/**
 * A program for tables takes these for a formula, which strangers may have named their clients. Where the program
 * separates by semicolons or tabs, whatever the quotes, a formula may begin behind one of them too.
 */
const FORMULA = /(^|[;\t\r\n])(?=\s*[=+\-@\uFF1D\uFF0B\uFF0D\uFF20])|^(?=[\t\r])/g;

function field(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const safe = text.replace(FORMULA, "$1'");
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function csv(titles: string[], rows: unknown[][]): string {
  return [titles, ...rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}
