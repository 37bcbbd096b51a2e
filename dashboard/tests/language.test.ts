import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { languageOf } from "../src/language";
import { tables } from "../src/texts/zh";

type Text = string | number | ((...values: never[]) => string) | Text[] | { [key: string]: Text };

const modules = import.meta.glob<{ texts: Text }>("../src/texts/*.ts", { eager: true });
const english = Object.fromEntries(Object.entries(modules).map(([file, { texts }]) => [/(\w+)\.ts$/.exec(file)?.[1] ?? "", texts]));

/** Each text by its place: `clients.states.idle`. */
function leaves(value: Text, path: string): [string, Text][] {
  if (value === null || typeof value !== "object") return [[path, value]];
  return Object.entries(value).flatMap(([key, one]) => leaves(one as Text, `${path}.${key}`));
}

const all = (found: object): Map<string, Text> => new Map(leaves(found as Text, "texts"));
/** How a language shortens large figures is its own. */
const OWN = /^texts\.common\.units\.short\./;
const comparable = (found: object): Map<string, Text> => new Map([...all(found)].filter(([place]) => !OWN.test(place)));
const ours = comparable(english);
const chinese = comparable(tables);

const MARKS = ["@one", "@two", "@three", "@four"];

/** What is drawn, with a mark for each value that is put in. */
function drawn(text: Text | undefined): string {
  return typeof text === "function" ? (text as (...values: string[]) => string)(...MARKS) : String(text);
}

const marks = (text: string): string[] => MARKS.filter((one) => text.includes(one));
/** Names that are no words: settings, counters, commands, addresses. */
const names = (text: string): string[] => [...new Set(text.replace(/@\w+/g, " ").match(/\b[a-z0-9]+(?:[._/][a-z0-9]+)+|%\w|\$share\S*|https?:\/\/|\b[A-Z]{4,}\b/g))].sort();

const SAME = /^(?:(?:Taipan|JSON|CBOR|MQTT|QoS|SQL|ID|AppID|Base64|Zone|@\w+|[\d.#+/–%\s-]|garden\/#)*|SELECT payload.*)$/;
/** English words with the name of a thing in them that Chinese does not name. */
const FREE = new Set(["UTF-8"]);

describe("the Chinese texts", () => {
  it("are all there, and no others", () => {
    expect(ours.size).toBeGreaterThan(1000);
    expect([...chinese.keys()].sort()).toEqual([...ours.keys()].sort());
  });

  it("are of the same kind, and use the same values", () => {
    for (const [place, text] of ours) {
      const other = chinese.get(place);
      expect([place, typeof other]).toEqual([place, typeof text]);
      expect([place, marks(drawn(other))]).toEqual([place, marks(drawn(text))]);
    }
  });

  it("name the same settings", () => {
    for (const [place, text] of ours) {
      const has = drawn(chinese.get(place));
      const missing = names(drawn(text)).filter((name) => !FREE.has(name) && !has.includes(name));
      expect([place, missing]).toEqual([place, []]);
    }
  });

  it("are Chinese, but for a few names", () => {
    const left = [...chinese].filter(([, text]) => !/\p{Script=Han}/u.test(drawn(text)));
    expect(left.filter(([, text]) => !SAME.test(drawn(text)))).toEqual([]);
  });

  it("have Chinese punctuation behind Chinese words", () => {
    expect([...chinese].filter(([, text]) => /\p{Script=Han}[,:;?!.]/u.test(drawn(text)))).toEqual([]);
  });
});

describe("the language", () => {
  it.each([
    [["zh-CN", "en"], "zh-CN"],
    [["en-GB", "zh-CN"], "en"],
    [["de", "zh-Hans-SG", "en"], "zh-CN"],
    [["zh-TW", "en"], "zh-CN"],
    [["fr", "de"], "en"],
    [["zhx"], "en"],
    [[], "en"],
  ])("of a browser with %j is %s", (wanted, found) => expect(languageOf(wanted)).toBe(found));
});

describe("figures in Chinese", () => {
  let format: typeof import("../src/format");
  let catalogue: typeof import("../src/components/catalogue");

  beforeAll(async () => {
    localStorage.setItem("taipan.language", "zh-CN");
    vi.resetModules();
    await (await import("../src/language")).loadLanguage();
    format = await import("../src/format");
    catalogue = await import("../src/components/catalogue");
  });

  afterAll(() => {
    localStorage.removeItem("taipan.language");
    document.documentElement.lang = "en";
    vi.resetModules();
  });

  it("is the language of the document", () => expect(document.documentElement.lang).toBe("zh-CN"));

  it("are as Intl writes them", () => {
    const short = new Intl.NumberFormat("zh-CN", { notation: "compact", maximumFractionDigits: 1 });
    for (const value of [10_000, 12_345, 12_345_678, 99_995_000, 123_456_789, 1e12, -45_678]) {
      expect(format.compact(value)).toBe(short.format(value));
    }
    expect(format.number(1_234_567)).toBe(new Intl.NumberFormat("zh-CN").format(1_234_567));
  });

  it("have Chinese units", () => {
    expect(format.duration(93_784)).toBe("1 天 2 小时");
    expect(format.rate(12_345)).toBe("1.2万/秒");
    expect(format.percent(9, 20)).toBe("45%");
    expect(format.milliseconds(12)).toBe("12 毫秒");
    expect(format.ago(1_000_000, 1_000_500)).toBe("刚刚");
    expect(format.ago(0, 120_000)).toBe("2分钟前");
  });

  it("stand beside the Chinese texts of the API", () => {
    expect(catalogue.textOf({ en: "Resource", zh: "资源" })).toBe("资源");
    expect(catalogue.textOf({ en: "Resource" })).toBe("Resource");
  });
});
