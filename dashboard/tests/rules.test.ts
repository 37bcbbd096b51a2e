import { describe, expect, it, test } from "vitest";
import { type Action, type Resource, type Rule, buffered, latestError, underWay, unreached, waiting, withLive } from "../src/pages/rules/records";
import { testOf } from "../src/pages/rules/schema";
import { type Catalogue, completions, exampleOf, offsetOf, problemAt, sourcesOf } from "../src/pages/rules/sql";

const catalogue: Catalogue = {
  events: [
    { event: "$events/message_publish", columns: ["payload", "topic"], test_columns: { topic: "t/a", payload: '{"msg":"hello"}' }, sql_example: "" },
    { event: "$events/client_connected", columns: ["clientid", "keepalive"], test_columns: { clientid: "c" }, sql_example: "" },
  ],
  functions: [{ name: "upper", min_args: 1, max_args: 1, kinds: ["text"] }],
};

describe("the test of a schema", () => {
  it("has what was typed in its event, not in its SQL", () => {
    const name = "a'); DROP";
    expect(testOf(name, "base64", "aGk=\nAA==")).toEqual({
      rawsql: 'SELECT schema_decode(clientid, base64_decode(payload)) as decoded FROM "t"',
      ctx: { clientid: name, payload: "aGk=AA==", topic: "t" },
      test: true,
    });
    expect(testOf("p", "hex", "08 01", " Person ").ctx).toEqual({ clientid: "p", payload: "0801", topic: "t", username: "Person" });
    expect(testOf("j", "text", '{"a": 1}').ctx).toMatchObject({ payload: '{"a": 1}' });
  });
});

describe("sources", () => {
  it.each([
    ['SELECT * FROM "a/#", \'b/+\' WHERE x = 1', ["a/#", "b/+"]],
    ["select * from t/a,$events/client_connected", ["t/a", "$events/client_connected"]],
    ["SELECT 'FROM \"no\"' as x -- FROM other\nFROM \"yes\";", ["yes"]],
    ["SELECT *", []],
    ["SELECT * FROM ", []],
  ])("of %s", (sql, found) => expect(sourcesOf(sql)).toEqual(found));

  it("have an example on a topic that they match", () => {
    expect(exampleOf("garden/+/x/#", catalogue)["topic"]).toBe("garden/x/x/x");
    expect(exampleOf("$events/client_connected", catalogue)).toEqual({ clientid: "c" });
  });
});

describe("completion", () => {
  const at = (text: string): ReturnType<typeof completions> => {
    const place = text.indexOf("|");
    return completions(text.replace("|", ""), place, catalogue, { payload: '{"temp":{"in":1},"a b":2}' });
  };
  const labels = (text: string): string[] => at(text)?.options.map((one) => one.label) ?? [];

  it("has the columns of the sources, functions and keywords", () => {
    expect(labels('SELECT cl| FROM "$events/client_connected"')).toEqual(expect.arrayContaining(["clientid", "keepalive", "upper", "WHERE"]));
    expect(labels("SELECT |")).toContain("payload");
    expect(labels("SELECT |")).not.toContain("keepalive");
    expect(at("SELECT u|")?.options.find((one) => one.label === "upper")).toMatchObject({ apply: "upper(", detail: "(text)" });
  });
  it("looks into the sample", () => {
    expect(labels('SELECT payload.| FROM "t"')).toEqual(["temp", "a b"]);
    expect(at('SELECT payload.| FROM "t"')?.options[1]?.apply).toBe("'a b'");
    expect(labels('SELECT payload.temp.i| FROM "t"')).toEqual(["in"]);
    expect(at("SELECT topic.x|")).toBeNull();
  });
  it("has events behind FROM", () => {
    expect(labels("SELECT * FROM |")).toEqual(["$events/client_connected", "WHERE"]);
    expect(at('SELECT * FROM "$ev|')?.options).toEqual([
      { label: "$events/client_connected", type: "constant", apply: "$events/client_connected" },
    ]);
  });
  it("has nothing in texts and comments", () => {
    expect(at("SELECT 'a|'")).toBeNull();
    expect(at("SELECT a -- cl|")).toBeNull();
  });
});

describe("a place of the API", () => {
  it("counts characters, not halves of them", () => {
    expect(offsetOf("a\n😀bc", { line: 2, column: 2 })).toBe(4);
    expect(offsetOf("abc", { line: 9, column: 9 })).toBe(3);
  });
  it("underlines the word, and something at the end", () => {
    expect(problemAt("SELECT nope(1)", { line: 1, column: 8 }, "x")).toEqual({ from: 7, to: 11, message: "x" });
    expect(problemAt("SELECT ", { line: 1, column: 8 }, "x")).toEqual({ from: 5, to: 6, message: "x" });
    expect(problemAt("", { line: 1, column: 1 }, "x")).toEqual({ from: 0, to: 0, message: "x" });
  });
});

const action = (id: string, more: Partial<Action> = {}): Action => ({
  id,
  name: "republish",
  params: {},
  metrics: [{ node: "n", taken: 5, success: 2, failed: 1 }],
  fallbacks: [],
  ...more,
});
const figures = { node: "n", matched: 1, speed: 0, speed_max: 0, speed_last5m: 0, evaluated: 1, passed: 1, failed: 0, no_result: 0, exception: 0 };
const rule: Rule = {
  id: "r",
  rawsql: "",
  for: [],
  enabled: true,
  description: "",
  on_action_failed: "continue",
  created_at: 0,
  metrics: [figures, { ...figures, node: "other", matched: 7 }],
  actions: [action("a", { fallbacks: [action("b", { last_error: { at: 5, reason: "late" } })] })],
  last_error: { at: 3, reason: "early" },
};

test("what the stream says of one node stands in its place, fallbacks included", () => {
  const live = withLive(rule, { r: { rule: { ...figures, matched: 2 }, actions: { b: { node: "n", taken: 9, success: 9, failed: 0 } } } });
  expect(live.metrics.map((one) => one.matched)).toEqual([2, 7]);
  expect(live.actions[0]?.metrics[0]?.taken).toBe(5);
  expect(live.actions[0]?.fallbacks[0]?.metrics[0]?.taken).toBe(9);
  expect(withLive(rule, { r: null })).toBe(rule);
});

test("rows on their way, and the latest failure", () => {
  expect(underWay(action("a"))).toBe(2);
  expect(latestError(rule)?.reason).toBe("late");
});

test("buffers of all nodes in one", () => {
  const buffer = { waiting: 1, waiting_bytes: 2, delivered: 3, retried: 0, dropped: { refused: 1 }, set_aside: 0, dead_letters: 1, breaker: "closed", breaker_opened: 0, last_error: "" };
  const resource: Resource = {
    id: "x",
    type: "web_hook",
    config: {},
    description: "",
    status: [
      { node: "a", is_alive: true, buffer },
      { node: "b", is_alive: false, buffer: { ...buffer, breaker: "open", last_error: "away", dropped: { refused: 2, retry_for: 1 } } },
    ],
  };
  expect(buffered(resource)).toMatchObject({ waiting: 2, dropped: { refused: 3, retry_for: 1 }, breaker: "open", last_error: "away" });
  expect(buffered({ ...resource, status: true })).toBeUndefined();
});

test("a rule whose rows wait for a resource that is away", () => {
  const action = (id: string, resource: string | undefined, taken: number, fallbacks: Action[] = []): Action =>
    ({ id, name: "a", params: resource === undefined ? {} : { $resource: resource }, metrics: [{ node: "n", success: 1, failed: 1, taken }], fallbacks }) as unknown as Action;
  const rule = { actions: [action("1", "erp", 9), action("2", "log", 2, [action("3", "erp", 5)]), action("4", undefined, 2)] } as unknown as Rule;
  const resources = [{ id: "erp", status: false }, { id: "log", status: true }, { id: "unused", status: false }] as unknown as Resource[];
  expect(waiting(rule)).toBe(10);
  expect(unreached(rule, resources)).toEqual(["erp"]);
  expect(unreached(rule, undefined)).toEqual([]);
});
