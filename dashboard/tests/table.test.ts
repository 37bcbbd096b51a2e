import { expect, it } from "vitest";
import { Slots } from "../src/components/table";

it("rows that stay keep their place, those that come take that of one that has gone", () => {
  const slots = new Slots();
  expect(slots.of(["a", "b", "c", "d"])).toEqual([0, 1, 2, 3]);
  expect(slots.of(["d", "x", "a", "y"])).toEqual([3, 1, 0, 2]);
  expect(slots.of(["d"])).toEqual([3]);
  expect(slots.of(["p", "d"])).toEqual([0, 3]);
  expect(slots.of(["d", "q", "p", "r"])).toEqual([3, 1, 0, 2]);
  expect(slots.of([])).toEqual([]);
  expect(slots.of(["z"])).toEqual([0]);
});

it("of another list each row has its place", () => {
  const slots = new Slots();
  expect(slots.of(["a", "b", "c", "d"])).toEqual([0, 1, 2, 3]);
  expect(slots.of(["w", "x", "y", "a"])).toEqual([0, 1, 2, 3]);
});
