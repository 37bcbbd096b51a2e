import { describe, expect, it } from "vitest";
import { cut, pieces, visible } from "../src/visible";

describe("text of strangers", () => {
  it("leaves what can be seen", () => {
    expect(visible("a/b שלום 🙂 <b>")).toBe("a/b שלום 🙂 <b>");
    expect(pieces("plain")).toEqual([{ text: "plain", hidden: false }]);
    expect(pieces("")).toEqual([]);
  });

  it.each([
    ["\u0000", "␀"],
    ["\n", "␊"],
    ["\u007f", "␡"],
    ["\u0085", "[U+0085]"],
    ["\u202e", "[RLO]"],
    ["\u200b", "[ZWSP]"],
    ["\ufeff", "[BOM]"],
    ["\u{e0041}", "[U+E0041]"],
    ["\ud800", "[U+D800]"],
  ])("shows %j as %s", (text, shown) => {
    expect(pieces(`a${text}b`)).toEqual([
      { text: "a", hidden: false },
      { text: shown, hidden: true },
      { text: "b", hidden: false },
    ]);
  });

  it("cuts, and never in the middle of a character", () => {
    expect(cut("abc", 3)).toBe("abc");
    expect(cut("abcd", 3)).toBe("abc");
    expect(cut("ab🙂d", 3)).toBe("ab");
  });
});
