import { expect, test } from "vitest";
import { type Setting, filtered } from "../src/pages/node/settings";

const one = (key: string, value: Setting["value"], origin: string, description = ""): Setting => ({
  key, value, origin, description, place: "", default: null, reloadable: false,
});
const settings = [one("log.level", "info", "default", "What is logged"), one("limits.memory", 1, "file"), one("node.name", "A@b", "environment")];

test("all words have to be in key, value or description", () => {
  expect(filtered(settings, "logged LEVEL", "").map(({ key }) => key)).toEqual(["log.level"]);
  expect(filtered(settings, "a@b", "").map(({ key }) => key)).toEqual(["node.name"]);
  expect(filtered(settings, "log memory", "")).toEqual([]);
});

test("of one origin, or of any but the default", () => {
  expect(filtered(settings, "", "file").map(({ key }) => key)).toEqual(["limits.memory"]);
  expect(filtered(settings, "", "changed").map(({ key }) => key)).toEqual(["limits.memory", "node.name"]);
});
