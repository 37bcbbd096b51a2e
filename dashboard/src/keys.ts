/** The keyboard. */

import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { go } from "./router";
import { pages } from "./routes";

export const helpOpen = signal(false);
/** The search over everything. */
export const searchOpen = signal(false);
export const SEARCH_KEY = /^(Mac|iP)/.test(navigator.platform) ? "⌘ K" : "Ctrl K";

interface Key {
  key: string;
  title: string;
}

/** Keys of the page that is open, for the help. */
export const pageKeys = signal<Key[]>([]);
const actions = new Map<string, () => void>();

/** A key of this page, from when the page is drawn. Not while a field has the focus. */
export function useKey(key: string, title: string, act: () => void): void {
  const current = useRef(act);
  current.current = act;
  useLayoutEffect(() => {
    actions.set(key, () => current.current());
    pageKeys.value = [...pageKeys.value, { key, title }];
    return () => {
      actions.delete(key);
      pageKeys.value = pageKeys.value.filter((one) => one.key !== key);
    };
  }, [key, title]);
}

function typing(event: KeyboardEvent): boolean {
  // Inside an editor the target is its host, so the real one is asked.
  const [target] = event.composedPath();
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

let awaitsPage = 0;

function onKey(event: KeyboardEvent): void {
  // Also while one types in a field; not over a dialog, which may hold what was typed.
  if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
    if (document.querySelector("dialog[open]")) return;
    event.preventDefault();
    searchOpen.value = true;
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
  if (typing(event)) {
    const [target] = event.composedPath();
    if (event.key === "Escape" && target instanceof HTMLElement && target.hasAttribute("data-search")) target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (awaitsPage > Date.now()) {
    awaitsPage = 0;
    const page = pages.find((one) => one.key === event.key);
    if (page) {
      event.preventDefault();
      go([page.name]);
    }
    return;
  }
  if (event.key === "g") awaitsPage = Date.now() + 1_500;
  else if (event.key === "?") helpOpen.value = true;
  else if (event.key === "/") {
    const field = document.querySelector<HTMLInputElement>("[data-search]");
    if (!field) return;
    event.preventDefault();
    field.focus();
    field.select();
  } else {
    const act = actions.get(event.key);
    if (!act) return;
    event.preventDefault();
    act();
  }
}

export function listenToKeys(): void {
  addEventListener("keydown", onKey);
}
