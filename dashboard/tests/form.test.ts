import { describe, expect, it } from "vitest";
import { type Parameters, fieldsOf, paramsOf, valuesOf } from "../src/components/catalogue";
import { type Field, fieldIn, valueOf } from "../src/components/form";

const field = (type: Field["type"], more: Partial<Field> = {}): Field => ({ name: "x", title: "X", type, ...more });

describe("the value of a control", () => {
  it.each([
    [field("text"), "", {}],
    [field("text", { required: true }), "", { wrong: "This field is required." }],
    [field("number"), " 1.5 ", { value: 1.5 }],
    [field("number"), "many", { wrong: "Enter a number." }],
    [field("number", { min: 1 }), "0", { wrong: "Enter 1 or more." }],
    [field("number", { max: 9 }), "10", { wrong: "Enter 9 or less." }],
    [field("switch"), true, { value: true }],
    [field("list"), ["a", "", "b"], { value: ["a", "b"] }],
    [field("map"), [["a", "1"], ["", "2"]] as [string, string][], { value: { a: "1" } }],
    [field("map", { required: true }), [], { wrong: "This field is required." }],
    [field("json"), '{"a":[1]}', { value: { a: [1] } }],
  ])("%#", (given, draft, found) => expect(valueOf(given, draft)).toEqual(found));

  it("says where JSON is wrong", () => {
    expect(valueOf(field("json"), "{").wrong).toContain("Invalid JSON");
  });
});

describe("a refusal", () => {
  const fields = [field("text", { name: "url" }), field("text", { name: "url_base" })];
  it("is shown at the field that it names", () => {
    expect(fieldIn("url: this is no URL", fields)?.name).toBe("url");
    expect(fieldIn("url_base is missing", fields)?.name).toBe("url_base");
    expect(fieldIn("curls", fields)).toBeUndefined();
  });
});

describe("fields of the catalogue", () => {
  it("are in its order, with their types", () => {
    const fields = fieldsOf({
      pool_size: { order: 3, type: "number", title: { en: "Pool size", zh: "x" }, default: 8 },
      url: { order: 1, type: "string", format: "url", required: true, title: "URL" },
      method: { order: 2, type: "string", enum: ["POST", "PUT"], default: "POST" },
      headers: { order: 4, type: "object", default: {} },
      ssl: { order: 5, type: "boolean", default: false },
      password: { order: 6, type: "password" },
    });
    expect(fields.map((one) => [one.name, one.type, one.required])).toEqual([
      ["url", "text", true],
      ["method", "choice", false],
      ["pool_size", "number", false],
      ["headers", "map", false],
      ["ssl", "switch", false],
      ["password", "password", false],
    ]);
    expect(fields[2]).toMatchObject({ title: "Pool size", otherwise: 8 });
  });

  it("of a long list those far behind that need not be given stand apart", () => {
    const many = Object.fromEntries(Array.from({ length: 10 }, (_, at) => [`p${at}`, { order: at, type: "string", required: at === 9 }]));
    expect(fieldsOf(many).map((one) => one.rare ?? false)).toEqual([false, false, false, false, false, false, false, true, true, false]);
  });

  it("check what the catalogue says of a form", () => {
    const [url, name, size] = fieldsOf({
      url: { order: 1, type: "string", format: "url" },
      name: { order: 2, type: "string", format: "[^#+]{1,5}" },
      size: { order: 3, type: "number", range: [1, 64] },
    });
    expect(url?.check?.("ftp://x", {})).toContain("http://");
    expect(url?.check?.("https://x/y", {})).toBeUndefined();
    expect(name?.check?.("a+b", {})).toContain("form");
    expect(name?.check?.("abc", {})).toBeUndefined();
    expect(size).toMatchObject({ min: 1, max: 64 });
  });
});

describe("parameters as the API takes them", () => {
  const parameters: Parameters = {
    target_qos: { type: ["number", "string"], default: 0 },
    target_retain: { type: ["boolean", "string", "number"], default: false },
    payload_tmpl: { type: "string", default: "${payload}" },
    path: { type: "string", default: "" },
    properties: { type: ["object", "string"] },
    method: { type: "string", enum: ["GET", "POST"] },
    level: { type: "number", enum: [1, 2] },
    cert: { type: "file" },
    ingress: { type: "array", items: { type: "object" } },
  };
  it("are read where several types are taken", () => {
    expect(paramsOf(parameters, { target_qos: "1", target_retain: "true", payload_tmpl: "x", properties: '{"a":"b"}', level: "2" })).toEqual({
      target_qos: 1,
      target_retain: true,
      payload_tmpl: "x",
      properties: { a: "b" },
      level: 2,
    });
    expect(paramsOf(parameters, { target_qos: "${qos}", target_retain: "${flags.retain}", payload_tmpl: "x", properties: "${p}" })).toEqual({
      target_qos: "${qos}",
      target_retain: "${flags.retain}",
      payload_tmpl: "x",
      properties: "${p}",
    });
  });
  it("are empty where a default was emptied", () => {
    expect(paramsOf(parameters, {})).toEqual({ payload_tmpl: "" });
  });
  it("are shown and given back the same", () => {
    const given = { target_qos: 1, target_retain: false, payload_tmpl: "", properties: { a: "b" }, cert: { filename: "c.pem", file: "******" }, ingress: [{ topic: "x" }] };
    const fields = fieldsOf(parameters, given);
    expect(fields.map((one) => [one.name, one.type])).toContainEqual(["ingress", "json"]);
    expect(fields.map((one) => [one.name, one.type])).toContainEqual(["cert", "filename"]);
    expect(paramsOf(parameters, valuesOf(parameters, given))).toEqual(given);
    expect(valueOf(field("filename"), '{"filename":"c.pem","file":"x"}')).toEqual({ value: { filename: "c.pem", file: "x" } });
    expect(valueOf(field("filename"), "certs/c.pem")).toEqual({ value: "certs/c.pem" });
  });
});
