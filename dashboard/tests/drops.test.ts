import { expect, test } from "vitest";
import { totals } from "../src/pages/trouble/drops";
import { joinLines } from "../src/pages/trouble/trace_lines";
import { type Monitor, Series } from "../src/series";

const monitor: Monitor = {
  resolution: "minute",
  columns: ["messages_received", "at"],
  points: [[1, 60_000], [1, 120_000], [1, 300_000]],
  gaps: [[0, 60_000], [120_000, 240_000]],
  drops: { queue_full: [0.5, 2, 0], acl: [0, 0, 3], never: [0, 0, 0] },
};

test("the most frequent reason comes first, with the time of its latest point", () => {
  expect(totals(Series.of(monitor))).toEqual([
    { reason: "acl", count: 180, last: 300_000 },
    { reason: "queue_full", count: 150, last: 120_000 },
  ]);
});

test("a line is broken where nothing is known, which counts for nothing", () => {
  const series = Series.of(monitor);
  expect(series.at).toEqual([60_000, 120_000, 180_000, 300_000]);
  expect(series.drops.queue_full).toEqual([0.5, 2, null, 0]);
});

test("a line that was read in two pieces is one", () => {
  const first = joinLines("", "a\nb");
  expect(first).toEqual({ lines: ["a"], rest: "b", read: 3 });
  expect(joinLines(first.rest, "é\n")).toEqual({ lines: ["bé"], rest: "", read: 3 });
});
