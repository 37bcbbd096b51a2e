import type { Json } from "../../api";

export interface Setting {
  key: string;
  value: Json;
  origin: string;
  /** The line of the file, the variable, or the argument. */
  place: string;
  default: Json;
  reloadable: boolean;
  description: string;
}

/** Those that have all the words, of an origin; `changed`: of any but the default. */
export function filtered(settings: Setting[], search: string, origin: string): Setting[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return settings.filter((one) => {
    if (origin === "changed" ? one.origin === "default" : origin !== "" && one.origin !== origin) return false;
    const text = `${one.key} ${JSON.stringify(one.value)} ${one.description}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
