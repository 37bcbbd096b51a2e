import { texts } from "../../texts/tool";
import type { Message } from "./connection";

/** The bytes of a payload as it was typed; undefined where it is not of that form. */
export function bytesOf(text: string, encoding: string): Uint8Array | undefined {
  if (encoding === "base64") {
    try {
      return Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
    } catch {
      return undefined;
    }
  }
  if (encoding === "hex") {
    const digits = text.replace(/\s+/g, "");
    if (digits.length % 2 !== 0 || /[^0-9a-fA-F]/.test(digits)) return undefined;
    return Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
  }
  return new TextEncoder().encode(text);
}

export function base64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** What is wrong with a Topic Name. */
export function wrongTopic(value: unknown): string | undefined {
  return typeof value === "string" && /[+#\0]/.test(value) ? texts.badTopic : undefined;
}

/** What is wrong with a Topic Filter. */
export function wrongFilter(value: unknown): string | undefined {
  if (typeof value !== "string") return undefined;
  const levels = value.split("/");
  const wrong = levels.some((level, at) => /\0/.test(level) || (/[+#]/.test(level) && (level.length > 1 || (level === "#" && at < levels.length - 1))));
  return wrong ? texts.badFilter : undefined;
}

/** Properties as JSON takes them: bytes as text, or as base64 where they are none. */
export function readable(properties: Record<string, unknown>): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(properties)) {
    if (!(value instanceof Uint8Array)) found[name] = value;
    else {
      try {
        found[name] = new TextDecoder("utf-8", { fatal: true }).decode(value);
      } catch {
        found[`${name}_base64`] = base64(value);
      }
    }
  }
  return found;
}

/** One JSON object a line; a payload that is no UTF-8 stands in `payload_base64`. */
export function jsonLines(messages: Message[]): string {
  return messages
    .map((message) => {
      const { at, out, topic, qos, retain, payload, properties } = message;
      const head = { at: new Date(at).toISOString(), direction: out ? "out" : "in", topic, qos, retain };
      const more = Object.keys(properties).length > 0 ? { properties: readable(properties) } : {};
      try {
        return JSON.stringify({ ...head, payload: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload), ...more });
      } catch {
        return JSON.stringify({ ...head, payload_base64: base64(payload), ...more });
      }
    })
    .join("\n");
}
