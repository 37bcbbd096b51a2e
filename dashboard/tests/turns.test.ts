import { expect, test, vi } from "vitest";
import { inTurn } from "../src/turns";

test("each piece in a task of its own, in order, and once", async () => {
  const done: string[] = [];
  let tasks = 0;
  const one = (): void => {
    done.push(`one ${tasks}`);
    queueMicrotask(() => (tasks += 1));
  };
  const two = (): void => {
    done.push(`two ${tasks}`);
    inTurn(one);
  };
  inTurn(one);
  inTurn(two);
  inTurn(one);
  expect(done).toEqual([]);
  await vi.waitFor(() => expect(done).toHaveLength(3));
  expect(done).toEqual(["one 0", "two 1", "one 1"]);
});

test("a piece that fails does not keep the others", async () => {
  const done: string[] = [];
  const caught: unknown[] = [];
  const listener = (error: unknown): void => void caught.push(error);
  process.once("uncaughtException", listener);
  inTurn(() => {
    throw new Error("this one");
  });
  inTurn(() => done.push("that one"));
  await vi.waitFor(() => expect(done).toHaveLength(1));
  process.off("uncaughtException", listener);
  expect(done).toEqual(["that one"]);
  expect(caught).toHaveLength(1);
});
