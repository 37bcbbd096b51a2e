import { expect, test } from "vitest";
import { asked, below, steps } from "../src/levels";
import { type Level, type LiveLevel, merged } from "../src/pages/topics/levels";

const level = (name: string): Level => ({ level: name, topic: name, children: 0, topics: 1, retained: 0, subscribers: 1 });
const live = (name: string): LiveLevel => ({ level: name, topic: name, rate: 1, messages: 2, payload: "x", deeper: false });

test("what comes stands at its level; levels without subscription follow on the first page", () => {
  const rows = merged([level("a"), level("b")], [live("b"), live("c")], true, "");
  expect(rows.map((row) => [row.level, row.live?.messages])).toEqual([["a", undefined], ["b", 2], ["c", 2]]);
  expect(merged([level("a")], [live("c")], false, "").map((row) => row.level)).toEqual(["a"]);
  expect(merged([], [live("cd"), live("d")], true, "c").map((row) => row.level)).toEqual(["cd"]);
});

test("what is below an empty first level is asked for by what its topics begin with", () => {
  expect([below(""), below("/"), below("a")]).toEqual([{ below: "/" }, { prefix: "/" }, { prefix: "a" }]);
  expect([asked({ below: "/" }), asked({ prefix: "/a" }), asked({})]).toEqual(["", "/a", undefined]);
});

test("an empty level is a level", () => {
  expect(steps("/a")).toEqual([{ level: "", topic: "" }, { level: "a", topic: "/a" }]);
  expect(steps("a//b")).toEqual([{ level: "a", topic: "a" }, { level: "", topic: "a/" }, { level: "b", topic: "a//b" }]);
});
