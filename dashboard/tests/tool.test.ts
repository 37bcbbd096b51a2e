import { expect, test } from "vitest";
import { KEPT, KEPT_BYTES, type Message, keep, options } from "../src/pages/tool/connection";
import { bytesOf, jsonLines, readable, wrongFilter, wrongTopic } from "../src/pages/tool/payloads";

const message = (id: number, payload: Uint8Array): Message => ({ id, at: 0, out: false, topic: "t", qos: 1, retain: false, payload, properties: {} });

test("payloads as they were typed", () => {
  expect(bytesOf("é", "text")).toEqual(new Uint8Array([0xc3, 0xa9]));
  expect(bytesOf("0a FF", "hex")).toEqual(new Uint8Array([10, 255]));
  expect(bytesOf("0", "hex")).toBeUndefined();
  expect(bytesOf("xy", "hex")).toBeUndefined();
  expect(bytesOf("AP8=", "base64")).toEqual(new Uint8Array([0, 255]));
  expect(bytesOf("?", "base64")).toBeUndefined();
});

test("so many messages and bytes as stay", () => {
  const many = Array.from({ length: KEPT + 5 }, (_, id) => message(id, new Uint8Array(1)));
  expect(keep([], many).map(({ id }) => id)[0]).toBe(5);
  const large = [message(1, new Uint8Array(KEPT_BYTES)), message(2, new Uint8Array(KEPT_BYTES))];
  expect(keep([], large).map(({ id }) => id)).toEqual([2]);
});

test("what is no UTF-8 is saved as base64", () => {
  expect(JSON.parse(jsonLines([message(1, new Uint8Array([255]))]))).toMatchObject({ topic: "t", payload_base64: "/w==" });
  expect(JSON.parse(jsonLines([message(1, new Uint8Array([65]))]))).toMatchObject({ direction: "in", payload: "A" });
});

test("a version without properties gets none", () => {
  const wanted = { url: "ws://x", clientid: "c", version: 3 as const, clean: true, expiry: 5, keepalive: 1, properties: { a: "b" } };
  expect(options(wanted)).toMatchObject({ protocolId: "MQIsdp", protocolVersion: 3, clean: true });
  expect(options(wanted).properties).toBeUndefined();
  expect(options({ ...wanted, version: 5 }).properties).toEqual({ sessionExpiryInterval: 5, userProperties: { a: "b" } });
});

test("topic names and filters", () => {
  expect(["a/b", "", "/", "$SYS/x"].filter((one) => wrongTopic(one) !== undefined)).toEqual([]);
  expect(["a/+", "#", "a\0"].filter((one) => wrongTopic(one) === undefined)).toEqual([]);
  expect(["#", "+", "a/+/b", "/#", "$share/g/a/#"].filter((one) => wrongFilter(one) !== undefined)).toEqual([]);
  expect(["a/#/b", "a+", "b/#c", "##", "a\0"].filter((one) => wrongFilter(one) === undefined)).toEqual([]);
});

test("bytes of properties are text, or base64", () => {
  const correlationData = new Uint8Array([0xff]);
  expect(readable({ contentType: "x", correlationData })).toEqual({ contentType: "x", correlationData_base64: "/w==" });
  expect(readable({ correlationData: new Uint8Array([52, 50]) })).toEqual({ correlationData: "42" });
});
