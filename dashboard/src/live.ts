/** The live stream of a page: server-sent events of `/api/v4/live`, read with `fetch` so that it carries our header. */

import { signal } from "@preact/signals";
import { type Query, isAbort, send } from "./api";

export interface Frame {
  event: string;
  data: string;
}

/** Splits a stream of server-sent events into frames. */
export class FrameReader {
  private buffer = "";
  private event = "";
  private data: string[] = [];

  feed(text: string): Frame[] {
    this.buffer += text;
    const frames: Frame[] = [];
    const lines = this.buffer.split(/\r\n|\n|\r(?!$)/);
    this.buffer = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (this.data.length > 0) frames.push({ event: this.event || "message", data: this.data.join("\n") });
        this.event = "";
        this.data = [];
      } else if (!line.startsWith(":")) {
        const colon = line.indexOf(":");
        const name = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (name === "event") this.event = value;
        else if (name === "data") this.data.push(value);
      }
    }
    return frames;
  }
}

export type Handlers = Record<string, (data: never) => void>;
export type LiveState = "off" | "connecting" | "open" | "waiting";

/** Of the page that is open; shown by the shell. */
export const liveState = signal<LiveState>("off");

const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;
// The node sends at least a comment every 15 seconds.
const SILENCE = 40_000;

/** Milliseconds before the next try; somewhat random, so that many pages do not come back at once. */
export function waitBefore(attempt: number, random: number = Math.random()): number {
  return Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** attempt) * (0.75 + random / 2);
}

/** Reads until it is closed; connects again by itself. While the tab is not seen it does not read. */
export class LiveStream {
  private controller: AbortController | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private attempt = 0;
  private closed = false;

  constructor(
    private readonly query: Query,
    private readonly handlers: Handlers,
  ) {
    document.addEventListener("visibilitychange", this.seen);
    void this.read();
  }

  close(): void {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.seen);
    this.stop();
    liveState.value = "off";
  }

  private stop(): void {
    clearTimeout(this.timer);
    this.controller?.abort();
    this.controller = undefined;
  }

  private readonly seen = (): void => {
    if (document.hidden) this.stop();
    else if (this.controller === undefined) {
      clearTimeout(this.timer);
      this.attempt = 0;
      void this.read();
    }
  };

  private async read(): Promise<void> {
    if (this.closed || document.hidden) return;
    const controller = new AbortController();
    this.controller = controller;
    liveState.value = "connecting";
    let silence: ReturnType<typeof setTimeout> | undefined;
    const heard = (): void => {
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE);
    };
    try {
      const response = await send("GET", "/live", { query: this.query, signal: controller.signal, keepEmpty: true });
      if (!response.ok || !response.body) throw new Error(`${response.status}`);
      liveState.value = "open";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const frames = new FrameReader();
      heard();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        heard();
        for (const frame of frames.feed(value)) this.give(frame);
      }
    } catch (error) {
      // A stream that breaks is opened again, whatever broke it; a bug of ours is not to be hidden by that.
      if (error instanceof TypeError && controller === this.controller && !isAbort(error)) console.info("live:", error.message);
    } finally {
      clearTimeout(silence);
    }
    if (controller !== this.controller && this.controller !== undefined) return;
    this.controller = undefined;
    if (this.closed || document.hidden) return;
    liveState.value = "waiting";
    this.timer = setTimeout(() => void this.read(), waitBefore(this.attempt));
    this.attempt += 1;
  }

  private give(frame: Frame): void {
    this.attempt = 0;
    const handler = this.handlers[frame.event];
    if (handler) handler(JSON.parse(frame.data) as never);
  }
}
