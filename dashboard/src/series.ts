/** Figures over time: what `/monitor` has, and what `/live` adds to it. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { api } from "./api";
import { useData, useLive } from "./hooks";
import { type Resolution, STEPS } from "./range";

export interface Monitor {
  resolution: Resolution;
  columns: string[];
  points: number[][];
  gaps: [number, number][];
  drops: Record<string, number[]>;
}

/** One event `figures` of the stream. */
export interface Figures {
  at: number;
  drops: Record<string, number>;
  [column: string]: number | Record<string, number>;
}

type Values = (number | null)[];
/** Counters of messages and of deliveries that were dropped. */
const OF_MESSAGES = /^(messages\.|delivery[._])/;

/** Columns of the same length; a null stands where nothing is known, so that no line is drawn over it. */
export class Series {
  private constructor(
    readonly step: number,
    readonly at: number[],
    readonly columns: Record<string, Values>,
    readonly drops: Record<string, Values>,
  ) {}

  static empty(): Series {
    return new Series(1_000, [], {}, {});
  }

  static of({ resolution, points, columns, drops }: Monitor): Series {
    const step = STEPS[resolution];
    const time = columns.indexOf("at");
    // Where each point stands; undefined: nothing is known.
    const places: (number | undefined)[] = [];
    const at: number[] = [];
    points.forEach((point, index) => {
      const now = point[time] ?? 0;
      const last = at.at(-1);
      if (last !== undefined && now > last + 2.5 * step) {
        at.push(last + step);
        places.push(undefined);
      }
      at.push(now);
      places.push(index);
    });
    const column = (value: (index: number) => number | undefined): Values =>
      places.map((place) => (place === undefined ? null : (value(place) ?? 0)));
    const named = columns.flatMap((name, position) => (position === time ? [] : [[name, column((place) => points[place]?.[position])] as const]));
    const dropped = Object.entries(drops).map(([reason, counts]) => [reason, column((place) => counts[place])] as const);
    return new Series(step, at, Object.fromEntries(named), Object.fromEntries(dropped));
  }

  private push(at: number, values: Record<string, unknown>, drops: Record<string, number>): void {
    const last = this.at.at(-1);
    if (last !== undefined && at > last + 2.5 * this.step) this.put(last + this.step, {}, null);
    this.put(at, values, drops);
  }

  private put(at: number, values: Record<string, unknown>, drops: Record<string, number> | null): void {
    const index = this.at.push(at) - 1;
    const known = Object.keys(values).filter((name) => name !== "at" && name !== "drops");
    for (const name of new Set([...Object.keys(this.columns), ...known])) {
      const value = values[name];
      (this.columns[name] ??= new Array<null>(index).fill(null)).push(typeof value === "number" ? value : null);
    }
    for (const reason of new Set([...Object.keys(this.drops), ...Object.keys(drops ?? {})])) {
      (this.drops[reason] ??= new Array<number>(index).fill(0)).push(drops === null ? null : (drops[reason] ?? 0));
    }
  }

  /** With later points, and without those that are older than `span` milliseconds before the last. */
  with(more: Figures[], span: number): Series {
    const later = more.filter((figures) => figures.at > (this.at.at(-1) ?? 0));
    if (later.length === 0) return this;
    const from = (later.at(-1)?.at ?? 0) - span;
    let first = this.at.findIndex((at) => at >= from);
    if (first < 0) first = this.at.length;
    const copy = (columns: Record<string, Values>): Record<string, Values> =>
      Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.slice(first)]));
    const made = new Series(this.step, this.at.slice(first), copy(this.columns), copy(this.drops));
    for (const figures of later) made.push(figures.at, figures, figures.drops);
    return made;
  }

  /** The last `span` milliseconds of it. */
  last(span: number): Series {
    const from = (this.at.at(-1) ?? 0) - span;
    const first = this.at.findIndex((at) => at >= from);
    if (first <= 0) return this;
    const cut = (columns: Record<string, Values>): Record<string, Values> =>
      Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.slice(first)]));
    return new Series(this.step, this.at.slice(first), cut(this.columns), cut(this.drops));
  }

  column(name: string): Values {
    return this.columns[name] ?? new Array<null>(this.at.length).fill(null);
  }

  value(name: string, index = this.at.length - 1): number | null {
    return this.columns[name]?.[index] ?? null;
  }

  /** The middle of the five points that end at `index`: one second alone says little of a rate. */
  around(name: string, index: number): number | null {
    const found = (this.columns[name] ?? []).slice(Math.max(0, index - 4), index + 1).filter((value) => value !== null);
    return found.length === 0 ? null : found.reduce((sum, value) => sum + value, 0) / found.length;
  }

  /** Per second, what was neither a message nor a delivery: clients and packets that were refused. */
  refused(): Values {
    const reasons = Object.entries(this.drops).flatMap(([reason, values]) => (OF_MESSAGES.test(reason) ? [] : [values]));
    const known = this.columns["messages_received"] ?? [];
    return this.at.map((_, index) => {
      if (reasons.length === 0) return known[index] === null ? null : 0;
      const values = reasons.map((one) => one[index] ?? null).filter((value) => value !== null);
      return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0);
    });
  }

  /** The highest of the last `points`. */
  highest(name: string, points: number): number {
    return Math.max(0, ...(this.columns[name] ?? []).slice(-points).map((value) => value ?? 0));
  }

  /** Of each reason the mean of the last `points`, those first that are most. */
  dropsOf(points: number): [string, number][] {
    const found = Object.entries(this.drops).map(([reason, values]): [string, number] => {
      const known = values.slice(-points).filter((value) => value !== null);
      return [reason, known.length === 0 ? 0 : known.reduce((sum, value) => sum + value, 0) / known.length];
    });
    return found.filter(([, rate]) => rate > 0).sort((left, right) => right[1] - left[1]);
  }
}

/** The values of `other`, which is `shift` milliseconds earlier, at the times of `series`. Null: nothing is known. */
export function aligned(series: Series, other: Series, shift: number): Record<string, Values> {
  let next = 0;
  const places = series.at.map((at) => {
    const then = at - shift;
    while (next < other.at.length && (other.at[next] ?? 0) < then) next += 1;
    // A point is that of the time before it.
    const found = other.at[next];
    return found !== undefined && found - other.step < then ? next : undefined;
  });
  return Object.fromEntries(
    Object.entries(other.columns).map(([name, values]) => [name, places.map((place) => (place === undefined ? null : (values[place] ?? null)))]),
  );
}

/** The place of the point of this moment, or of the next one. */
export function placeOf(series: Series, moment: number): number | null {
  const found = series.at.findIndex((at) => at >= moment);
  return found < 0 || (series.at[found] ?? 0) - moment > 2.5 * series.step ? null : found;
}

/** How many points before it a moment is compared with: a minute, an hour, a day. */
export function backOf(series: Series): number {
  return series.step >= STEPS.ten_minutes ? 144 : 60;
}

export interface Change {
  name: string;
  by: number;
  to: number;
}

/** What is another than `back` points before, by a tenth or more, the largest first; and reasons that are new. */
export function changes(series: Series, index: number, back = 60): { figures: Change[]; reasons: string[] } {
  const before = index - back;
  if (before < 0) return { figures: [], reasons: [] };
  const found: (Change & { part: number })[] = [];
  for (const name of Object.keys(series.columns)) {
    const to = series.around(name, index);
    const from = series.around(name, before);
    if (to === null || from === null) continue;
    const by = to - from;
    const part = Math.abs(by) / Math.max(Math.abs(from), 1);
    if (part >= 0.1 && Math.abs(by) >= 0.5) found.push({ name, by, to, part });
  }
  found.sort((left, right) => right.part - left.part);
  const reasons = Object.entries(series.drops)
    .filter(([, values]) => (values[index] ?? 0) > 0 && values.slice(before, index).every((value) => !value))
    .map(([reason]) => reason);
  return { figures: found.slice(0, 5).map(({ name, by, to }) => ({ name, by, to })), reasons };
}

export interface Asked {
  /** A node, `all` of them in sum, or "" for the one that answers. */
  node: string;
  /** Milliseconds before now, or with `from` and `to`, both Unix milliseconds, an absolute range. */
  span: number;
  from?: number | undefined;
  to?: number | undefined;
  /** Undefined: the finest that the node still has. */
  resolution?: Resolution | undefined;
  /** Names with commas between them; else all columns. */
  columns?: string;
  /** Whether the figures of one node are followed by the stream. */
  live?: boolean;
}

export interface Followed {
  series: Series | undefined;
  error: Error | undefined;
  reload: () => void;
}

/** Nothing is asked. */
const NOTHING: Asked = { node: "", span: 0 };

/** The points of the span: read once, then followed by the stream, or asked for every few seconds. `null`: none now. */
export function useSeries(asked: Asked | null): Followed {
  const { node, span, from, to, resolution, columns, live = false } = asked ?? NOTHING;
  const follows = asked !== null && from === undefined && resolution === "second";
  const [series, setSeries] = useState<Series | undefined>(undefined);
  const [opened, setOpened] = useState(0);
  const known = useRef(false);
  const past = useData(
    async (signal) => {
      if (asked === null) return undefined;
      const range = from === undefined ? { span } : { from: Math.max(0, from), to };
      return api.get<Monitor>("/monitor", { resolution, node, columns, ...range }, signal);
    },
    [node, span, from, to, resolution, columns, opened],
    asked !== null && from === undefined && !follows ? 60_000 : 0,
  );
  // In the frame in which it came, as all that follows.
  useLayoutEffect(() => setSeries(undefined), [node, resolution, from, to]);
  useLayoutEffect(() => {
    if (past.data) setSeries(Series.of(past.data));
    else if (past.error) setSeries((before) => before ?? Series.empty());
  }, [past.data, past.error]);

  const streamed = live && node !== "all";
  const last = series?.at.at(-1) ?? 0;
  const more = useData(
    async (signal) => {
      if (streamed || !follows || last === 0) return undefined;
      return api.get<Monitor>("/monitor", { resolution, node, from: last + 1, columns }, signal);
    },
    [streamed, follows, last === 0],
    streamed || !follows ? 0 : 2_000,
  );
  useLayoutEffect(() => {
    const found = more.data;
    if (!found) return;
    const added = found.points.map((point, index): Figures => {
      const drops = Object.fromEntries(Object.entries(found.drops).map(([reason, values]) => [reason, values[index] ?? 0]));
      return { ...Object.fromEntries(found.columns.map((name, at) => [name, point[at] ?? 0])), at: point[0] ?? 0, drops };
    });
    setSeries((before) => before?.with(added, span));
  }, [more.data]);

  useLive(streamed ? { figures: 1, node: node || undefined } : null, {
    // A stream that was opened again has missed something, which the node remembers.
    hello: () => {
      if (known.current) setOpened((count) => count + 1);
      known.current = true;
    },
    figures: (figures: Figures) => {
      if (follows) setSeries((before) => (before ?? Series.empty()).with([figures], span));
    },
  });
  return { series, error: past.error, reload: past.reload };
}
