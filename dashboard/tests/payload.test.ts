import { describe, expect, it } from "vitest";
import { bestForm, cbor, fromBase64, hex, json, text } from "../src/components/payload";

const utf8 = (given: string): Uint8Array => new TextEncoder().encode(given);

describe("a payload", () => {
  it("is hex with its place and its letters", () => {
    expect(hex(utf8("<b>\n"))).toBe(`000000  3c 62 3e 0a${" ".repeat(36)}  <b>.`);
    expect(hex(new Uint8Array(17)).split("\n")[1]).toMatch(/^000010 {2}00 /);
  });

  it("is text, and says where it is none", () => {
    expect(text(utf8("grün"))).toEqual({ text: "grün", valid: true });
    expect(text(Uint8Array.of(0x61, 0xff))).toEqual({ text: "a\ufffd", valid: false });
  });

  it("is JSON where it is", () => {
    expect(json(utf8('{"a":1}'))).toBe('{\n  "a": 1\n}');
    expect(json(utf8("{"))).toBeUndefined();
  });

  it.each([
    ["{}", "json"],
    ["[1", "text"],
    ["21.5", "text"],
  ])("%s is shown as %s at first", (given, form) => expect(bestForm(utf8(given))).toBe(form));

  it("is shown as hex where it is no text", () => expect(bestForm(Uint8Array.of(0xa1, 0xff))).toBe("hex"));

  it("is CBOR: maps, bytes, big numbers, tags", async () => {
    expect(JSON.parse(await cbor(fromBase64("omFhAWFiQ/8AAQ==")))).toEqual({ a: 1, b: "h'ff0001'" });
    // {1: 18446744073709551615}, and an epoch time with tag 1
    expect(JSON.parse(await cbor(Uint8Array.of(0xa1, 1, 0x1b, 255, 255, 255, 255, 255, 255, 255, 255)))).toEqual({
      "1": "18446744073709551615",
    });
    expect(JSON.parse(await cbor(Uint8Array.of(0xc1, 0x0a)))).toEqual({ "tag 1": 10 });
  });

  it("is no CBOR", async () => {
    await expect(cbor(Uint8Array.of(0xff))).rejects.toThrow();
  });
});
