import { afterEach, describe, expect, it, vi } from "vitest";
import { ahead, nodeNow, noteDate } from "../src/clock";

describe("the node's clock", () => {
  afterEach(() => {
    vi.useRealTimers();
    ahead.value = 0;
  });

  it("counts where the browser's is wrong, and not for what an answer takes", () => {
    vi.useFakeTimers({ now: Date.parse("2026-01-31T12:00:00Z") });
    noteDate("Sat, 31 Jan 2026 12:00:09 GMT");
    expect(nodeNow()).toBe(Date.now());
    noteDate("Sat, 31 Jan 2026 09:00:00 GMT");
    expect(nodeNow()).toBe(Date.parse("2026-01-31T09:00:00Z"));
    // Each answer is some seconds older or younger: what is shown does not jump with it.
    noteDate("Sat, 31 Jan 2026 09:00:03 GMT");
    expect(nodeNow()).toBe(Date.parse("2026-01-31T09:00:00Z"));
    for (const none of [null, "", "soon"]) noteDate(none);
    expect(nodeNow()).toBe(Date.parse("2026-01-31T09:00:00Z"));
    noteDate("Sat, 31 Jan 2026 12:00:00 GMT");
    expect(nodeNow()).toBe(Date.now());
  });
});
