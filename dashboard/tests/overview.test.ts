import { describe, expect, it } from "vitest";
import { behind, ofCounter } from "../src/pages/overview/behind";
import { type State, troubles } from "../src/pages/overview/health";
import { type Figures, type Monitor, Series, changes } from "../src/series";

const monitor = (points: number[][], drops: Record<string, number[]> = {}): Monitor => ({
  resolution: "second",
  columns: ["at", "connections", "loop_lag"],
  points,
  gaps: [],
  drops,
});
const figures = (at: number, connections: number, drops: Record<string, number> = {}): Figures => ({ at, connections, drops });

describe("points", () => {
  it("have a gap where nothing is known", () => {
    const series = Series.of(monitor([[1_000, 1, 0], [2_000, 2, 0], [9_000, 3, 0]], { full: [0, 1, 2] }));
    expect(series.at).toEqual([1_000, 2_000, 3_000, 9_000]);
    expect(series.column("connections")).toEqual([1, 2, null, 3]);
    expect(series.drops).toEqual({ full: [0, 1, null, 2] });
    expect(series.column("unknown")).toEqual([null, null, null, null]);
  });

  it("are followed by later ones, and old ones leave", () => {
    const before = Series.of(monitor([[1_000, 1, 0], [2_000, 2, 0]]));
    const after = before.with([figures(2_000, 9), figures(3_000, 3, { late: 4 })], 1_000);
    expect(after.at).toEqual([2_000, 3_000]);
    expect(after.column("connections")).toEqual([2, 3]);
    expect(after.column("loop_lag")).toEqual([0, null]);
    expect(after.drops).toEqual({ late: [0, 4] });
    expect(before.at).toEqual([1_000, 2_000]);
    expect(after.with([figures(3_000, 8)], 1_000)).toBe(after);
  });

  it("can be fewer", () => {
    const series = Series.of(monitor(Array.from({ length: 100 }, (_, index) => [index * 1_000, index, 0])));
    expect(series.last(10_000).at.length).toBe(11);
    expect(series.last(10_000_000)).toBe(series);
  });
});

describe("what changed", () => {
  it("is what differs by a tenth, the largest first, and what is dropped for a new reason", () => {
    const points = Array.from({ length: 121 }, (_, index) => [index * 1_000, index < 90 ? 100 : 50, 7]);
    const drops = { full: points.map((_, index) => (index === 120 ? 3 : 0)), old: points.map(() => 1) };
    const found = changes(Series.of(monitor(points, drops)), 120);
    expect(found).toEqual({ figures: [{ name: "connections", by: -50, to: 50 }], reasons: ["full"] });
  });

  it("is not known in the first minute", () => {
    expect(changes(Series.of(monitor([[0, 1, 0]])), 0)).toEqual({ figures: [], reasons: [] });
  });
});

describe("health", () => {
  const state = (values: Record<string, number>, drops: Record<string, number> = {}, more: Partial<State> = {}): State => {
    const calm = { disk_free: 90 * 2 ** 30, disk_used: 2 ** 30, memory: 1, loop_lag: 1, commit_time: 1 };
    const one = { at: 1_000, ...calm, ...values, drops } as Figures;
    return { series: Series.empty().with([one], 1_000), alarms: [], stopped: [], memoryLimit: 100, ...more };
  };
  const said = (given: State): string => troubles(given).map(({ text }) => text).join("\n");

  it("is no trouble, also where messages reach nobody", () => {
    expect(troubles(state({}))).toEqual([]);
    expect(troubles(state({}, { "messages.dropped.no_subscribers": 9 }))).toEqual([]);
    expect(troubles({ ...state({}), series: Series.empty() })).toEqual([]);
  });

  it.each([
    [{ disk_free: 2 ** 20 }, {}, "node.data_dir"],
    [{ disk_free: 2 ** 30, disk_used: 99 * 2 ** 30 }, {}, "1 %"],
    [{ memory: 90 }, {}, "limits.memory"],
    [{ loop_lag: 400 }, {}, "400 ms"],
    [{ commit_time: 800 }, {}, "800 ms"],
    [{}, { "delivery.dropped.queue_full": 5, other: 1 }, "max_queued_messages"],
    [{}, { of_some_kind: 5 }, "Alarms & events"],
  ])("%j %j is said", (values, drops, text) => expect(said(state(values, drops))).toContain(text));

  it("leads to who it is where clients are not let in", () => {
    expect(troubles(state({}, { bad_username_or_password: 5 }))[0]?.href).toBe("#/top/refused?reason=bad_username_or_password");
    expect(troubles(state({}, { "delivery.dropped.queue_full": 5 }))[0]?.href).toBe("#/top/dropped?reason=delivery.dropped.queue_full");
    expect(said(state({}, { bad_username_or_password: 5 }))).toContain("wrong username or password");
    expect(troubles(state({}, { publish_not_authorized: 5 }))[0]?.href).toBe("#/top/refused?reason=publish_not_authorized");
  });

  it("has words for a reason, and the name of one of another node's data or of a plugin", () => {
    expect(said(state({}, { tls_timeout: 5 }))).toContain("mostly because of slow TLS handshakes.");
    expect(said(state({}, { cluster_truncated: 5 }))).toContain("data of other nodes that was not accepted (cluster_truncated).");
    expect(said(state({}, { of_some_kind: 5 }))).toContain("mostly because of of_some_kind.");
  });

  it("knows a counter that ends with a value, and where to look for one without clients", () => {
    const known = new Map([["webhook_failed_<reason>", 1], ["banned", 2]]);
    expect(["webhook_failed_http_500", "banned", "webhook_dropped_memory", "banned_"].map((name) => ofCounter(known, name))).toEqual([1, 2, undefined, undefined]);
    expect(behind("rule_row_retry_attempts")).toBe("#/rules/resources");
    expect(said(state({}, { bridge_quota_exceeded: 5 }))).toContain("mostly because of messages that an MQTT bridge could not publish.");
  });

  it("leads from an alarm to its cause", () => {
    const of = (name: string): string | undefined => troubles(state({}, {}, { alarms: [{ name, message: "" }] }))[0]?.href;
    expect(of("resource/web_hook/resource:erp/down")).toBe("#/rules/resources/resource%3Aerp");
    expect(of("node_down/n2@host")).toBe("#/node");
    expect(of("store_trouble")).toBe("#/trouble");
  });

  it("begins with what hurts users, and ends with what an operator set up beside the broker", () => {
    const alarms = [{ name: "resource/web_hook/test/down", message: "" }, { name: "certificate/tls/expires", message: "" }, { name: "nats_no_quorum", message: "" }];
    const found = troubles(state({ commit_time: 800 }, { banned: 9, "delivery.dropped.queue_full": 1 }, { alarms }));
    expect(found.map(({ text }) => /nats_no_quorum|full queues|bans|800 ms|resource|certificate/.exec(text)?.[0])).toEqual([
      "nats_no_quorum", "full queues", "bans", "800 ms", "resource", "certificate",
    ]);
    expect(found.map(({ tone }) => tone)).toEqual(["bad", "warn", "warn", "warn", "warn", "warn"]);
  });

  it("names alarms and nodes that do not run, first", () => {
    const alarms = [{ name: "store_trouble", message: "disk full" }];
    const lines = said(state({ loop_lag: 400 }, {}, { alarms, stopped: ["b@host"] })).split("\n");
    expect(lines[0]).toContain("b@host");
    expect(lines[1]).toBe("Alarm store_trouble: disk full");
    expect(lines.length).toBe(3);
  });
});
