/** One sentence for each thing that is wrong; none: no trouble. */

import { bytes, milliseconds, percent, rate } from "../../format";
import { link } from "../../router";
import { texts } from "../../texts/overview";
import { OF_FIGURES, behind, ofAlarm } from "./behind";
import type { Series } from "../../series";

export interface Alarm {
  node?: string;
  name: string;
  message: string;
}

export interface Trouble {
  tone: "bad" | "warn";
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
const MINUTE = 60;
// A message that nobody has subscribed to is what publishers of most systems send.
const USUAL = new Set(["messages.dropped.no_subscribers"]);

export function troubles({ series, alarms, stopped, memoryLimit }: State): Trouble[] {
  const { health } = texts;
  const found: Trouble[] = stopped.map((node) => ({ tone: "bad", text: health.nodeDown(node), href: link(["node"]) }));
  for (const { node, name, message } of alarms) {
    const text = node ? health.alarmOf(node, name, message) : health.alarm(name, message);
    found.push({ tone: "bad", text, href: ofAlarm(name) ?? link(["trouble"]) });
  }
  const free = series.value("disk_free");
  const used = series.value("disk_used");
  if (free !== null && used !== null && free + used > 0 && (free < FREE || free / (free + used) < FREE_PART)) {
    const tone = free < FREE ? "bad" : "warn";
    found.push({ tone, text: health.disk(bytes(free), percent(free, free + used)), href: link(["node"]) });
  }
  const memory = series.value("memory");
  if (memory !== null && memoryLimit && memory / memoryLimit > MEMORY_PART) {
    found.push({ tone: "bad", text: health.memory(percent(memory, memoryLimit), bytes(memoryLimit)), href: OF_FIGURES["memory"] ?? link(["node"]) });
  }
  const points = (MINUTE * 1_000) / series.step;
  const commit = series.highest("commit_time", points);
  if (commit > COMMIT) found.push({ tone: "warn", text: health.commit(milliseconds(commit)), href: link(["trouble"]) });
  const lag = series.highest("loop_lag", points);
  if (lag > LAG) found.push({ tone: "warn", text: health.lag(milliseconds(lag)), href: link(["top", "clients"]) });
  const drops = series.dropsOf(Math.max(1, points)).filter(([reason]) => !USUAL.has(reason));
  const [most] = drops;
  if (most) {
    const all = drops.reduce((sum, [, one]) => sum + one, 0);
    const advice = health.advice[most[0]] ?? health.otherAdvice;
    found.push({ tone: "warn", text: health.drops(rate(all), most[0], advice), href: behind(most[0]) });
  }
  return found;
}
