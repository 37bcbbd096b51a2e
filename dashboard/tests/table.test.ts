import { expect, it } from "vitest";
import { Parts, Slots } from "../src/components/table";

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

const numbers = (from: number, count: number): string[] => Array.from({ length: count }, (_, index) => String(from + index));

it("rows are drawn in parts, above those that were there before", () => {
  const parts = new Parts<string>((row) => row);
  const first = numbers(0, 50);
  expect(parts.next(first)).toEqual(numbers(0, 20));
  expect(parts.complete).toBe(false);
  expect(parts.next(first)).toEqual(numbers(0, 40));
  expect(parts.next(first)).toBe(first);
  expect(parts.complete).toBe(true);
  const second = numbers(100, 50);
  expect(parts.next(second)).toEqual([...numbers(100, 20), ...numbers(20, 30)]);
  // Others come before these were all drawn; one of them was there.
  const third = ["30", ...numbers(200, 49)];
  const now = parts.next(third);
  expect(now).toEqual([...third.slice(0, 20), "119", ...numbers(20, 10), ...numbers(31, 19)]);
  expect(new Set(now).size).toBe(now.length);
  parts.next(third);
  expect(parts.next(third)).toBe(third);
});

it("few rows are drawn at once, and none leave none", () => {
  const parts = new Parts<string>((row) => row);
  expect(parts.complete).toBe(true);
  const few = numbers(0, 20);
  expect(parts.next(few)).toBe(few);
  expect(parts.next([])).toEqual([]);
  expect(parts.complete).toBe(true);
});

it("in another order the list stays as long as it was", () => {
  const parts = new Parts<string>((row) => row);
  const rows = numbers(0, 60);
  while (parts.next(rows) !== rows) expect(parts.complete).toBe(false);
  const turned = [...rows].reverse();
  expect(parts.next(turned)).toEqual([...turned.slice(0, 20), ...rows.slice(0, 40)]);
});
