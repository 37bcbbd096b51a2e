/** The node's clock: that of the browser may be wrong, and what the node says in times is by its own. */

import { signal } from "@preact/signals";

/** The header has whole seconds, and an answer takes its time: what is less is no difference. */
const LEAST = 30_000;

/** Milliseconds by which the node's clock is ahead of the browser's. */
export const ahead = signal(0);

/** `Date` of an answer that has just come. */
export function noteDate(date: string | null): void {
  const there = date === null ? NaN : Date.parse(date);
  if (Number.isNaN(there)) return;
  const found = there - Date.now();
  if (Math.abs(found) < LEAST) ahead.value = 0;
  else if (Math.abs(found - ahead.peek()) >= LEAST) ahead.value = found;
}

/** Unix milliseconds, by the node's clock. */
export function nodeNow(): number {
  return Date.now() + ahead.peek();
}
