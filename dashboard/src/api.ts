/** The HTTP API of the node: `/api/v4`, with the session cookie. */

import { computed, signal } from "@preact/signals";
import { noteDate } from "./clock";
import { texts } from "./texts/common";

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Query = Record<string, string | number | boolean | null | undefined>;

export interface Meta {
  page: number;
  limit: number;
  /** Of all pages; -1: not counted. */
  count: number;
  hasnext: boolean;
}

export interface Page<T> {
  rows: T[];
  meta: Meta;
}

/** The API's answer that it was not done. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: number,
    message: string,
    readonly method: string,
    readonly path: string,
    /** Where in the SQL that was given, both from 1. */
    readonly place?: { line: number; column: number },
  ) {
    super(message);
    this.name = "ApiError";
  }

  /** What a person can do about it. */
  get advice(): string {
    const { advice } = texts.errors;
    if (this.status === 403) return advice.forbidden;
    if (this.status === 413) return advice.tooLarge;
    if (this.status === 429) return advice.tooMany;
    return (this.status === 404 ? advice.byStatus404 : advice.byCode)[this.code] ?? "";
  }
}

/** No answer came: the node is away, or the network between. */
export class NodeAway extends Error {
  constructor() {
    super(texts.errors.away);
    this.name = "NodeAway";
  }
}

/** Whether the latest request was answered. */
export const away = signal(false);
/** Counts how often the node has come back: what was shown is then asked anew. */
export const returned = signal(0);

const missing = signal<Record<string, string[]>>({});
/** Nodes of a cluster that did not answer what the page has asked last: what is theirs is not shown. */
export const missingNodes = computed(() => [...new Set(Object.values(missing.value).flat())].sort());

export function forgetMissing(): void {
  missing.value = {};
}

function noteMissing(path: string, nodes: string[]): void {
  if (nodes.length === 0 && !(path in missing.value)) return;
  const { [path]: _, ...others } = missing.value;
  missing.value = nodes.length === 0 ? others : { ...others, [path]: nodes };
}

// Relative to the page, which stands at `/` of one port and at `/dashboard/` of another.
const ROOT = "/api/v4";
export const HEADER = { "X-Taipan-Dashboard": "1" };

/** Asks the person to log in, and resolves when that is done. Set by `session.ts`. */
let logIn: () => Promise<void> = () => Promise.reject(new ApiError(401, 104, texts.errors.ended, "GET", ""));

export function onExpiry(ask: () => Promise<void>): void {
  logIn = ask;
}

export function address(path: string, query: Query = {}, keepEmpty = false): string {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && (keepEmpty || value !== "")) asked.set(name, String(value));
  }
  const text = asked.toString();
  return `${ROOT}${path}${text ? `?${text}` : ""}`;
}

/** Browsers fold the first two away, however they are escaped; the last is a word of the API beside client ids. */
const TAKEN = [".", "..", "username"];

/** A piece of a path: a client id may be `a/b?c`, or `..`. The node takes one that ends in U+0000 for a name. */
export function part(text: string): string {
  return encodeURIComponent(text) + (TAKEN.includes(text) ? "%00" : "");
}

export interface Options {
  query?: Query | undefined;
  body?: unknown;
  signal?: AbortSignal | undefined;
  /** An empty value of the query is sent too. */
  keepEmpty?: boolean;
  /** False: a 401 is an answer like another (the login itself). */
  ask?: boolean;
}

function noteAnswer(): void {
  if (away.value) {
    away.value = false;
    returned.value += 1;
  }
}

/** One request; where the session has ended it waits until the person has logged in, and is made again. */
export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  for (;;) {
    const init: RequestInit = { method, headers: { ...HEADER }, credentials: "same-origin", cache: "no-store" };
    if (options.signal) init.signal = options.signal;
    if (options.body instanceof Blob) init.body = options.body;
    else if (options.body !== undefined) {
      init.body = JSON.stringify(options.body);
      init.headers = { ...HEADER, "Content-Type": "application/json" };
    }
    let response: Response;
    try {
      response = await fetch(address(path, options.query, options.keepEmpty), init);
    } catch (error) {
      if (options.signal?.aborted) throw error;
      away.value = true;
      throw new NodeAway();
    }
    // What a proxy in between says for a node that is away.
    if (response.status === 502 || response.status === 504) {
      away.value = true;
      throw new NodeAway();
    }
    noteAnswer();
    noteDate(response.headers.get("Date"));
    if (response.status !== 401 || options.ask === false) return response;
    await response.body?.cancel();
    await logIn();
    if (options.signal?.aborted) throw new DOMException("aborted", "AbortError");
  }
}

interface Envelope {
  code?: number;
  message?: string;
  line?: number;
  column?: number;
  data?: unknown;
  meta?: Partial<Meta> & { missing_nodes?: string[] };
}

/** What the answer holds; throws an `ApiError` where it says that it was not done. */
export async function open(response: Response, method: string, path: string): Promise<Envelope> {
  let envelope: Envelope;
  try {
    envelope = (await response.json()) as Envelope;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(response.status, -1, `${texts.errors.noJson} (${response.status})`, method, path);
  }
  if (!response.ok || envelope.code !== 0) {
    const message = envelope.message ?? `${response.status} ${response.statusText}`.trim();
    const { line, column } = envelope;
    const place = line !== undefined && column !== undefined ? { line, column } : undefined;
    throw new ApiError(response.status, envelope.code ?? -1, message, method, path, place);
  }
  if (method === "GET") noteMissing(path, envelope.meta?.missing_nodes ?? []);
  return envelope;
}

async function call<T>(method: string, path: string, options: Options = {}): Promise<T> {
  return (await open(await send(method, path, options), method, path)).data as T;
}

export const api = {
  get: <T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> => call<T>("GET", path, { query, signal }),
  post: <T>(path: string, body: unknown, query?: Query): Promise<T> => call<T>("POST", path, { body, query }),
  put: <T>(path: string, body: unknown = {}, query?: Query): Promise<T> => call<T>("PUT", path, { body, query }),
  del: <T>(path: string, query?: Query): Promise<T> => call<T>("DELETE", path, { query }),

  async page<T>(path: string, query: Query, signal?: AbortSignal): Promise<Page<T>> {
    const envelope = await open(await send("GET", path, { query, signal }), "GET", path);
    const rows = (envelope.data ?? []) as T[];
    const meta = envelope.meta ?? {};
    return {
      rows,
      meta: {
        page: meta.page ?? 1,
        limit: meta.limit ?? rows.length,
        count: meta.count ?? rows.length,
        hasnext: meta.hasnext ?? false,
      },
    };
  },

  /** A file of the API, saved by the browser under its name. */
  async download(path: string, name: string, query?: Query): Promise<void> {
    const response = await send("GET", path, { query });
    if (!response.ok) await open(response, "GET", path);
    save(await response.blob(), name);
  },
};

export function save(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
