/** The filters of `GET /clients`, which stand in the address under the API's own names. */

export const FILTERS = {
  _like_clientid: "text",
  _like_username: "text",
  conn_state: ["connected", "idle", "disconnected"],
  clientid: "text",
  username: "text",
  ip_address: "text",
  zone: "text",
  clean_start: ["true", "false"],
  proto_name: ["MQTT", "CoAP", "LwM2M", "MQTT-SN"],
  proto_ver: ["3", "4", "5"],
  _gte_connected_at: "time",
  _lte_connected_at: "time",
  _gte_created_at: "time",
  _lte_created_at: "time",
  _gte_mqueue_len: "number",
  _lte_mqueue_len: "number",
  _gte_mqueue_dropped: "number",
  _lte_mqueue_dropped: "number",
} as const;

export type FilterName = keyof typeof FILTERS;
export const NAMES = Object.keys(FILTERS) as FilterName[];
/** Always in sight; the others are folded away. */
export const FIRST: FilterName[] = ["_like_clientid", "_like_username", "conn_state"];

/** What of the address's query is a filter. */
export function filtersOf(query: Record<string, string>): Partial<Record<FilterName, string>> {
  const found: Partial<Record<FilterName, string>> = {};
  for (const name of NAMES) if (query[name]) found[name] = query[name];
  return found;
}

const NAMING: FilterName[] = ["clientid", "_like_clientid", "username", "_like_username", "ip_address"];

/** What the filters say of who is looked for; empty: nothing. */
export function namedBy(filters: Partial<Record<FilterName, string>>): string {
  return NAMING.map((name) => filters[name]).find(Boolean) ?? "";
}

/** Unix milliseconds as a field for date and time has them, in this browser's zone; empty for none. */
export function toLocal(text: string): string {
  const at = Number(text);
  if (text === "" || !Number.isFinite(at)) return "";
  const local = new Date(at - new Date(at).getTimezoneOffset() * 60_000);
  return Number.isNaN(local.getTime()) ? "" : local.toISOString().slice(0, 16);
}

export function fromLocal(text: string): string {
  const at = Date.parse(text);
  return Number.isNaN(at) ? "" : String(at);
}
