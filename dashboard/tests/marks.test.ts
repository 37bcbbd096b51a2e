import { expect, test } from "vitest";
import { ApiError } from "../src/api";
import { markOf, nextOf } from "../src/pages/rules/marks";

test("the mark of a test that failed", () => {
  const error = (status: number, line = 0): ApiError => {
    const made = Object.create(ApiError.prototype) as ApiError;
    Object.assign(made, { status, message: "why", place: line ? { line, column: 1 } : undefined });
    return made;
  };
  expect(markOf(error(404))).toEqual({ mark: "left", text: "" });
  expect(markOf(error(400))).toEqual({ mark: "failed", text: "why" });
  expect(markOf(error(400, 3))).toBeUndefined();
  expect(markOf(new TypeError("fetch"))).toEqual({ mark: "unknown", text: "" });
});

test("the latest event without a mark is next", () => {
  const events = [{ number: 3 }, { number: 2 }, { number: 1 }];
  const marks = new Map([[3, { mark: "taken", text: "" } as const]]);
  expect(nextOf(events, marks)).toEqual({ number: 2 });
  expect(nextOf([], marks)).toBeUndefined();
});
