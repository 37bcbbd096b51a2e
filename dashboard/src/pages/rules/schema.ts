import type { Json } from "../../api";

export interface Schema {
  name: string;
  parser_type: string;
  schema: string;
  descr: string;
  /** Milliseconds. */
  created_at: number;
  /** Why it cannot be used on this node. */
  fault?: string;
}

/** How a payload is written in the field of the test. */
export const TESTED = ["text", "base64", "hex"] as const;
export type Written = (typeof TESTED)[number];

const READ: Record<Written, string> = { text: "payload", base64: "base64_decode(payload)", hex: "hexstr2bin(payload)" };
const TITLES: Record<string, string> = { avro: "Avro", protobuf: "Protobuf", json: "JSON Schema" };

export function typeTitle(type: string): string {
  return TITLES[type] ?? type;
}

/** The test of a rule that decodes a payload. What was typed is in its event, so that nothing is pasted into SQL. */
export function testOf(name: string, written: Written, payload: string, message?: string): Record<string, Json> {
  const more = message === undefined ? "" : ", username";
  return {
    rawsql: `SELECT schema_decode(clientid, ${READ[written]}${more}) as decoded FROM "t"`,
    ctx: { clientid: name, payload: written === "text" ? payload : payload.replace(/\s+/g, ""), topic: "t", ...(message === undefined ? {} : { username: message.trim() }) },
    test: true,
  };
}
