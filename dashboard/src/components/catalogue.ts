/** Fields of a form, of the parameters that `/actions` and `/resource_types` describe. */

import type { Json } from "../api";
import { language } from "../language";
import { texts } from "../texts/common";
import type { Field, Values } from "./form";

/** As the API describes a parameter. */
export interface Parameter {
  /** One type, or all that are taken. */
  type?: string | string[];
  title?: Json;
  description?: Json;
  required?: boolean;
  default?: Json;
  order?: number;
  enum?: Json[];
  items?: Json;
  input?: string;
  /** `url`, or a regular expression of the whole text. */
  format?: string;
  range?: [number, number];
}

export type Parameters = Record<string, Parameter>;
export type Params = Record<string, Json>;

/** EMQX has texts by language, or plain ones. */
export function textOf(text: Json | undefined): string {
  if (typeof text === "string") return text;
  if (text !== null && typeof text === "object" && !Array.isArray(text)) {
    const found = text[language() === "zh-CN" ? "zh" : "en"] ?? text["en"] ?? Object.values(text)[0];
    return typeof found === "string" ? found : "";
  }
  return "";
}

function typesOf(parameter: Parameter): string[] {
  return parameter.type === undefined ? [] : typeof parameter.type === "string" ? [parameter.type] : parameter.type;
}

function isObject(value: Json | undefined): value is { [key: string]: Json } {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function isFlat(value: Json | undefined): boolean {
  if (value === undefined || value === null) return true;
  return typeof value === "object" && Object.values(value).every((one) => typeof one === "string");
}

function formatOf(format: string): ((value: Json | undefined) => string | undefined) | undefined {
  if (format === "url") {
    return (value) =>
      typeof value !== "string" || /^https?:\/\/[^/\s]/i.test(value) ? undefined : texts.form.notUrl;
  }
  let expression: RegExp;
  try {
    expression = new RegExp(`^(?:${format})$`, "su");
  } catch {
    return undefined; // The node knows more than the browser; it checks.
  }
  return (value) => (typeof value !== "string" || expression.test(value) ? undefined : texts.form.notFormat(format));
}

/** What a form makes of it; `given`: the value that it has by now. */
function fieldOf(name: string, parameter: Parameter, given: Json | undefined): Field {
  const field: Field = {
    name,
    type: "text",
    title: textOf(parameter.title) || name,
    description: textOf(parameter.description) || undefined,
    required: parameter.required === true,
    otherwise: parameter.default === null ? undefined : parameter.default,
  };
  if (parameter.range) [field.min, field.max] = parameter.range;
  if (parameter.format) {
    const check = formatOf(parameter.format);
    if (check) field.check = check;
  }
  if (parameter.enum) {
    field.type = "choice";
    field.options = parameter.enum.map((value) => ({ value: String(value), title: String(value) }));
    return field;
  }
  const types = typesOf(parameter);
  switch (types.length === 1 ? types[0] : "string") {
    case "boolean":
      field.type = "switch";
      break;
    case "number":
    case "integer":
      field.type = "number";
      break;
    case "object":
      field.type = isFlat(given ?? parameter.default) ? "map" : "json";
      break;
    case "array":
      field.type = (isObject(parameter.items) && parameter.items["type"] === "object") || !isFlat(given) ? "json" : "list";
      break;
    case "password":
      field.type = "password";
      break;
    case "textarea":
    case "binary_text":
      field.type = "multiline";
      break;
    case "file":
    case "binary_file":
      field.type = "filename";
      break;
    default:
      if (parameter.input === "textarea") field.type = "multiline";
  }
  return field;
}

function inOrder(parameters: Parameters): [string, Parameter][] {
  return Object.entries(parameters).sort(([, left], [, right]) => (left.order ?? 1000) - (right.order ?? 1000));
}

// A form of so many is read at a glance; of a longer one the rest that has a good default stands apart.
const AT_A_GLANCE = 8;

/** In the order of the catalogue; of many, those far behind that need not be given stand under "More settings". */
export function fieldsOf(parameters: Parameters, given: Params = {}): Field[] {
  const named = inOrder(parameters);
  const many = named.length > AT_A_GLANCE;
  return named.map(([name, parameter], index) => {
    const field = fieldOf(name, parameter, given[name]);
    return many && index >= AT_A_GLANCE - 1 && !field.required ? { ...field, rare: true } : field;
  });
}

/** Parameters as their form shows them. */
export function valuesOf(parameters: Parameters, given: Params): Values {
  const shown: Values = {};
  for (const [name, parameter] of Object.entries(parameters)) {
    const value = given[name];
    if (value === undefined) continue;
    const several = typesOf(parameter).length > 1;
    shown[name] = several && value !== null && typeof value === "object" ? JSON.stringify(value) : value;
  }
  return shown;
}

/** A text where several types are taken: `1` is a number, `{...}` an object, if those are among them. */
function read(text: string, types: string[]): Json {
  if (types.includes("number") && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (types.includes("boolean") && /^(true|false)$/.test(text)) return text === "true";
  if ((types.includes("object") && /^\s*\{/.test(text)) || (types.includes("array") && /^\s*\[/.test(text))) {
    try {
      return JSON.parse(text) as Json;
    } catch {
      return text; // The node says what it wants in its place.
    }
  }
  return text;
}

/** What a form gave, as the API takes it. What was emptied although it has a default is given as empty. */
export function paramsOf(parameters: Parameters, values: Values): Params {
  const params: Params = {};
  for (const [name, parameter] of Object.entries(parameters)) {
    const value = values[name];
    if (value instanceof File) continue;
    const types = typesOf(parameter);
    if (value === undefined) {
      if (types.includes("string") && !parameter.enum && parameter.default) params[name] = "";
    } else if (parameter.enum) params[name] = parameter.enum.find((one) => String(one) === value) ?? value;
    else params[name] = types.length > 1 && typeof value === "string" ? read(value, types) : value;
  }
  return params;
}
