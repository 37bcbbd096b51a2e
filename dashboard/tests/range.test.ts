import { describe, expect, it } from "vitest";
import { type AuditRow, happenings } from "../src/pages/overview/happened";
import { DAY, HOUR, SHORTEST, absolute, earlier, rangeOf, resolutionOf } from "../src/range";
import { type Monitor, Series, aligned, placeOf } from "../src/series";

describe("the range in the address", () => {
  it("is one that ends now, or from one moment to another", () => {
    expect(rangeOf({})).toEqual({ name: "10m", span: 600_000 });
    expect(rangeOf({ range: "week" })).toEqual({ name: "week", span: 7 * DAY });
    expect(rangeOf({}, "hour")).toEqual({ name: "hour", span: HOUR });
    expect(rangeOf({ range: "day", from: "1000", to: "5000" })).toEqual({ name: undefined, span: 4_000, from: 1_000, to: 5_000 });
  });

  const none: Record<string, string>[] = [
    { range: "constructor" },
    { from: "5000", to: "1000" },
    { from: "1000" },
    { from: "-1", to: "x" },
    { from: "9".repeat(400), to: "1" },
  ];
  it.each(none)("%j is the usual one", (query) => expect(rangeOf(query).name).toBe("10m"));

  it("has points enough, and a time to compare it with where the node keeps one", () => {
    const of = (name: string): string | undefined => resolutionOf(rangeOf({ range: name }));
    expect(["10m", "hour", "day", "week", "month"].map(of)).toEqual(["second", "second", "minute", "ten_minutes", "ten_minutes"]);
    expect(resolutionOf(rangeOf({ from: "0", to: "1" }))).toBeUndefined();
    expect([HOUR, DAY, 2 * DAY, 7 * DAY, 8 * DAY].map(earlier)).toEqual([DAY, DAY, 7 * DAY, 7 * DAY, undefined]);
  });

  it("is not shorter than some points, in whichever direction it was chosen", () => {
    expect(absolute(50_000.4, 20_000.6)).toMatchObject({ from: "20000", to: "50001", range: undefined });
    const { from, to } = absolute(50_000, 50_100);
    expect(Number(to) - Number(from)).toBe(SHORTEST);
  });
});

const monitor = (resolution: Monitor["resolution"], points: number[][]): Monitor => ({ resolution, columns: ["at", "connections"], points, gaps: [], drops: {} });

describe("an earlier time", () => {
  it("stands at the times of the later one, coarser or with gaps", () => {
    const now = Series.of(monitor("second", Array.from({ length: 6 }, (_, index) => [DAY + 58_000 + index * 1_000, 1])));
    const before = Series.of(monitor("minute", [[60_000, 7], [120_000, 8]]));
    expect(aligned(now, before, DAY)["connections"]).toEqual([7, 7, 7, 8, 8, 8]);
    expect(aligned(now, Series.of(monitor("minute", [[60_000, 7]])), DAY)["connections"]).toEqual([7, 7, 7, null, null, null]);
    expect(aligned(now, Series.of(monitor("second", [])), DAY)["connections"]).toEqual(Array(6).fill(null));
  });

  it("is compared with by moments", () => {
    const series = Series.of(monitor("second", [[1_000, 1], [2_000, 1], [60_000, 1]]));
    expect([placeOf(series, 500), placeOf(series, 1_500), placeOf(series, 30_000), placeOf(series, 61_000)]).toEqual([0, 1, null, null]);
  });
});

describe("what happened", () => {
  const change: AuditRow = { time: 5_000, door: "ctl", who: "", what: "user add", target: "user x", node: "n" };

  it("is changes, alarms and refusals of the time, the latest first", () => {
    const alarms = [{ node: "n", alarms: [{ name: "partition", message: "!", activate_at: 4_000_000, deactivate_at: 6_000_000 }] }];
    const refused = [{ clientid: "bad", reason: "banned", last_at: new Date(5_500).toISOString(), node: "n" }];
    const found = happenings([change, { ...change, time: 99_000 }], alarms, refused, 4_500, 10_000);
    expect(found.map(({ at, kind, what }) => [at, kind, what])).toEqual([
      [6_000, "over", "partition"],
      [5_500, "refused", "bad"],
      [5_000, "change", "user add"],
    ]);
    expect(found[2]?.who).toBe("ctl");
    expect(found[2]?.href).toBe("#/trouble/audit?_gte_at=4&_lte_at=6");
    expect(found[1]?.href).toBe("#/clients/bad");
  });

  it("is an annotation, and not also the change that made it", () => {
    const note = { time: 7_000, text: "Deploy", created_by: "ci" };
    const made = ["POST /annotations", "annotate"].map((what) => ({ ...change, what }));
    expect(happenings(made, [], [], 0, 10_000, [note])).toEqual([
      { at: 7_000, kind: "annotation", what: "Deploy", detail: "", who: "ci", node: "", href: undefined },
    ]);
  });

  it("is an alarm that goes on, once", () => {
    const alarms = [{ node: "n", alarms: [{ name: "partition", message: "!", activate_at: 5_000_000, deactivate_at: "infinity" }] }];
    expect(happenings([], alarms, [], 0, 10_000).map(({ kind }) => kind)).toEqual(["alarm"]);
  });
});
