import { expect, test } from "vitest";
import { type Line, lineIn, linesOf, moved, pathOf, repeated, rulesOf, same } from "../src/pages/access/rule_lines";

const rule = (topic: string, action: string, access = "allow", listener?: string) => ({ topic, action, access, ...(listener ? { listener } : {}) });

test("two halves that stand together are one line, and others are not", () => {
  const halves = [rule("a", "pub"), rule("a", "sub"), rule("b", "sub"), rule("b", "pub"), rule("c", "pub"), rule("c", "sub", "deny"), rule("d", "pub", "allow", "l"), rule("d", "sub")];
  const lines = linesOf(halves);
  expect(rulesOf(lines)).toEqual([rule("a", "pubsub"), ...halves.slice(2)]);
  expect(lines.map(({ id }) => id)).toEqual([0, 1, 2, 3, 4, 5, 6]);
});

test("a line goes to another place, and the others keep their order", () => {
  expect(moved(["a", "b", "c", "d"], 0, 2)).toEqual(["b", "c", "a", "d"]);
  expect(moved(["a", "b", "c", "d"], 3, 1)).toEqual(["a", "d", "b", "c"]);
});

test("the order is a difference, and the number of a line is none", () => {
  const lines = linesOf([rule("a", "pub"), rule("b", "pub")]);
  const others = lines.map((line): Line => ({ ...line, id: line.id + 7 }));
  expect(same(lines, others)).toBe(true);
  expect(same(lines, moved(others, 0, 1))).toBe(false);
  expect(same(lines, lines.slice(1))).toBe(false);
});

test("a line that says the same as an earlier one is found", () => {
  expect(repeated(linesOf([rule("a", "pub"), rule("b", "pub"), rule("a", "pub")]))).toEqual([2, 0]);
  expect(repeated(linesOf([rule("a", "pub"), rule("a", "pub", "deny"), rule("a", "pub", "allow", "l")]))).toBeUndefined();
});

test("the line that a message of the node is about", () => {
  const lines = linesOf([rule("a", "pub"), rule("a/#/b", "pub"), rule("c", "pub", "allow", "nowhere")]);
  expect(lineIn("topic a/#/b: # stands only at the end", lines)).toBe(1);
  expect(lineIn("listener: there is none of this name, nowhere; there are tcp, ws", lines)).toBe(2);
  expect(lineIn("the store cannot write now", lines)).toBe(-1);
});

test("where the rules of a subject are", () => {
  expect(pathOf("all", "")).toBe("/acl/$all");
  expect(pathOf("username", "a/b")).toBe("/acl/username/a%2Fb");
  expect(pathOf("clientid", "..")).toBe("/acl/clientid/..%00");
});
