/** Who is logged in. */

import { computed, signal } from "@preact/signals";
import { ApiError, api, onExpiry, open, returned, send } from "./api";

export interface Login {
  username: string;
  role: "administrator" | "viewer";
  expires_at: number | string;
}

/** Undefined: not known yet. Null: nobody. */
export const login = signal<Login | null | undefined>(undefined);
/** The session ended while somebody was at work: the page stays as it is and a dialog asks. */
export const expired = signal(false);
/** Whether this user may change anything. The node decides; this says it before. */
export const mayChange = computed(() => login.value?.role === "administrator");

/** Requests that wait for a login. */
let waiting: { go: () => void; end: (reason: Error) => void }[] = [];

/** Ask the node. `beside`: what is to be there too before the page is shown to who is logged in. */
export async function findOut(beside?: Promise<unknown>): Promise<void> {
  const response = await send("GET", "/auth", { ask: false });
  if (response.status === 401) login.value = null;
  else {
    const { data } = await open(response, "GET", "/auth");
    await beside;
    login.value = data as Login;
  }
}

export async function logIn(username: string, password: string): Promise<void> {
  const response = await send("POST", "/auth", { body: { username, password }, ask: false });
  const data = (await open(response, "POST", "/auth")).data as Login;
  const another = login.value && login.value.username !== data.username;
  login.value = data;
  expired.value = false;
  for (const { go } of waiting) go();
  waiting = [];
  if (another) returned.value += 1;
}

export async function logOut(): Promise<void> {
  try {
    await api.del("/auth");
  } finally {
    forget();
  }
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
