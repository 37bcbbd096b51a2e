import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError, NodeAway, address, api, away, forgetMissing, isAbort, missingNodes, part, returned } from "../src/api";
import { expired, forget, logIn, login } from "../src/session";

const answers: (() => Promise<Response>)[] = [];
const asked: { url: string; init: RequestInit }[] = [];

function answer(status: number, body: unknown): void {
  answers.push(() => Promise.resolve(new Response(JSON.stringify(body), { status })));
}

function refuseConnection(): void {
  answers.push(() => Promise.reject(new TypeError("Failed to fetch")));
}

beforeEach(() => {
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    asked.push({ url, init });
    const next = answers.shift();
    if (!next) throw new Error(`nobody answers ${url}`);
    return next();
  });
});

afterEach(() => {
  expect(answers).toEqual([]);
  asked.length = 0;
  away.value = false;
  forget();
  vi.unstubAllGlobals();
});

it("names that a path cannot have end in U+0000", () => {
  expect(["..", ".", "username", "...", "a/b", "%", "%2e"].map(part)).toEqual(["..%00", ".%00", "username%00", "...", "a%2Fb", "%25", "%252e"]);
});

describe("the envelope", () => {
  it("is opened, and the header that no form can send goes with each request", async () => {
    answer(200, { code: 0, data: { a: 1 } });
    expect(await api.get("/things", { q: "a b", none: undefined, empty: "" })).toEqual({ a: 1 });
    expect(asked[0]?.url).toBe("/api/v4/things?q=a+b");
    expect(asked[0]?.init.headers).toMatchObject({ "X-Taipan-Dashboard": "1" });
  });

  it("has pages", async () => {
    answer(200, { code: 0, data: [1, 2], meta: { page: 2, limit: 2, count: 5, hasnext: true } });
    expect(await api.page("/things", {})).toEqual({ rows: [1, 2], meta: { page: 2, limit: 2, count: 5, hasnext: true } });
    answer(200, { code: 0, data: [1] });
    expect((await api.page("/things", {})).meta).toEqual({ page: 1, limit: 1, count: 1, hasnext: false });
  });

  it("names the nodes that did not answer, until they do or another page is opened", async () => {
    const of = (...nodes: string[]): void => answer(200, { code: 0, data: [], meta: { missing_nodes: nodes } });
    of("n3");
    await api.page("/clients", {});
    of("n2", "n3");
    await api.get("/stats");
    expect(missingNodes.value).toEqual(["n2", "n3"]);
    answer(200, { code: 0, data: [] });
    await api.get("/stats");
    expect(missingNodes.value).toEqual(["n3"]);
    forgetMissing();
    expect(missingNodes.value).toEqual([]);
  });

  it("tells what was refused and what can be done", async () => {
    answer(400, { code: 113, message: "exists already" });
    const error = await api.post("/things", { name: "x" }).catch((caught: unknown) => caught);
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ status: 400, code: 113, message: "exists already", method: "POST", path: "/things" });
    expect((error as ApiError).advice).toContain("another name");
  });

  it("is a refusal with status 200 too, as management.error_status = emqx has it", async () => {
    answer(200, { code: 112, message: "no such client" });
    await expect(api.get("/clients/x")).rejects.toMatchObject({ code: 112 });
  });

  it("is missing where something else answers", async () => {
    answers.push(() => Promise.resolve(new Response("<html>", { status: 500 })));
    await expect(api.get("/things")).rejects.toMatchObject({ status: 500, code: -1 });
  });

  it("encodes what stands in a path", () => {
    expect(address(`/clients/${part("a/b?c#")}`)).toBe("/api/v4/clients/a%2Fb%3Fc%23");
  });
});

describe("a node that is away", () => {
  it("is said, and its return too", async () => {
    const before = returned.value;
    refuseConnection();
    await expect(api.get("/things")).rejects.toBeInstanceOf(NodeAway);
    expect(away.value).toBe(true);
    answer(200, { code: 0 });
    await api.get("/things");
    expect(away.value).toBe(false);
    expect(returned.value).toBe(before + 1);
  });

  it("is not one that was not waited for", async () => {
    const controller = new AbortController();
    answers.push(() => {
      controller.abort();
      return Promise.reject(new DOMException("aborted", "AbortError"));
    });
    const error = await api.get("/things", {}, controller.signal).catch((caught: unknown) => caught);
    expect(isAbort(error)).toBe(true);
    expect(away.value).toBe(false);
  });
});

describe("a login that ends", () => {
  it("is asked for, and the request is made again", async () => {
    login.value = { username: "ann", role: "administrator", expires_at: 0, openid: false };
    answer(401, { code: 104, message: "" });
    answer(401, { code: 104, message: "" });
    const first = api.get("/a");
    const second = api.post("/b", { typed: "much" });
    await vi.waitFor(() => expect(expired.value).toBe(true));
    answer(200, { code: 0, data: { username: "ann", role: "administrator", expires_at: 0, openid: false } });
    answer(200, { code: 0, data: "A" });
    answer(200, { code: 0, data: "B" });
    await logIn("ann", "secret");
    expect(await first).toBe("A");
    expect(await second).toBe("B");
    expect(expired.value).toBe(false);
    expect(asked.at(-1)?.init.body).toBe('{"typed":"much"}');
  });

  it("is left without it: what waited ends", async () => {
    login.value = { username: "ann", role: "viewer", expires_at: 0, openid: false };
    answer(401, { code: 104 });
    const waiting = api.get("/a");
    await vi.waitFor(() => expect(expired.value).toBe(true));
    forget();
    await expect(waiting).rejects.toMatchObject({ status: 401 });
    expect(login.value).toBeNull();
  });

  it("is not asked for where the password was wrong", async () => {
    answer(401, { code: 103, message: "wrong" });
    await expect(logIn("ann", "no")).rejects.toMatchObject({ status: 401, code: 103 });
    expect(expired.value).toBe(false);
  });
});
