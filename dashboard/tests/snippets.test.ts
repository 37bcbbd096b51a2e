import { expect, test } from "vitest";
import { endpointOf, languagesOf, snippet } from "../src/pages/node/snippets";
import type { Setting } from "../src/pages/node/settings";

function setting(key: string, value: Setting["value"]): Setting {
  return { key, value, origin: "file", place: "", default: null, reloadable: false, description: "" };
}

const SETTINGS = [setting("listeners.0.bind", "0.0.0.0:8083"), setting("listeners.0.path", "/ws")];

test("the endpoint of a listener", () => {
  const of = (protocol: string, listen_on: string) => endpointOf({ protocol, listen_on, identifier: "x" }, SETTINGS, "broker.example");
  expect(of("mqtt:tcp", "0.0.0.0:1883")).toEqual({ host: "broker.example", port: 1883, tls: false, path: undefined, local: false });
  expect(of("mqtt:ssl", "[::]:8883")).toMatchObject({ host: "broker.example", port: 8883, tls: true });
  expect(of("mqtt:ws:8083", "0.0.0.0:8083")).toMatchObject({ path: "/ws", tls: false });
  expect(of("mqtt:wss:8084", "10.0.0.1:8084")).toMatchObject({ host: "10.0.0.1", path: "/mqtt", tls: true, local: false });
  expect(of("mqtt:tcp", "127.0.0.1:1883")).toMatchObject({ host: "127.0.0.1", local: true });
  expect(of("mqtt:tcp", "[::1]:1883")).toMatchObject({ host: "::1", local: true });
  for (const protocol of ["http:management", "mqtt:unix", "coap", "mqttsn"]) expect(of(protocol, "0.0.0.0:1")).toBeUndefined();
  expect(of("mqtt:tcp", "/run/mqtt.sock")).toBeUndefined();
});

const TLS = { host: "h.example", port: 8883, tls: true, path: undefined, local: false };

test("programs use host, port, TLS and login", () => {
  for (const language of languagesOf(TLS)) {
    const text = snippet(language, TLS, "ann") ?? "";
    expect(text).toContain("h.example");
    expect(text).toContain("8883");
    expect(text).toContain("ann");
    expect(text).toMatch(/tls|mqtts|Secure/);
    expect(snippet(language, { ...TLS, tls: false }, "")).not.toMatch(/tls|mqtts|Secure|PASSWORD/);
  }
  expect(snippet("javascript", { ...TLS, host: "::1", path: "/mqtt" }, "")).toContain('"wss://[::1]:8883/mqtt"');
  expect(snippet("mosquitto", { ...TLS, path: "/mqtt" }, "")).toBeUndefined();
});

test("a name cannot end its string", () => {
  const name = "a'b\"c\\d\n$(x)\u2028";
  expect(snippet("mosquitto", TLS, "a'b$(x)")).toContain("-u 'a'\\''b$(x)' -P");
  expect(snippet("python", TLS, name)).toContain('username_pw_set("a\'b\\"c\\\\d\\n$(x)\\u2028", "PASSWORD")');
});
