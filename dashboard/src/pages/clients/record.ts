/** The client record of the API, and what is read from it. */

export interface Client {
  node: string;
  clientid: string;
  username: string;
  proto_name: string;
  proto_ver: number;
  ip_address: string;
  port: number;
  is_bridge: boolean;
  connected_at: string;
  disconnected_at?: string;
  connected: boolean;
  zone: string;
  keepalive: number;
  clean_start: boolean;
  expiry_interval: number;
  created_at: string;
  subscriptions_cnt: number;
  max_subscriptions: number;
  inflight: number;
  max_inflight: number;
  mqueue_len: number;
  max_mqueue: number;
  mqueue_dropped: number;
  awaiting_rel: number;
  max_awaiting_rel: number;
  recv_oct: number;
  recv_pkt: number;
  recv_msg: number;
  "recv_msg.qos0": number;
  "recv_msg.qos1": number;
  "recv_msg.qos2": number;
  "recv_msg.dropped": number;
  send_oct: number;
  send_pkt: number;
  send_msg: number;
  "send_msg.qos0": number;
  "send_msg.qos1": number;
  "send_msg.qos2": number;
  "send_msg.dropped": number;
  "send_msg.dropped.expired": number;
  "send_msg.dropped.queue_full": number;
  "send_msg.dropped.too_large": number;
  mailbox_len: number;
  heap_size: number;
  mountpoint?: string;
}

export interface Rates {
  recv_msg: number;
  recv_oct: number;
  send_msg: number;
  send_oct: number;
}

/** What the live stream says of a client: its record, or that there is none. */
export type LiveClient = (Client & { rates: Rates }) | { clientid: string; connected: false; node?: undefined };

export type State = "connected" | "idle" | "away";

export function stateOf(client: Client): State {
  if (client.connected) return "connected";
  return client.disconnected_at === undefined ? "idle" : "away";
}

/** The API writes this text for a client without a user name. */
export function userOf(client: Client): string | null {
  return client.username === "undefined" ? null : client.username;
}

export function addressOf(client: Client): string {
  return client.ip_address.includes(":") ? `[${client.ip_address}]:${client.port}` : `${client.ip_address}:${client.port}`;
}

const VERSIONS: Record<number, string> = { 3: "3.1", 4: "3.1.1", 5: "5.0" };

export function versionOf(client: Client): string {
  return VERSIONS[client.proto_ver] ?? `${client.proto_name} ${client.proto_ver}`;
}

/** 0xFFFFFFFF of the standard. */
export const NEVER = 4_294_967_295;

/**
 * The filter as its client names it: the API lists it with the mount point, and puts that before what it is asked to
 * unsubscribe.
 */
export function withoutMountpoint(topic: string, mountpoint: string | undefined): string {
  if (!mountpoint) return topic;
  const [, head = "", filter = ""] = /^(\$share\/[^/]*\/)?([\s\S]*)$/.exec(topic) ?? [];
  return filter.startsWith(mountpoint) ? head + filter.slice(mountpoint.length) : topic;
}
