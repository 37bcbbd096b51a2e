import { afterEach, describe, expect, it, vi } from "vitest";
import { kickEach } from "../src/pages/clients/orders";

afterEach(() => vi.unstubAllGlobals());

/** Answers by client id; others are ended. */
function answers(of: Record<string, [number, object]>): string[] {
  const asked: string[] = [];
  vi.stubGlobal(
    "fetch",
    vi.fn((address: string) => {
      const id = decodeURIComponent(address.slice(address.lastIndexOf("/") + 1));
      asked.push(id);
      const [status, body] = of[id] ?? [200, { code: 0 }];
      return Promise.resolve(new Response(JSON.stringify(body), { status }));
    }),
  );
  return asked;
}

describe("ending many clients", () => {
  it("names those that could not be ended, and only those are tried again", async () => {
    answers({ b: [500, { code: 101, message: "no" }], gone: [404, { code: 112, message: "gone" }] });
    const left = await kickEach(["a", "b", "gone", "a/b?c"]);
    expect(left).toEqual(["b"]);
    const asked = answers({});
    expect(await kickEach(left)).toEqual([]);
    expect(asked).toEqual(["b"]);
  });
});
