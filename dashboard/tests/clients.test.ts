import { describe, expect, it } from "vitest";
import { type Refused, matching } from "../src/pages/clients/refused";
import { detailText, limitText } from "../src/pages/clients/story";
import { type Ban, isForEver } from "../src/pages/clients/bans";
import { filtersOf, fromLocal, namedBy, toLocal } from "../src/pages/clients/filters";
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

describe("who is not here", () => {
  const row = (clientid: string, username: string | null, peerhost: string): Refused => ({ clientid, username, peerhost }) as Refused;

  it("is named by the filters, by the client id before all else", () => {
    expect(namedBy({ _like_username: "u", _like_clientid: "c" })).toBe("c");
    expect(namedBy({ ip_address: "10.0.0.1", conn_state: "idle" })).toBe("10.0.0.1");
    expect(namedBy({ conn_state: "idle" })).toBe("");
  });

  it("is found among the refused by a part of its name, in whatever case", () => {
    const rows = [row("Sensor-7", null, "10.0.0.1"), row("x", "sensor", "10.0.0.2"), row("y", "u", "10.0.0.77")];
    expect(matching(rows, "SENSOR").map((one) => one.clientid)).toEqual(["Sensor-7", "x"]);
    expect(matching(rows, "0.77").map((one) => one.clientid)).toEqual(["y"]);
    expect(matching(rows, "").length).toBe(3);
  });

  it("is banned until a time, or for ever", () => {
    const ban = (until: number): Ban => ({ as: "clientid", who: "c", by: "b", reason: "", at: 1_795_000_000, until });
    expect(isForEver(ban(1_795_000_300))).toBe(false);
    expect(isForEver(ban(253_402_300_799))).toBe(true);
    expect(detailText("banned", "by ops until 1795715858: loud")).toMatch(/^by ops until 2026-11-2\d \d\d:\d\d:\d\d .*: loud$/);
    expect(detailText("other", "by ops until 1795715858: loud")).toBe("by ops until 1795715858: loud");
  });
});

describe("a limit", () => {
  it("of bytes is a size, and others are numbers", () => {
    const limit = { setting: "max_queued_bytes", now: 1_024, most: 67_108_864, reached: false };
    expect(limitText(limit)).toBe("max_queued_bytes: 1 KiB of 64 MiB.");
    expect(limitText({ ...limit, setting: "max_queued_messages", now: 1, most: 1_000 })).toBe("max_queued_messages: 1 of 1,000.");
    expect(limitText({ setting: "byte_rate", now: null, most: [1_048_576, 1], reached: true })).toContain("1 MiB / 1 s");
  });
});
