/** Figures of the history by their names: what they are called, and how they are written. */

import { byteRate, bytes, compact, milliseconds, rate } from "../../format";
import { texts } from "../../texts/overview";

export type Format = (value: number | null | undefined) => string;

const FORMATS: Record<string, Format> = {
  messages_received: rate,
  messages_sent: rate,
  messages_dropped: rate,
  deliveries_dropped: rate,
  refused: rate,
  bytes_received: byteRate,
  bytes_sent: byteRate,
  loop_lag: milliseconds,
  commit_time: milliseconds,
  disk_free: bytes,
  disk_used: bytes,
  memory: bytes,
};

const BINARY = new Set([bytes, byteRate]);

export const format = (name: string): Format => FORMATS[name] ?? compact;
export const title = (name: string): string => texts.columns[name] ?? name;
/** Whether the steps of its axis are powers of two. */
export const isBinary = (name: string): boolean => BINARY.has(format(name));
