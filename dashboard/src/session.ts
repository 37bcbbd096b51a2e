/** Who is logged in. */

import { computed, signal } from "@preact/signals";
import { ApiError, api, onExpiry, open, returned, send } from "./api";
import { go, parse, place, setQuery } from "./router";

export interface Login {
  username: string;
  role: string;
  expires_at: number | string;
  /** By OpenID Connect: the user has no password here. */
  openid: boolean;
}

/** Where a browser begins a login by OpenID Connect. */
export interface OpenId {
  label: string;
  url: string;
}

/** Undefined: not known yet. Null: nobody. */
export const login = signal<Login | null | undefined>(undefined);
/** The session ended while somebody was at work: the page stays as it is and a dialog asks. */
export const expired = signal(false);
/** Whether this user may change anything. The node decides; this says it before. */
export const mayChange = computed(() => login.value?.role === "administrator");
/** Whether this user may disconnect clients, ban them, silence alarms and publish. */
export const mayOperate = computed(() => mayChange.value || login.value?.role === "operator");

/** Requests that wait for a login. */
let waiting: { go: () => void; end: (reason: Error) => void }[] = [];

/** Of this browser: a login in one tab is one in all of them. */
const tabs = "BroadcastChannel" in globalThis ? new BroadcastChannel("taipan.login") : undefined;

function cameIn(who: Login): void {
  const another = login.value && login.value.username !== who.username;
  login.value = who;
  expired.value = false;
  for (const { go } of waiting) go();
  waiting = [];
  if (another) returned.value += 1;
}

/** Why the login by OpenID Connect failed that has led here. */
export const refused = signal<string | undefined>(place.value.query["openid"]);
const PLACE = "taipan.place";

/** Call before the browser leaves for the provider: this tab returns to the place where it is now. */
export function leave(): void {
  if (!place.value.path.length) return;
  try {
    sessionStorage.setItem(PLACE, location.hash);
  } catch {
    // No storage: the login leads to the overview.
  }
}

/** Call first: a login by OpenID Connect leads here, where the place of before is not in the address. */
export function comeBack(): void {
  if (refused.value !== undefined) setQuery({ openid: undefined });
  try {
    const kept = sessionStorage.getItem(PLACE);
    if (kept === null || place.value.path.length || refused.value !== undefined) return;
    sessionStorage.removeItem(PLACE);
    const { path, query } = parse(kept);
    go(path, query);
  } catch {
    // No storage, and so no place.
  }
}

/** Undefined: the node has no such login. */
export async function findOpenId(): Promise<OpenId | undefined> {
  const response = await send("GET", "/auth/openid", { ask: false });
  const { data } = await open(response, "GET", "/auth/openid");
  const found = data as Partial<OpenId>;
  return found.url ? { label: found.label ?? "", url: found.url } : undefined;
}

/** Other tabs that wait for a login continue. */
export function tellTabs(): void {
  tabs?.postMessage("in");
}

// In another tab. Where the question fails the dialog stays.
tabs?.addEventListener("message", () => {
  if (expired.value) void findOut().catch(() => undefined);
});

/**
 * Ask the node. Where a login that is known has ended, its page stays, with all that is typed, and a dialog asks.
 * `beside`: what is to be there too before the page is shown to who is logged in.
 */
export async function findOut(beside?: Promise<unknown>): Promise<void> {
  const response = await send("GET", "/auth", { ask: false });
  if (response.status === 401) {
    if (login.value) expired.value = true;
    else login.value = null;
  } else {
    const { data } = await open(response, "GET", "/auth");
    await beside;
    cameIn(data as Login);
  }
}

export async function logIn(username: string, password: string): Promise<void> {
  const response = await send("POST", "/auth", { body: { username, password }, ask: false });
  cameIn((await open(response, "POST", "/auth")).data as Login);
  tellTabs();
}

export async function logOut(): Promise<void> {
  let provider: { url: string } | undefined;
  try {
    provider = await api.del<{ url: string } | undefined>("/auth");
  } finally {
    forget();
  }
  if (provider) location.assign(provider.url);
}

/** To the login view, without the page that was open. */
export function forget(): void {
  expired.value = false;
  login.value = null;
  const reason = new ApiError(401, 104, "", "GET", "/auth");
  for (const { end } of waiting) end(reason);
  waiting = [];
}

onExpiry(() => {
  if (login.value) expired.value = true;
  return new Promise<void>((go, end) => waiting.push({ go, end }));
});
