/** The rules of one subject as lines that are edited: a client ID, a username, anonymous clients, or all clients. */

import { api, part } from "../../api";

export const KINDS = ["clientid", "username", "anonymous", "all"] as const;
export type Kind = (typeof KINDS)[number];

/** One subject each, without names in it. */
export const isNameless = (kind: unknown): boolean => kind === "all" || kind === "anonymous";

export interface Rule {
  topic: string;
  action: string;
  access: string;
  listener?: string;
}

/** `id`: of the line while it is edited, whatever its place. */
export interface Line extends Required<Rule> {
  id: number;
}

export const pathOf = (kind: Kind, name: string): string => (isNameless(kind) ? `/acl/$${kind}` : `/acl/${kind}/${part(name)}`);

/** What the API has as two rules is one line again: `pub`, and after it `sub` of the same. */
export function linesOf(rules: Rule[]): Line[] {
  const lines: Line[] = [];
  for (const { topic, action, access, listener = "" } of rules) {
    const last = lines[lines.length - 1];
    if (last && action === "sub" && last.action === "pub" && last.topic === topic && last.access === access && last.listener === listener) last.action = "pubsub";
    else lines.push({ id: lines.length, topic, action, access, listener });
  }
  return lines;
}

export const rulesOf = (lines: Line[]): Rule[] =>
  lines.map(({ topic, action, access, listener }) => ({ topic, action, access, ...(listener ? { listener } : {}) }));

const textOf = ({ topic, action, access, listener }: Rule): string => JSON.stringify([topic, action, access, listener ?? ""]);

export const same = (left: Line[], right: Line[]): boolean => left.length === right.length && left.every((line, at) => textOf(line) === textOf(right[at] as Line));

/** `lines` with the one at `from` taken to `to`. */
export function moved<T>(lines: T[], from: number, to: number): T[] {
  const next = [...lines];
  next.splice(to, 0, ...next.splice(from, 1));
  return next;
}

/** The place of the first line that says what an earlier one says, and of that one. */
export function repeated(lines: Line[]): [number, number] | undefined {
  const seen = new Map<string, number>();
  for (const [at, line] of lines.entries()) {
    const before = seen.get(textOf(line));
    if (before !== undefined) return [at, before];
    seen.set(textOf(line), at);
  }
  return undefined;
}

/** The place of the line that a message of the API is about. */
export function lineIn(message: string, lines: Line[]): number {
  return lines.findIndex(({ topic, listener }) => message.startsWith(`topic ${topic}: `) || (listener !== "" && message.startsWith("listener: ") && message.includes(`, ${listener};`)));
}

/** More are not edited in a page. */
export const MOST_LINES = 500;
const PART = 1_000;

/** All rules of a subject; undefined: more than are edited here. */
export async function readLines(kind: Kind, name: string, signal: AbortSignal): Promise<Line[] | undefined> {
  if (!isNameless(kind)) {
    const lines = linesOf(await api.get<Rule[]>(pathOf(kind, name), {}, signal));
    return lines.length > MOST_LINES ? undefined : lines;
  }
  const { rows, meta } = await api.page<Rule>(pathOf(kind, ""), { _page: 1, _limit: PART }, signal);
  const lines = linesOf(rows);
  return meta.hasnext || lines.length > MOST_LINES ? undefined : lines;
}
