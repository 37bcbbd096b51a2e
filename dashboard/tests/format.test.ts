import { describe, expect, it } from "vitest";
import { ago, bytes, byteRate, clock, compact, duration, exact, milliseconds, moment, number, rate, secondsOf, sizeOf } from "../src/format";

describe("figures", () => {
  it.each([
    [0, "0"],
    [12345, "12,345"],
    [0.12345, "0.123"],
    [-1234.5, "-1,230"],
    [999.96, "1,000"],
    [0.000_000_123_456, "0.000000123"],
    [1_234_567_890, "1,234,567,890"],
    [undefined, "–"],
    [null, "–"],
    [NaN, "–"],
  ])("number %s is %s", (value, text) => expect(number(value)).toBe(text));

  it.each([
    [9_999, "9,999"],
    [12_345, "12.3K"],
    [-12_345_678, "-12.3M"],
    [10_000, "10K"],
    [10_050, "10.1K"],
    [444_450, "444.5K"],
    [999_949, "999.9K"],
    [999_950, "1M"],
    [1e15, "1000T"],
  ])("compact %s is %s", (value, text) => expect(compact(value)).toBe(text));

  it("are written as Intl writes them", () => {
    const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
    const few = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
    const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
    for (let power = -8; power < 15; power += 1) {
      for (const digits of [1, 1.004, 1.006, 1.2345, 4.4446, 9.994, 9.9949, 9.9951, 9.99949, 9.99951, -2.5]) {
        const value = digits * 10 ** power;
        const text = Number.isInteger(value) ? whole.format(value) : few.format(value);
        expect(number(value)).toBe(text);
        expect(compact(value)).toBe(Math.abs(value) < 10_000 ? text : short.format(value));
      }
    }
  });

  it.each([
    [0, "0 B"],
    [1023, "1,023 B"],
    [1024, "1 KiB"],
    [1536, "1.5 KiB"],
    [5 * 1024 ** 3, "5 GiB"],
    [undefined, "–"],
  ])("bytes %s is %s", (value, text) => expect(bytes(value)).toBe(text));

  it("has rates a second", () => {
    expect(rate(1.5)).toBe("1.5/s");
    expect(byteRate(2048)).toBe("2 KiB/s");
    expect(rate(undefined)).toBe("–");
  });

  it("has milliseconds, and seconds where they are many", () => {
    expect(milliseconds(1.234)).toBe("1.23 ms");
    expect(milliseconds(12_345)).toBe("12.3 s");
  });
});

describe("times", () => {
  it.each([
    [0, "0 s"],
    [61, "1 min 1 s"],
    [93_784, "1 d 2 h"],
    [3600, "1 h"],
  ])("%s seconds last %s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it.each([
    [0, "now"],
    [-30_000, "30 seconds ago"],
    [-119_000, "1 minute ago"],
    [-120_000, "2 minutes ago"],
    [-3 * 3_600_000, "3 hours ago"],
    [-49 * 3_600_000, "2 days ago"],
    [90_000, "in 1 minute"],
  ])("a moment %s ms away is %s", (distance, text) => expect(ago(1e12 + distance, 1e12)).toBe(text));

  it.each([
    [1_700_000_000, 1_700_000_000_000],
    [1_700_000_000_123, 1_700_000_000_123],
    [1_700_000_000_123_456, 1_700_000_000_123.456],
    ["1700000000", 1_700_000_000_000],
    ["2026-01-31T13:05:09Z", Date.UTC(2026, 0, 31, 13, 5, 9)],
    ["infinity", undefined],
    ["", undefined],
    [0, undefined],
  ])("%s is the moment %s", (given, found) => expect(moment(given)).toBe(found));

  it("reads a node's local time", () => {
    expect(moment("2026-01-31 13:05:09")).toBe(new Date(2026, 0, 31, 13, 5, 9).getTime());
  });

  it("shows the exact time with its zone", () => {
    const at = new Date(2026, 0, 31, 13, 5, 9).getTime();
    expect(exact(at)).toMatch(/^2026-01-31 13:05:09 \S+/);
    expect(clock(at)).toBe("13:05:09");
  });
});

describe("figures that the API has as texts", () => {
  it.each([
    ["1 days, 2 hours, 3 minutes, 4 seconds", 93_784],
    ["4 minutes, 7 seconds", 247],
    ["1 second", 1],
    ["", 0],
  ])("%s", (text, seconds) => expect(secondsOf(text)).toBe(seconds));

  it.each([
    ["107.43M", "107 MiB"],
    ["11.80G", "11.8 GiB"],
    ["512", "512 B"],
    ["0B", "0 B"],
    ["", "–"],
    ["much", "–"],
  ])("%s is %s", (text, shown) => expect(bytes(sizeOf(text))).toBe(shown));
});
