import { describe, expect, it } from "vitest";
import { filtersOf, fromLocal, toLocal } from "../src/pages/clients/filters";
import { type Client, addressOf, stateOf, userOf, withoutMountpoint } from "../src/pages/clients/record";

const client = (facts: Partial<Client>): Client => facts as Client;

describe("filters of clients", () => {
  it("are what the address has of them", () => {
    expect(filtersOf({ _like_clientid: "po", conn_state: "", page: "2", sort: "-queued", proto_ver: "5" })).toEqual({
      _like_clientid: "po",
      proto_ver: "5",
    });
  });

  it("have times as milliseconds in the address and as local time in the field", () => {
    const at = fromLocal("2026-01-31T13:05");
    expect(toLocal(at)).toBe("2026-01-31T13:05");
    expect(fromLocal("")).toBe("");
    expect([toLocal(""), toLocal("soon"), toLocal("9e99")]).toEqual(["", "", ""]);
  });
});

describe("the record of a client", () => {
  it("tells the states apart", () => {
    expect(stateOf(client({ connected: true }))).toBe("connected");
    expect(stateOf(client({ connected: false }))).toBe("idle");
    expect(stateOf(client({ connected: false, disconnected_at: "2026-01-31 13:05:09" }))).toBe("away");
  });

  it("has no user where the API writes undefined, and brackets around an IPv6 address", () => {
    expect(userOf(client({ username: "undefined" }))).toBeNull();
    expect(addressOf(client({ ip_address: "::1", port: 7 }))).toBe("[::1]:7");
    expect(addressOf(client({ ip_address: "10.0.0.1", port: 7 }))).toBe("10.0.0.1:7");
  });

  it("names filters as the client does", () => {
    expect(withoutMountpoint("home/1/a/#", "home/1/")).toBe("a/#");
    expect(withoutMountpoint("$share/g/home/1/a\n", "home/1/")).toBe("$share/g/a\n");
    expect(withoutMountpoint("$share/g/a", undefined)).toBe("$share/g/a");
    expect(withoutMountpoint("other", "home/1/")).toBe("other");
  });
});
