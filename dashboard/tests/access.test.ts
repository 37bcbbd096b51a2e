import { expect, test } from "vitest";
import { loginBody } from "../src/pages/access/try_login";
import { credentials } from "../src/pages/access/users";

test("a password that the node makes is not sent with one that was typed before", () => {
  expect(credentials({ generate: true, password: "typed" })).toEqual({ generate: true });
  expect(credentials({ generate: false, password: "typed" })).toEqual({ password: "typed" });
});

test("what a login is tried with is no part of the question, but for SCRAM", () => {
  expect(loginBody({ kind: "password", username: "a", password: "p" })).toEqual({ username: "a", password: "p" });
  expect(loginBody({ kind: "certificate", certificate: "pem" })).toEqual({ certificate: "pem" });
  expect(loginBody({ kind: "scram", username: "a" })).toEqual({ username: "a", authentication_method: "SCRAM-SHA-256" });
});
