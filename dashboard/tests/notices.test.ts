import { expect, test } from "vitest";
import { type Status, localInput, overall, targetBody } from "../src/pages/trouble/notices";

const STATUS: Status = { node: "a", state: "ready", sent: 1, failed: 0, dropped: 0, waiting: 0, last_sent_at: null, last_error: "", last_error_at: null };
const TARGET = { id: "t", type: "mqtt", enabled: true, alarms: ["*"], config: {}, status: [STATUS] };

test("the status over all nodes is the worst, with sums and the latest error", () => {
  const failing: Status = { ...STATUS, state: "failing", waiting: 2, last_error: "new", last_error_at: 9 };
  const earlier: Status = { ...STATUS, last_error: "old", last_error_at: 5 };
  expect(overall({ ...TARGET, status: [earlier, failing] })).toEqual({ state: "failing", sent: 2, dropped: 0, waiting: 2, error: "new", errorAt: 9 });
  expect(overall(TARGET)).toMatchObject({ state: "ready", error: "", errorAt: null });
  expect(overall({ ...TARGET, status: [] }).state).toBe("disabled");
});

test("the body has the configuration apart, without what is not given", () => {
  const values = { id: "t", type: "mqtt", enabled: true, alarms: ["*"], topic: "a", qos: "2", retain: false, cacertfile: undefined };
  expect(targetBody(values)).toEqual({ enabled: true, alarms: ["*"], config: { topic: "a", qos: 2, retain: false } });
});

test("a moment for a control of date and time", () => {
  const at = new Date(2026, 10, 29, 23, 5).getTime();
  expect(localInput(at)).toBe("2026-11-29T23:05");
});
