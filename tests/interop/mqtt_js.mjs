// Drives MQTT.js for clients/mqtt_js.py: one JSON command a line on stdin, one JSON answer or event a line on stdout.
import mqtt from "mqtt";
import readline from "node:readline";

const clients = new Map();
const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const commands = {
  connect({ client, url, options, will }) {
    if (will) options.will = { ...will, payload: Buffer.from(will.payload, "base64") };
    options.reconnectPeriod = 0;
    const made = mqtt.connect(url, options);
    clients.set(client, made);
    made.on("message", (topic, payload, packet) => {
      const p = packet.properties ?? {};
      const properties = {};
      if (p.userProperties) properties.user = p.userProperties;
      if (p.contentType !== undefined) properties.content_type = p.contentType;
      if (p.responseTopic !== undefined) properties.response_topic = p.responseTopic;
      if (p.correlationData !== undefined) properties.correlation = p.correlationData.toString("base64");
      if (p.payloadFormatIndicator !== undefined) properties.payload_format = Number(p.payloadFormatIndicator);
      if (p.messageExpiryInterval !== undefined) properties.expiry = p.messageExpiryInterval;
      say({ client, message: { topic, payload: payload.toString("base64"), qos: packet.qos, retain: packet.retain, properties } });
    });
    return new Promise((resolve, reject) => {
      made.on("connect", (connack) => resolve(connack.sessionPresent));
      made.on("error", reject);
      made.on("close", () => reject(new Error("closed")));
    });
  },
  async subscribe({ client, filter, qos }) {
    const granted = await clients.get(client).subscribeAsync(filter, { qos });
    return granted.map((each) => each.qos);
  },
  unsubscribe({ client, filter }) {
    return clients.get(client).unsubscribeAsync(filter).then(() => null);
  },
  publish({ client, topic, payload, qos, retain, properties }) {
    const theirs = {};
    if (properties.user) theirs.userProperties = properties.user;
    if (properties.content_type) theirs.contentType = properties.content_type;
    if (properties.response_topic) theirs.responseTopic = properties.response_topic;
    if (properties.correlation) theirs.correlationData = Buffer.from(properties.correlation, "base64");
    if (properties.payload_format) theirs.payloadFormatIndicator = true;
    if (properties.expiry) theirs.messageExpiryInterval = properties.expiry;
    return clients.get(client).publishAsync(topic, Buffer.from(payload, "base64"), { qos, retain, properties: theirs }).then(() => null);
  },
  disconnect({ client }) {
    return clients.get(client).endAsync().then(() => null);
  },
  drop({ client }) {
    clients.get(client).stream.destroy();
    return null;
  },
};

const lines = readline.createInterface({ input: process.stdin });
for await (const line of lines) {
  const command = JSON.parse(line);
  Promise.resolve()
    .then(() => commands[command.op](command))
    .then((result) => say({ n: command.n, result }))
    .catch((error) => say({ n: command.n, error: String(error) }));
}
process.exit(0);
