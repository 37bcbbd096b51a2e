import { afterEach, expect, test, vi } from "vitest";
import { NotUndone, carryOut, planOf } from "../src/pages/access/branch_plan";
import { linesOf } from "../src/pages/access/rule_lines";

const allow = (topic: string, action = "pubsub") => ({ topic, action, access: "allow" });
const deny = (topic: string) => ({ topic, action: "pubsub", access: "deny" });
const branch = { topic: "devices/x/#", action: "pubsub", only: true };

test("a branch is allowed first, and all others are denied last", () => {
  expect(planOf([], branch)).toEqual([
    { rule: allow("devices/x/#"), isNew: true },
    { rule: deny("#"), isNew: true },
  ]);
  expect(planOf(linesOf([deny("devices/#"), allow("b", "pub")]), { ...branch, action: "sub", only: false })).toEqual([
    { rule: allow("devices/x/#", "sub"), isNew: true },
    { rule: deny("devices/#"), isNew: false },
    { rule: allow("b", "pub"), isNew: false },
  ]);
});

test("what is there already is not new, and comes first all the same", () => {
  expect(planOf(linesOf([deny("#"), allow("devices/x/#")]), branch)).toEqual([
    { rule: allow("devices/x/#"), isNew: false },
    { rule: deny("#"), isNew: false },
  ]);
});

type Answer = { status: number; body: unknown } | "away";

/** Requests are answered in turn; what was sent is returned. */
function node(...answers: Answer[]): [string, string, unknown][] {
  const sent: [string, string, unknown][] = [];
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
    sent.push([init.method ?? "", path, JSON.parse(String(init.body))]);
    const next = answers.shift();
    if (next === undefined || next === "away") return Promise.reject(new TypeError("away"));
    return Promise.resolve(new Response(JSON.stringify(next.body), { status: next.status }));
  });
  return sent;
}
afterEach(() => vi.unstubAllGlobals());

const OK = { status: 200, body: { code: 0 } };
const found = { name: "ann", exists: false, superuser: false, lines: linesOf([allow("old")]) };
const steps = planOf(found.lines, branch);
const after = [allow("devices/x/#"), allow("old"), deny("#")];

test("the rules are there before the user is, and the password comes back", async () => {
  const sent = node(OK, { status: 200, body: { code: 0, data: { ann: "ok" }, passwords: { ann: "secret" } } });
  expect(await carryOut("username", found, steps, { generate: true })).toBe("secret");
  expect(sent).toEqual([
    ["PUT", "/api/v4/acl/username/ann", { rules: after, instead_of: [allow("old")] }],
    ["POST", "/api/v4/auth_user", { login: "ann", is_superuser: false, generate: true }],
  ]);
});

test("a user that is refused leaves the rules as they were", async () => {
  const sent = node(OK, { status: 400, body: { code: 108, message: "password: too long" } }, OK);
  await expect(carryOut("username", found, steps, { password: "p" })).rejects.toThrow("password: too long");
  expect(sent[2]).toEqual(["PUT", "/api/v4/acl/username/ann", { rules: [allow("old")], instead_of: after }]);
  const there = node(OK, { status: 200, body: { code: 0, data: { ann: "exists" } } }, OK);
  await expect(carryOut("username", found, steps, { password: "p" })).rejects.toThrow("already exists");
  expect(there).toHaveLength(3);
});

test("rules that are refused create no user", async () => {
  const sent = node({ status: 400, body: { code: 115, message: "topic devices/x/#: no" } });
  await expect(carryOut("clientid", found, steps, { password: "p" })).rejects.toThrow("topic");
  expect(sent).toHaveLength(1);
});

test("what could not be undone is said", async () => {
  node(OK, { status: 400, body: { code: 108, message: "no" } }, { status: 400, body: { code: 101, message: "no quorum" } });
  const failure = await carryOut("username", found, steps, { password: "p" }).catch((thrown: unknown) => thrown);
  expect(failure).toBeInstanceOf(NotUndone);
  expect([(failure as NotUndone).why.message, (failure as NotUndone).undo.message]).toEqual(["no", "no quorum"]);
});

test("without an answer the rules stay, for the user may be there", async () => {
  const sent = node(OK, "away");
  await expect(carryOut("username", found, steps, { password: "p" })).rejects.toThrow();
  expect(sent).toHaveLength(2);
});
