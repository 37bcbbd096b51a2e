/** What `/monitor` tells of drops and refusals, as a list wants it. */

import type { Series } from "../../series";

export interface ReasonTotal {
  reason: string;
  /** A rate times the length of its point: about how many. */
  count: number;
  /** Unix milliseconds of the latest point that had any. */
  last: number;
}

/** By reason, the most frequent first. */
export function totals({ at, step, drops }: Series): ReasonTotal[] {
  const found: ReasonTotal[] = [];
  for (const [reason, rates] of Object.entries(drops)) {
    let count = 0;
    let last = 0;
    rates.forEach((rate, index) => {
      if (rate === null || rate <= 0) return;
      count += (rate * step) / 1_000;
      last = at[index] ?? last;
    });
    if (count > 0) found.push({ reason, count, last });
  }
  return found.sort((left, right) => right.count - left.count);
}
