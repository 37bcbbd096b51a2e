/** What the editor knows of the SQL without running it: its sources, what can be completed, and places in it. */

import type { Json } from "../../api";

export interface RuleEvent {
  event: string;
  title?: Json;
  columns: string[];
  test_columns: Record<string, Json>;
  sql_example: string;
}

export interface RuleFunction {
  name: string;
  min_args: number;
  max_args: number | null;
  kinds: string[];
}

export interface Catalogue {
  events: RuleEvent[];
  functions: RuleFunction[];
}

/** How `/rule_events` names what plain topics bring. */
export const PUBLISHED = "$events/message_publish";

const TOKEN = /--[^\n]*|'(?:[^']|'')*'?|"[^"]*"?|[A-Za-z_$@~+#/][\w$@~+#/.:-]*|\S/g;

interface Token {
  text: string;
  at: number;
}

function tokens(sql: string): Token[] {
  return Array.from(sql.matchAll(TOKEN), (found) => ({ text: found[0], at: found.index })).filter(({ text }) => !text.startsWith("--"));
}

function plain(text: string): string {
  return /^(['"]).*\1$/s.test(text) ? text.slice(1, -1) : text;
}

/** What FROM names. */
export function sourcesOf(sql: string): string[] {
  const found: string[] = [];
  let inside = false;
  for (const { text } of tokens(sql)) {
    if (/^from$/i.test(text)) inside = true;
    else if (/^where$/i.test(text) || text === ";") inside = false;
    else if (inside && text !== "," && plain(text) !== "") found.push(plain(text));
  }
  return found;
}

/** The events that these sources bring. */
export function eventsOf(sources: string[], catalogue: Catalogue): RuleEvent[] {
  const names = new Set(sources.map((one) => (one.startsWith("$events/") ? one : PUBLISHED)));
  if (names.size === 0) names.add(PUBLISHED);
  return catalogue.events.filter((one) => names.has(one.event));
}

/** An example of what this source brings, on a topic that it matches. */
export function exampleOf(source: string, catalogue: Catalogue): Record<string, Json> {
  const event = eventsOf([source], catalogue)[0];
  const columns = { ...event?.test_columns };
  if (!source.startsWith("$events/") && source !== "") columns["topic"] = source.replace(/[+#]/g, "x");
  return columns;
}

/** A place that the API names, both from 1 and counted in characters, in the text of the editor. */
export function offsetOf(text: string, place: { line: number; column: number }): number {
  const lines = text.split("\n");
  let at = 0;
  for (let line = 0; line < Math.min(place.line - 1, lines.length); line += 1) at += (lines[line]?.length ?? 0) + 1;
  const before = Array.from(lines[place.line - 1] ?? "").slice(0, place.column - 1);
  return Math.min(at + before.join("").length, text.length);
}

/** What is underlined for it: the word that begins there, one character at least. */
export function problemAt(text: string, place: { line: number; column: number }, message: string): { from: number; to: number; message: string } {
  let from = offsetOf(text, place);
  if (from >= text.trimEnd().length && from > 0) from = Math.max(0, text.trimEnd().length - 1);
  const word = /^(?:[\w$@.]+|'[^']*'?|"[^"]*"?)/.exec(text.slice(from))?.[0] ?? "";
  return { from, to: Math.min(text.length, from + Math.max(1, word.length)), message };
}

export interface Completion {
  label: string;
  type: "keyword" | "function" | "property" | "constant";
  detail?: string;
  apply?: string;
}

const KEYWORDS = [
  "SELECT", "FROM", "WHERE", "FOREACH", "DO", "INCASE", "AS", "AND", "OR", "NOT", "IN", "CASE", "WHEN", "THEN", "ELSE", "END", "div", "mod",
  "true", "false",
];

function signature({ kinds, max_args }: RuleFunction): string {
  return `(${kinds.join(", ")}${max_args === null ? ", …" : ""})`;
}

/** Names below an object, as JSON or as a text that is JSON. */
function below(value: Json | undefined, path: string[]): string[] {
  let found = value;
  for (const step of ["", ...path]) {
    if (typeof found === "string") {
      try {
        found = JSON.parse(found) as Json;
      } catch {
        return [];
      }
    }
    if (step === "") continue;
    found = found !== null && typeof found === "object" && !Array.isArray(found) ? found[step] : undefined;
  }
  if (typeof found === "string") return below(found, []);
  return found !== null && typeof found === "object" && !Array.isArray(found) ? Object.keys(found) : [];
}

/**
 * What may stand at this place: sources behind FROM; else columns of the sources' events, what the sample has below
 * them, functions and keywords.
 */
export function completions(
  sql: string,
  at: number,
  catalogue: Catalogue,
  sample: Record<string, Json> = {},
): { from: number; options: Completion[] } | null {
  const before = sql.slice(0, at);
  const word = /[\w$@][\w$@./]*$/.exec(before)?.[0] ?? "";
  const clause = tokens(before.slice(0, at - word.length))
    .map(({ text }) => text.toLowerCase())
    .filter((text) => /^(select|foreach|do|incase|from|where)$/.test(text))
    .at(-1);
  const comment = before.slice(before.lastIndexOf("\n") + 1).replace(/'[^']*'|"[^"]*"/g, "");
  if (comment.includes("--")) return null;
  const doubled = (comment.match(/"/g)?.length ?? 0) % 2 === 1;
  if ((comment.match(/'/g)?.length ?? 0) % 2 === 1 && clause !== "from") return null;
  if (clause === "from") {
    const quoted = doubled || comment.includes("'");
    const options: Completion[] = catalogue.events
      .filter(({ event }) => event !== PUBLISHED)
      .map(({ event }) => ({ label: event, type: "constant", apply: quoted ? event : `"${event}"` }));
    if (!quoted) options.push({ label: "WHERE", type: "keyword" });
    return { from: at - word.length, options };
  }
  if (doubled) return null;
  const dot = word.lastIndexOf(".");
  if (dot >= 0) {
    const [first = "", ...path] = word.slice(0, dot).split(".");
    const names = below(sample[first], path);
    return names.length === 0
      ? null
      : {
          from: at - (word.length - dot - 1),
          options: names.map((name) => ({ label: name, type: "property", ...(/^[A-Za-z_]\w*$/.test(name) ? {} : { apply: `'${name}'` }) })),
        };
  }
  const columns = new Set(eventsOf(sourcesOf(sql), catalogue).flatMap((one) => one.columns));
  return {
    from: at - word.length,
    options: [
      ...Array.from(columns, (label): Completion => ({ label, type: "property" })),
      ...catalogue.functions.map((one): Completion => ({ label: one.name, type: "function", detail: signature(one), apply: `${one.name}(` })),
      ...KEYWORDS.map((label): Completion => ({ label, type: "keyword" })),
    ],
  };
}
