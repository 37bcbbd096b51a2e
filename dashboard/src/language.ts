/**
 * The language of the texts: chosen by hand, otherwise the first of the browser's languages that the dashboard has.
 * English is part of each page. Another language is a chunk of its own, read before the first page is: `loadLanguage`.
 */

import { remember, remembered } from "./storage";

/** Each language by its own name. */
export const LANGUAGES = { en: "English", "zh-CN": "简体中文" } as const;
export type Language = keyof typeof LANGUAGES;
/** The files of `texts`. */
export type TextsName =
  | "access" | "clients" | "common" | "node" | "overview" | "publish" | "retained" | "rules" | "subscriptions" | "tool" | "top" | "topics" | "trouble";

const KEY = "taipan.language";

function isLanguage(name: string | null): name is Language {
  return name !== null && Object.hasOwn(LANGUAGES, name);
}

/** `wanted`: as in `navigator.languages`, the favourite first. Chinese of any region is served in simplified characters. */
export function languageOf(wanted: readonly string[]): Language {
  for (const one of wanted) {
    const name = one.toLowerCase().split("-")[0];
    if (name === "zh") return "zh-CN";
    if (name === "en") return "en";
  }
  return "en";
}

const kept = remembered(KEY);
/** By hand; undefined: as the browser has it. */
export const chosenLanguage: Language | undefined = isLanguage(kept) ? kept : undefined;

let current: Language = chosenLanguage ?? languageOf(navigator.languages);

/** The language of all texts that are drawn. */
export function language(): Language {
  return current;
}

/** Kept in this browser. The page is loaded again: pages make tables and forms of their texts when they are loaded. */
export function chooseLanguage(name: string): void {
  remember(KEY, isLanguage(name) ? name : null);
  location.reload();
}

const english = new Map<TextsName, object>();
let tables: Record<TextsName, object> | undefined;

/** The texts in the language of the page; before `loadLanguage` has ended they are English, and become the others. */
export function inLanguage<Texts extends object>(name: TextsName, texts: Texts): Texts {
  if (tables) return Object.assign(texts, tables[name]);
  english.set(name, texts);
  return texts;
}

/** Where the chunk cannot be read, as after an update of the node, the page is English. */
export async function loadLanguage(): Promise<void> {
  if (current === "zh-CN") {
    try {
      tables = (await import("./texts/zh")).tables;
      for (const [name, texts] of english) Object.assign(texts, tables[name]);
    } catch {
      current = "en";
    }
  }
  document.documentElement.lang = current;
}
