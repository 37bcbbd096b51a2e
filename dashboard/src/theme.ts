/** Light, dark, or as the system has it. `public/theme.js` sets it before the first paint. */

import { effect, signal } from "@preact/signals";
import { remember, remembered } from "./storage";

export type Theme = "system" | "light" | "dark";
const KEY = "taipan.theme";

const system = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", (event) => (systemDark.value = event.matches));

const chosen = remembered(KEY);
export const theme = signal<Theme>(chosen === "dark" || chosen === "light" ? chosen : "system");

export function isDark(): boolean {
  return theme.value === "system" ? systemDark.value : theme.value === "dark";
}

effect(() => {
  remember(KEY, theme.value === "system" ? null : theme.value);
  if (theme.value === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme.value;
});
