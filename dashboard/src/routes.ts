/** The pages: one line each. The rest of the path and the query belong to the page. */

import type { ComponentType } from "preact";

type PageModule = { default: ComponentType };

export interface PageRoute {
  name: keyof typeof import("./texts/common").texts.pages;
  /** After `g`. */
  key: string;
  load: () => Promise<PageModule>;
}

const loaded = new Map<string, ComponentType>();

/** The page of this name, where it has been read. */
export function pageOf(name: string): ComponentType | undefined {
  return loaded.get(name);
}

/** Read the page of this name; what is no page's is none's to read. Rejects where its program cannot be read. */
export async function loadPage(name: string): Promise<void> {
  const route = pages.find((one) => one.name === name);
  if (route && !loaded.has(name)) loaded.set(name, (await route.load()).default);
}

export const pages: PageRoute[] = [
  { name: "overview", key: "o", load: () => import("./pages/overview") },
  { name: "top", key: "l", load: () => import("./pages/top") },
  { name: "clients", key: "c", load: () => import("./pages/clients") },
  { name: "topics", key: "t", load: () => import("./pages/topics") },
  { name: "subscriptions", key: "s", load: () => import("./pages/subscriptions") },
  { name: "retained", key: "m", load: () => import("./pages/retained") },
  { name: "rules", key: "r", load: () => import("./pages/rules") },
  { name: "tool", key: "w", load: () => import("./pages/tool") },
  { name: "access", key: "a", load: () => import("./pages/access") },
  { name: "trouble", key: "p", load: () => import("./pages/trouble") },
  { name: "node", key: "n", load: () => import("./pages/node") },
];
