/** The connections of the client tool. They live on while other pages are open, until the tab is closed. */

import { signal, type Signal } from "@preact/signals";
import type { IClientOptions, IPublishPacket, MqttClient } from "mqtt";
import { texts } from "../../texts/tool";

export interface Wanted {
  url: string;
  clientid: string;
  version: 3 | 4 | 5;
  username?: string | undefined;
  password?: string | undefined;
  clean: boolean;
  expiry?: number | undefined;
  keepalive: number;
  receiveMaximum?: number | undefined;
  properties: Record<string, string>;
  will?: { topic: string; payload: string; qos: 0 | 1 | 2; retain: boolean; delay?: number | undefined } | undefined;
}

export type Qos = 0 | 1 | 2;

export interface Subscription {
  filter: string;
  qos: Qos;
}

export interface Message {
  id: number;
  /** Unix milliseconds. */
  at: number;
  out: boolean;
  topic: string;
  qos: Qos;
  retain: boolean;
  payload: Uint8Array;
  properties: Record<string, unknown>;
}

export type State = "connecting" | "connected" | "closed" | "refused";

export const KEPT = 1_000;
export const KEPT_BYTES = 16 << 20;

/** The latest messages: so many, and so many bytes, as stay. */
export function keep(messages: Message[], more: Message[]): Message[] {
  const all = messages.concat(more).slice(-KEPT);
  let size = 0;
  let first = all.length;
  while (first > 0) {
    size += all[first - 1]?.payload.length ?? 0;
    if (size > KEPT_BYTES && first < all.length) break;
    first -= 1;
  }
  return all.slice(first);
}

export function options(wanted: Wanted): IClientOptions {
  const found: IClientOptions = {
    clientId: wanted.clientid,
    protocolId: wanted.version === 3 ? "MQIsdp" : "MQTT",
    protocolVersion: wanted.version,
    clean: wanted.clean,
    keepalive: wanted.keepalive,
    reconnectPeriod: 0,
    connectTimeout: 15_000,
    resubscribe: false,
    // The other one is a worker made of a blob, which the Content-Security-Policy refuses.
    timerVariant: "native",
  };
  if (wanted.username !== undefined) found.username = wanted.username;
  if (wanted.password !== undefined) found.password = wanted.password;
  if (wanted.version === 5) {
    found.properties = {};
    if (wanted.expiry !== undefined) found.properties.sessionExpiryInterval = wanted.expiry;
    if (wanted.receiveMaximum !== undefined) found.properties.receiveMaximum = wanted.receiveMaximum;
    if (Object.keys(wanted.properties).length > 0) found.properties.userProperties = wanted.properties;
  }
  if (wanted.will) {
    const { topic, payload, qos, retain, delay } = wanted.will;
    // The type asks for Node's Buffer; the library takes any bytes.
    found.will = { topic, payload: new TextEncoder().encode(payload) as never, qos, retain };
    if (wanted.version === 5 && delay !== undefined) found.will.properties = { willDelayInterval: delay };
  }
  return found;
}

let lastMessage = 0;
let lastConnection = 0;

export class Connection {
  readonly id = (lastConnection += 1);
  readonly state: Signal<State> = signal("connecting");
  /** Why it is closed or refused. */
  readonly reason = signal("");
  readonly messages = signal<Message[]>([]);
  readonly subscriptions = signal<Subscription[]>([]);
  private client: MqttClient | undefined;
  private pending: Message[] = [];
  private asked: number | undefined;

  constructor(readonly wanted: Wanted) {
    void this.open();
  }

  async open(): Promise<void> {
    this.state.value = "connecting";
    this.reason.value = "";
    const { default: mqtt } = await import("mqtt");
    let client: MqttClient;
    try {
      client = mqtt.connect(this.wanted.url, options(this.wanted));
    } catch (error) {
      this.state.value = "refused";
      this.reason.value = error instanceof Error ? error.message : String(error);
      return;
    }
    this.client = client;
    client.on("connect", (packet) => {
      this.state.value = "connected";
      if (!packet.sessionPresent) this.subscriptions.value = [];
    });
    client.on("message", (topic, payload, packet) => this.note(false, topic, payload, packet));
    client.on("disconnect", (packet) => {
      this.reason.value = `DISCONNECT 0x${(packet.reasonCode ?? 0).toString(16).padStart(2, "0")} ${packet.properties?.reasonString ?? ""}`.trim();
    });
    client.on("error", (error) => {
      if (this.state.value === "connecting") this.state.value = "refused";
      this.reason.value = error.message;
    });
    client.on("close", () => {
      if (this.state.value !== "refused") this.state.value = "closed";
      client.end(true);
    });
  }

  get connected(): MqttClient {
    if (!this.client || this.state.value !== "connected") throw new Error(texts.notConnected);
    return this.client;
  }

  /** Granted QoS; throws with the reason code where it was refused. */
  async subscribe(filter: string, asked: { qos: Qos; nl?: boolean; rap?: boolean; rh?: number }, identifier?: number): Promise<Qos> {
    const given = identifier === undefined ? asked : { ...asked, properties: { subscriptionIdentifier: identifier } };
    const granted = await this.connected.subscribeAsync(filter, given as never);
    const qos = granted[0]?.qos ?? asked.qos;
    if (qos > 2) throw new Error(`0x${qos.toString(16)}`);
    this.subscriptions.value = [...this.subscriptions.value.filter((one) => one.filter !== filter), { filter, qos: qos as Qos }];
    return qos as Qos;
  }

  async unsubscribe(filter: string): Promise<void> {
    await this.connected.unsubscribeAsync(filter);
    this.subscriptions.value = this.subscriptions.value.filter((one) => one.filter !== filter);
  }

  /** Resolves when it was acknowledged. */
  async publish(topic: string, payload: Uint8Array, qos: Qos, retain: boolean, properties: IPublishPacket["properties"]): Promise<void> {
    await this.connected.publishAsync(topic, payload as never, { qos, retain, ...(properties ? { properties } : {}) });
    this.note(true, topic, payload, { qos, retain, properties });
  }

  /** `hard`: the socket is closed without DISCONNECT. */
  close(hard: boolean): void {
    const { client } = this;
    if (!client) return;
    if (hard) client.stream.destroy();
    else client.end();
    this.state.value = "closed";
  }

  clear(): void {
    this.messages.value = [];
  }

  private note(out: boolean, topic: string, payload: Uint8Array, packet: { qos: number; retain: boolean; properties?: unknown }): void {
    lastMessage += 1;
    this.pending.push({
      id: lastMessage,
      at: Date.now(),
      out,
      topic,
      qos: packet.qos as Qos,
      retain: packet.retain,
      payload,
      properties: (packet.properties ?? {}) as Record<string, unknown>,
    });
    if (this.pending.length > KEPT) this.pending = keep([], this.pending);
    // Thousands a second are shown a few times a second.
    this.asked ??= window.setTimeout(() => {
      this.asked = undefined;
      const { pending } = this;
      this.pending = [];
      this.messages.value = keep(this.messages.value, pending);
    }, 200);
  }
}

export const connections = signal<Connection[]>([]);

export function forget(connection: Connection): void {
  connection.close(false);
  connections.value = connections.value.filter((one) => one !== connection);
}
