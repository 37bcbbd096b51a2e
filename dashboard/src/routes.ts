/** The pages: one line each. The rest of the path and the query belong to the page. */

import type { ComponentType } from "preact";

export type PageModule = { default: ComponentType };

export interface PageRoute {
  name: keyof typeof import("./texts/common").texts.pages;
  /** After `g`. */
  key: string;
  load: () => Promise<PageModule>;
}

export const pages: PageRoute[] = [
  { name: "overview", key: "o", load: () => import("./pages/overview") },
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
