/** What `/monitor` tells of drops and refusals, as a chart and a list want it. */

import type { Series } from "../../components/chart";

export interface Monitor {
  resolution: "second" | "minute";
  columns: string[];
  points: number[][];
  /** Unix milliseconds. */
  gaps: [number, number][];
  /** A second, one number for each point. */
  drops: Record<string, number[]>;
}

export interface ReasonTotal {
  reason: string;
  /** A rate times the length of its point: about how many. */
  count: number;
  /** Unix milliseconds of the latest point that had any. */
  last: number;
}

/** By reason, the most frequent first. */
export function totals(monitor: Monitor): ReasonTotal[] {
  const seconds = monitor.resolution === "minute" ? 60 : 1;
  const at = monitor.columns.indexOf("at");
  const found: ReasonTotal[] = [];
  for (const [reason, rates] of Object.entries(monitor.drops)) {
    let count = 0;
    let last = 0;
    rates.forEach((rate, index) => {
      if (rate <= 0) return;
      count += rate * seconds;
      last = monitor.points[index]?.[at] ?? last;
    });
    if (count > 0) found.push({ reason, count, last });
  }
  return found.sort((left, right) => right.count - left.count);
}

/** Times and lines of some reasons; where nothing is known a line is broken. */
export function withGaps(monitor: Monitor, reasons: string[]): { at: number[]; series: Series[] } {
  const column = monitor.columns.indexOf("at");
  const times = monitor.points.map((point) => point[column] ?? 0);
  const at: number[] = [];
  const from: (number | null)[] = [];
  let gap = 0;
  times.forEach((time, index) => {
    for (let next = monitor.gaps[gap]; next && next[0] < time; next = monitor.gaps[gap]) {
      if (at.length > 0) {
        at.push(next[0]);
        from.push(null);
      }
      gap += 1;
    }
    at.push(time);
    from.push(index);
  });
  const series = reasons.map((reason) => ({
    label: reason,
    values: from.map((index) => (index === null ? null : (monitor.drops[reason]?.[index] ?? 0))),
  }));
  return { at, series };
}
