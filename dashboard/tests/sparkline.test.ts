import { describe, expect, it } from "vitest";
import { parts, path } from "../src/components/sparkline";
import { trend } from "../src/pages/overview/figures";
import { between, spots } from "../src/pages/overview/spots";

describe("a small line", () => {
  it("is of means, and has gaps", () => {
    expect(parts([1, 3, 5, 7, null, null], 3)).toEqual([2, 6, null]);
    expect(parts([1, 2], 36)).toEqual([1, 2]);
    expect(parts([])).toEqual([]);
    expect(path([0, 10, null, 10], 30, 12)).toBe("M0.0 11.0L10.0 1.0M30.0 1.0");
    expect(path([], 30, 12)).toBe("");
    expect(path([0, 0], 30, 12)).toBe("M0.0 11.0L30.0 11.0");
  });
});

describe("a trend", () => {
  it("is said from a hundredth on", () => {
    expect(trend(110, 100)).toBe("↑ 10 %");
    expect(trend(50, 100)).toBe("↓ 50 %");
    expect(trend(1_000_000, 1)).toBe("↑ 999 %");
    expect([trend(100.5, 100), trend(5, 0), trend(null, 1), trend(1, null)]).toEqual(["", "", "", ""]);
  });
});

describe("the nodes of a picture", () => {
  it("stand on an ellipse", () => {
    expect(spots(2, 200, 100)).toEqual([{ x: 0, y: 50 }, { x: 200, y: 50 }]);
    expect(spots(4, 200, 100)).toEqual([{ x: 0, y: 50 }, { x: 100, y: 0 }, { x: 200, y: 50 }, { x: 100, y: 100 }]);
  });
});

describe("an arrow", () => {
  it("runs from box to box, on another side than that of the other direction", () => {
    const box = { width: 40, height: 20 };
    const there = between({ x: 0, y: 50 }, { x: 200, y: 50 }, box);
    const back = between({ x: 200, y: 50 }, { x: 0, y: 50 }, box);
    expect([there.begin, there.end]).toEqual([{ x: 23, y: 56 }, { x: 177, y: 56 }]);
    expect([back.begin, back.end]).toEqual([{ x: 177, y: 44 }, { x: 23, y: 44 }]);
    expect(there.text.y).toBeGreaterThan(56);
    expect(back.text.y).toBeLessThan(44);
    // Two lines above an arrow end where one would.
    expect(between({ x: 200, y: 50 }, { x: 0, y: 50 }, box, 2).text.y).toBeLessThan(back.text.y);
  });
});
