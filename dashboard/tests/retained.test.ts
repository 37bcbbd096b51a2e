import { expect, it } from "vitest";
import { shareOf } from "../src/pages/subscriptions/share";

it("a shared subscription has a group and a filter", () => {
  expect(shareOf("$share/g/a/#")).toEqual({ share: "g", filter: "a/#" });
  expect(shareOf("$share/$queue/a")).toEqual({ share: "$queue", filter: "a" });
  expect(shareOf("share/g/a")).toBeUndefined();
});
