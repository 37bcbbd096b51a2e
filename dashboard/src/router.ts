/** The address: `#/clients/a%2Fb?connected=true`. All of a page's filters are in it. */

import { computed, signal } from "@preact/signals";
import { arrived, nextState } from "./scroll";

export interface Place {
  /** Decoded pieces of the path. */
  path: string[];
  query: Record<string, string>;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function parse(hash: string): Place {
  const text = hash.replace(/^#/, "").replace(/^\//, "");
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  return {
    path: path.split("/").filter((piece) => piece !== "").map(decoded),
    query: Object.fromEntries(new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1))),
  };
}

export function link(path: string[], query: Record<string, string | number | boolean | undefined> = {}): string {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") asked.set(name, String(value));
  }
  const text = asked.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const place = signal<Place>(parse(location.hash));
/** The first piece of the path: which page. */
export const pageName = computed(() => place.value.path[0] ?? "overview");

function read(): void {
  const next = parse(location.hash);
  arrived(next.path.join("/") !== place.value.path.join("/"));
  place.value = next;
}

addEventListener("hashchange", read);
addEventListener("popstate", read);

/** To another place, as a click on a link goes. */
export function go(path: string[], query: Record<string, string | number | boolean | undefined> = {}): void {
  location.hash = link(path, query);
  read();
}

/**
 * Change a part of the query; an empty value takes it out. `push` makes a step of the history: a filter that was chosen
 * does, one that is being typed does not.
 */
export function setQuery(changes: Record<string, string | undefined>, push = false): void {
  const query: Record<string, string> = { ...place.value.query };
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === "") delete query[name];
    else query[name] = value;
  }
  const address = link(place.value.path, query);
  if (address === location.hash) return;
  if (push) history.pushState(nextState(), "", address);
  else history.replaceState(history.state, "", address);
  read();
}
