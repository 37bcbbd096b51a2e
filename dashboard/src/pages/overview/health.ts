/** One sentence for each thing that is wrong; none: no trouble. */

import { bytes, milliseconds, percent, rate } from "../../format";
import { link } from "../../router";
import { texts } from "../../texts/overview";
import { OF_FIGURES, behind, isLost, ofAlarm, ofCounter } from "./behind";
import type { Series } from "../../series";

export interface Alarm {
  node?: string;
  name: string;
  message: string;
}

export type Tone = "bad" | "warn";

export interface Trouble {
  tone: Tone;
  text: string;
  href: string;
}

export interface State {
  series: Series;
  alarms: Alarm[];
  stopped: string[];
  memoryLimit: number | undefined;
}

const LAG = 250;
const COMMIT = 500;
const FREE_PART = 0.1;
const FREE = 1 << 30;
const MEMORY_PART = 0.85;
const MINUTE = 60_000;
// A message that nobody has subscribed to is what publishers of most systems send.
const USUAL = new Set(["messages.dropped.no_subscribers"]);
/** Alarms about what an operator has set up beside the broker, and about what is to come. */
const LATER = /^(resource|certificate)\//;

function lastMinute(series: Series): number {
  return Math.max(1, MINUTE / series.step);
}

/** Drops and refusals per second in the last minute: of one kind, or of both. */
function drops(series: Series, lost?: boolean): [string, number][] {
  return series.dropsOf(lastMinute(series)).filter(([reason]) => !USUAL.has(reason) && (lost === undefined || isLost(reason) === lost));
}

/** A reason in words, by the name of its counter. Those of a plugin have none. */
function named(counter: string): string {
  const { names, ofNodes } = texts.health;
  const found = ofCounter(new Map(Object.entries(names)), counter);
  return found ?? (counter.startsWith("cluster_") ? ofNodes(counter) : counter);
}

/** Whether a figure is one to worry about. */
export function toneOf(name: string, series: Series, memoryLimit: number | undefined): Tone | undefined {
  const value = series.value(name);
  const points = lastMinute(series);
  switch (name) {
    case "disk_free": {
      const used = series.value("disk_used");
      if (value === null || used === null || value + used <= 0) return undefined;
      if (value < FREE) return "bad";
      return value / (value + used) < FREE_PART ? "warn" : undefined;
    }
    case "memory":
      return value !== null && memoryLimit && value / memoryLimit > MEMORY_PART ? "bad" : undefined;
    case "commit_time":
      return series.highest(name, points) > COMMIT ? "warn" : undefined;
    case "loop_lag":
      return series.highest(name, points) > LAG ? "warn" : undefined;
    case "deliveries_dropped":
      return drops(series, true).length > 0 ? "warn" : undefined;
    case "refused":
      return drops(series, false).length > 0 ? "warn" : undefined;
    default:
      return undefined;
  }
}

/** What hurts users comes first: nodes that are away, what the node cannot do any more, and messages that are lost. */
export function troubles({ series, alarms, stopped, memoryLimit }: State): Trouble[] {
  const { health } = texts;
  const tone = (name: string): Tone | undefined => toneOf(name, series, memoryLimit);
  const found: Trouble[] = stopped.map((node) => ({ tone: "bad", text: health.nodeDown(node), href: link(["node"]) }));
  const later: Trouble[] = [];
  for (const { node, name, message } of alarms) {
    const text = node ? health.alarmOf(node, name, message) : health.alarm(name, message);
    const [list, colour] = LATER.test(name) ? [later, "warn" as const] : [found, "bad" as const];
    list.push({ tone: colour, text, href: ofAlarm(name) ?? link(["trouble"]) });
  }
  const disk = tone("disk_free");
  const free = series.value("disk_free") ?? 0;
  if (disk) found.push({ tone: disk, text: health.disk(bytes(free), percent(free, free + (series.value("disk_used") ?? 0))), href: link(["node"]) });
  const memory = tone("memory");
  if (memory) {
    const text = health.memory(percent(series.value("memory") ?? 0, memoryLimit ?? 0), bytes(memoryLimit));
    found.push({ tone: memory, text, href: OF_FIGURES["memory"] ?? link(["node"]) });
  }
  for (const lost of [true, false]) {
    const reasons = drops(series, lost);
    const [most] = reasons;
    if (!most) continue;
    const all = reasons.reduce((sum, [, one]) => sum + one, 0);
    const advice = health.advice[most[0]] ?? health.otherAdvice;
    found.push({ tone: "warn", text: (lost ? health.lost : health.refused)(rate(all), named(most[0]), advice), href: behind(most[0]) });
  }
  const commit = tone("commit_time");
  if (commit) found.push({ tone: commit, text: health.commit(milliseconds(series.highest("commit_time", lastMinute(series)))), href: link(["trouble"]) });
  const lag = tone("loop_lag");
  if (lag) found.push({ tone: lag, text: health.lag(milliseconds(series.highest("loop_lag", lastMinute(series)))), href: link(["top", "clients"]) });
  return [...found, ...later];
}
