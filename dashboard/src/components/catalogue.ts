/** Fields of a form, of the parameters that `/actions` and `/resource_types` describe. */

import type { Json } from "../api";
import type { Field } from "./form";

/** As the API describes a parameter. */
export interface Parameter {
  type?: string;
  title?: Json;
  description?: Json;
  required?: boolean;
  default?: Json;
  order?: number;
  enum?: Json[];
  items?: Json;
  input?: string;
  format?: string;
}

export type Parameters = Record<string, Parameter>;

/** EMQX has texts by language, or plain ones. */
export function textOf(text: Json | undefined): string {
  if (typeof text === "string") return text;
  if (text !== null && typeof text === "object" && !Array.isArray(text)) {
    const found = text["en"] ?? Object.values(text)[0];
    return typeof found === "string" ? found : "";
  }
  return "";
}

function fieldOf(name: string, parameter: Parameter): Field {
  const field: Field = {
    name,
    type: "text",
    title: textOf(parameter.title) || name,
    description: textOf(parameter.description) || undefined,
    required: parameter.required === true,
    otherwise: parameter.default === null ? undefined : parameter.default,
  };
  if (parameter.enum) {
    field.type = "choice";
    field.options = parameter.enum.map((value) => ({ value: String(value), title: String(value) }));
    return field;
  }
  switch (parameter.type) {
    case "boolean":
      field.type = "switch";
      break;
    case "number":
    case "integer":
      field.type = "number";
      break;
    case "object":
      field.type = "map";
      break;
    case "array":
      field.type = "list";
      break;
    case "password":
      field.type = "password";
      break;
    case "textarea":
    case "binary_text":
      field.type = "multiline";
      break;
    case "file":
      field.type = "json";
      break;
    default:
      if (parameter.input === "textarea") field.type = "multiline";
      if (parameter.format === "password" || /password|secret|token/.test(name)) field.type = "password";
  }
  return field;
}

/** In the order of the catalogue; what has a default and is not required stands under "More settings". */
export function fieldsOf(parameters: Parameters): Field[] {
  const named = Object.entries(parameters);
  named.sort(([, left], [, right]) => (left.order ?? 1000) - (right.order ?? 1000));
  return named.map(([name, parameter]) => fieldOf(name, parameter));
}
