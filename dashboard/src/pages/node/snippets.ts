/** How a client connects: host, port and TLS of a listener, and programs that use them. */

import type { Setting } from "./settings";

export interface Endpoint {
  host: string;
  port: number;
  tls: boolean;
  /** The path of WebSocket; undefined: TCP. */
  path: string | undefined;
  /** Only programs on the machine of the node reach it. */
  local: boolean;
}

export interface MqttListener {
  /** `mqtt:tcp`, `mqtt:ssl`, `mqtt:ws:8083`, `mqtt:wss:8084`, and those of other servers. */
  protocol: string;
  listen_on: string;
  identifier: string;
  running?: boolean;
}

const ANY = new Set(["", "0.0.0.0", "::", "*"]);
const TYPE = /^mqtt:(tcp|ssl|ws|wss)(:|$)/;

function parts(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(":");
  return { host: address.slice(0, Math.max(at, 0)).replace(/^\[|\]$/g, ""), port: Number(address.slice(at + 1)) };
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || host.startsWith("127.");
}

/** Where clients reach a listener; undefined: it is not of MQTT over TCP or WebSocket. `here`: the host of this page. */
export function endpointOf(listener: MqttListener, settings: Setting[], here: string): Endpoint | undefined {
  const type = TYPE.exec(listener.protocol)?.[1];
  if (type === undefined) return undefined;
  const { host, port } = parts(listener.listen_on);
  if (!(port > 0)) return undefined;
  const bind = settings.find((one) => /^listeners\.\d+\.bind$/.test(one.key) && one.value === listener.listen_on);
  const setting = bind && settings.find((one) => one.key === bind.key.replace(/bind$/, "path"))?.value;
  const path = typeof setting === "string" ? setting : Array.isArray(setting) && typeof setting[0] === "string" ? setting[0] : "/mqtt";
  return {
    host: ANY.has(host) ? here.replace(/^\[|\]$/g, "") : host,
    port,
    tls: type === "ssl" || type === "wss",
    path: type === "ws" || type === "wss" ? path : undefined,
    local: isLoopback(host),
  };
}

export type Language = "mosquitto" | "python" | "javascript" | "arduino";

/** A word of a shell, whatever is in it. */
function shell(text: string): string {
  return /^[A-Za-z0-9_./:@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A string of Python, JavaScript or C: JSON escapes everything that ends one, and U+2028. */
function quoted(text: string): string {
  return JSON.stringify(text).replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029");
}

function bracketed(host: string): string {
  return host.includes(":") ? `[${host}]` : host;
}

/** The languages in which there is a program for this endpoint. */
export function languagesOf({ path }: Endpoint): Language[] {
  return path === undefined ? ["mosquitto", "python", "javascript", "arduino"] : ["python", "javascript"];
}

/** A program that subscribes and publishes; undefined: there is none. `username`: empty: without a login. */
export function snippet(language: Language, endpoint: Endpoint, username: string): string | undefined {
  if (!languagesOf(endpoint).includes(language)) return undefined;
  switch (language) {
    case "mosquitto":
      return mosquitto(endpoint, username);
    case "python":
      return python(endpoint, username);
    case "javascript":
      return javascript(endpoint, username);
    case "arduino":
      return arduino(endpoint, username);
  }
}

function mosquitto({ host, port, tls }: Endpoint, username: string): string {
  const login = username === "" ? "" : ` -u ${shell(username)} -P PASSWORD`;
  const where = `-h ${shell(host)} -p ${port}${tls ? " --tls-use-os-certs" : ""}${login}`;
  return `mosquitto_sub ${where} -t 'test/#' -v\nmosquitto_pub ${where} -t test/hello -m "Hello"\n`;
}

function python({ host, port, tls, path }: Endpoint, username: string): string {
  const lines = [
    "# pip install paho-mqtt",
    "import paho.mqtt.client as mqtt",
    "from paho.mqtt.enums import CallbackAPIVersion",
    "",
    "",
    "def on_connect(client, userdata, flags, reason, properties):",
    '    print("connected:", reason)',
    '    client.subscribe("test/#", qos=1)',
    '    client.publish("test/hello", "Hello", qos=1)',
    "",
    "",
    "def on_message(client, userdata, message):",
    "    print(message.topic, message.payload.decode())",
    "",
    "",
    `client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5${path === undefined ? "" : ', transport="websockets"'})`,
    ...(path === undefined ? [] : [`client.ws_set_options(path=${quoted(path)})`]),
    ...(username === "" ? [] : [`client.username_pw_set(${quoted(username)}, "PASSWORD")`]),
    ...(tls ? ["client.tls_set()"] : []),
    "client.on_connect = on_connect",
    "client.on_message = on_message",
    `client.connect(${quoted(host)}, ${port})`,
    "client.loop_forever()",
  ];
  return `${lines.join("\n")}\n`;
}

function javascript({ host, port, tls, path }: Endpoint, username: string): string {
  const scheme = path === undefined ? (tls ? "mqtts" : "mqtt") : tls ? "wss" : "ws";
  const lines = [
    "// npm install mqtt",
    'import mqtt from "mqtt";',
    "",
    `const client = mqtt.connect(${quoted(`${scheme}://${bracketed(host)}:${port}${path ?? ""}`)}, {`,
    "  protocolVersion: 5,",
    ...(username === "" ? [] : [`  username: ${quoted(username)},`, '  password: "PASSWORD",']),
    "});",
    'client.on("connect", () => {',
    '  client.subscribe("test/#", { qos: 1 });',
    '  client.publish("test/hello", "Hello", { qos: 1 });',
    "});",
    'client.on("message", (topic, payload) => console.log(topic, payload.toString()));',
    'client.on("error", (error) => console.error(error.message));',
  ];
  return `${lines.join("\n")}\n`;
}

function arduino({ host, port, tls }: Endpoint, username: string): string {
  const login = username === "" ? "" : `, ${quoted(username)}, "PASSWORD"`;
  const lines = [
    "// ESP32, library PubSubClient",
    "#include <PubSubClient.h>",
    "#include <WiFi.h>",
    ...(tls ? ["#include <WiFiClientSecure.h>"] : []),
    "",
    ...(tls
      ? [
          'const char *authority = R"(-----BEGIN CERTIFICATE-----',
          "... the authority that signed the certificate of the listener",
          '-----END CERTIFICATE-----',
          ')";',
          "",
          "WiFiClientSecure network;",
        ]
      : ["WiFiClient network;"]),
    "PubSubClient client(network);",
    "",
    "void receive(char *topic, byte *payload, unsigned int length) {",
    '  Serial.printf("%s %.*s\\n", topic, (int)length, (const char *)payload);',
    "}",
    "",
    "void setup() {",
    "  Serial.begin(115200);",
    '  WiFi.begin("network", "password");',
    "  while (WiFi.status() != WL_CONNECTED) delay(100);",
    ...(tls ? ["  network.setCACert(authority);"] : []),
    `  client.setServer(${quoted(host)}, ${port});`,
    "  client.setCallback(receive);",
    "}",
    "",
    "void loop() {",
    "  if (!client.connected()) {",
    `    if (client.connect("my-first-client"${login})) {`,
    '      client.subscribe("test/#", 1);',
    '      client.publish("test/hello", "Hello");',
    "    } else {",
    "      delay(5000);",
    "    }",
    "  }",
    "  client.loop();",
    "}",
  ];
  return `${lines.join("\n")}\n`;
}
