import { expect, it } from "vitest";
import { above } from "../src/pages/retained/levels";
import { shareOf } from "../src/pages/subscriptions/share";

it("the way up has each level with its topic, but no empty first one", () => {
  expect(above("a/b//c").map((one) => one.topic)).toEqual(["a", "a/b", "a/b/", "a/b//c"]);
  expect(above("/a")).toEqual([{ level: "a", topic: "/a" }]);
});

it("a shared subscription has a group and a filter", () => {
  expect(shareOf("$share/g/a/#")).toEqual({ share: "g", filter: "a/#" });
  expect(shareOf("$share/$queue/a")).toEqual({ share: "$queue", filter: "a" });
  expect(shareOf("share/g/a")).toBeUndefined();
});
