import { describe, expect, it } from "vitest";
import { fieldsOf } from "../src/components/catalogue";
import { type Field, fieldIn, valueOf } from "../src/components/form";

const field = (type: Field["type"], more: Partial<Field> = {}): Field => ({ name: "x", title: "X", type, ...more });

describe("the value of a control", () => {
  it.each([
    [field("text"), "", {}],
    [field("text", { required: true }), "", { wrong: "This is needed." }],
    [field("number"), " 1.5 ", { value: 1.5 }],
    [field("number"), "many", { wrong: "This is not a number." }],
    [field("number", { min: 1 }), "0", { wrong: "At least 1." }],
    [field("number", { max: 9 }), "10", { wrong: "At most 9." }],
    [field("switch"), true, { value: true }],
    [field("list"), ["a", "", "b"], { value: ["a", "b"] }],
    [field("map"), [["a", "1"], ["", "2"]] as [string, string][], { value: { a: "1" } }],
    [field("map", { required: true }), [], { wrong: "This is needed." }],
    [field("json"), '{"a":[1]}', { value: { a: [1] } }],
  ])("%#", (given, draft, found) => expect(valueOf(given, draft)).toEqual(found));

  it("says where JSON is wrong", () => {
    expect(valueOf(field("json"), "{").wrong).toContain("not JSON");
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
});
