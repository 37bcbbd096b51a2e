/** What the search over everything finds, without a screen. */

import { link } from "../router";

export interface Found {
  /** A name of `texts.search.kinds`. */
  kind: "page" | "client" | "username" | "topic" | "rule" | "resource" | "setting" | "history" | "lookup";
  text: string;
  /** What else helps to tell it from others. */
  about?: string;
  href: string;
}

export interface Rule {
  id: string;
  description: string;
  rawsql: string;
}

export interface Resource {
  id: string;
  type: string;
  description?: string;
}

export interface Setting {
  key: string;
  description: string;
}

/** What is read once, when the search opens. */
export interface Known {
  pages: Found[];
  rules: Rule[];
  resources: Resource[];
  settings: Setting[];
}

/** What the node is asked for at each text. */
export interface Asked {
  clients: { clientid: string; username: string }[];
  users: { clientid: string; username: string }[];
  topics: { topic: string }[];
}

/** Of each kind at most. */
const MOST = 6;

function has(text: string, words: string[]): boolean {
  const low = text.toLowerCase();
  return words.every((word) => low.includes(word));
}

/** Those that begin with the text come first. */
function best<T>(rows: T[], name: (row: T) => string, text: string): T[] {
  const begins = (row: T): number => (name(row).toLowerCase().startsWith(text) ? 0 : 1);
  return rows.sort((left, right) => begins(left) - begins(right)).slice(0, MOST);
}

export function found(text: string, known: Known, asked: Asked): Found[] {
  const search = text.trim();
  if (search === "") return known.pages;
  const low = search.toLowerCase();
  const words = low.split(/\s+/);
  const pages = best(known.pages.filter((one) => has(`${one.text} ${one.about ?? ""}`, words)), (one) => one.text, low);
  const names = new Set(asked.clients.map((one) => one.clientid));
  const clients = asked.clients.map((one): Found => ({ kind: "client", text: one.clientid, about: one.username, href: link(["clients", one.clientid]) }));
  const users = asked.users
    .filter((one) => !names.has(one.clientid))
    .map((one): Found => ({ kind: "username", text: one.clientid, about: one.username, href: link(["clients", one.clientid]) }));
  const topics = asked.topics.map(({ topic }): Found => ({ kind: "topic", text: topic, href: link(["topics", "topic"], { topic }) }));
  const rules = best(known.rules.filter((one) => has(`${one.id} ${one.description} ${one.rawsql}`, words)), (one) => one.id, low).map(
    (one): Found => ({ kind: "rule", text: one.id, about: one.description || one.rawsql, href: link(["rules", "rule", one.id]) }),
  );
  const resources = best(known.resources.filter((one) => has(`${one.id} ${one.type} ${one.description ?? ""}`, words)), (one) => one.id, low).map(
    (one): Found => ({ kind: "resource", text: one.id, about: one.type, href: link(["rules", "resources", one.id]) }),
  );
  const settings = best(known.settings.filter((one) => has(`${one.key} ${one.description}`, words)), (one) => one.key, low).map(
    (one): Found => ({ kind: "setting", text: one.key, about: one.description, href: link(["node", "configuration"], { search: one.key }) }),
  );
  const always: Found[] = [{ kind: "history", text: search, href: link(["clients", search]) }];
  if (!/[+#]/.test(search)) always.push({ kind: "lookup", text: search, href: link(["topics", "topic"], { topic: search }) });
  return [...pages, ...clients, ...users, ...topics, ...rules, ...resources, ...settings, ...always];
}

/** How the tree of topics is asked for those that begin with a text: the level above, and how the last one begins. */
export function branch(text: string): { prefix?: string; below?: string; level: string } {
  const at = text.lastIndexOf("/");
  if (at < 0) return { level: text };
  const level = text.slice(at + 1);
  return at === 0 ? { below: "/", level } : { prefix: text.slice(0, at), level };
}
