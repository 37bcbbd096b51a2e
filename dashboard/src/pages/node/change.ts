/** A setting that is changed in the file of a node: its field, and the value that the field stands for. */

import type { Json } from "../../api";
import type { Field, FieldType, Values } from "../../components/form";
import { texts } from "../../texts/node";
import type { Setting } from "./settings";

export interface ConfigurationFile {
  node: string;
  file: string;
  version: string;
  editable: boolean;
  /** Why it is not editable. */
  reason: string;
}

export interface Difference {
  node: string;
  file: string;
  version: string;
  diff: string;
  changed: { key: string; before: Json; after: Json }[];
}

export const MASK = "******";

/** Why a setting cannot be changed here; empty: it can. */
export function reasonAgainst(setting: Setting, file: ConfigurationFile | undefined): string {
  const { edit } = texts.configuration;
  if (!setting.reloadable) return edit.restart;
  if (setting.origin === "environment" || setting.origin === "command line") return edit.overridden(setting.place);
  if (file === undefined) return edit.noFile;
  return file.editable ? "" : file.reason;
}

function typeOf({ value, default: otherwise }: Setting): FieldType {
  const known = value ?? otherwise;
  if (typeof known === "boolean") return "switch";
  if (typeof known === "number") return "number";
  if (typeof known === "string") return value === MASK ? "password" : "text";
  return Array.isArray(known) && known.every((one) => typeof one === "string") ? "list" : "json";
}

export function fieldsOf(setting: Setting): Field[] {
  const { edit } = texts.configuration;
  const type = typeOf(setting);
  const about = type === "json" ? edit.json : type === "password" ? edit.secret : undefined;
  return [
    {
      name: "value",
      type,
      title: setting.key,
      description: [setting.description, about].filter(Boolean).join(" "),
      when: (values) => values["delete"] !== true,
    },
    { name: "delete", type: "switch", title: edit.delete, description: edit.deleteAbout(JSON.stringify(setting.default)) },
  ];
}

/** The value as the API takes it; null deletes the key. */
export function valueFor(setting: Setting, values: Values): Json {
  if (values["delete"] === true) return null;
  const { value } = values;
  if (value === undefined || value instanceof File) {
    const type = typeOf(setting);
    return type === "text" ? "" : type === "password" ? MASK : null;
  }
  return value;
}
