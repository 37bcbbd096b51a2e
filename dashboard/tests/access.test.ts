import { expect, test } from "vitest";
import { credentials } from "../src/pages/access/users";

test("a password that the node makes is not sent with one that was typed before", () => {
  expect(credentials({ generate: true, password: "typed" })).toEqual({ generate: true });
  expect(credentials({ generate: false, password: "typed" })).toEqual({ password: "typed" });
});
