import { inLanguage } from "../language";

export const texts = inLanguage("publish", {
  title: "Publish a message",
  button: "Publish",
  done: "Message published",
  topic: "Topic",
  topicAbout: "A topic name without wildcards; separate several with commas. Access rules do not apply to you as an operator.",
  payload: "Payload",
  encoding: "Payload format",
  encodings: { plain: "text", base64: "Base64" },
  qos: "QoS",
  retain: "Retain",
  retainAbout: "The node keeps the message for later subscribers. An empty payload deletes the retained message.",
  clientid: "Publisher client ID",
  clientidAbout: "Rules and subscribers see this client as the publisher. The client does not have to exist.",
  expiry: "Message Expiry Interval (seconds)",
  contentType: "Content Type",
  responseTopic: "Response Topic",
  correlation: "Correlation Data",
  utf8: "Mark the payload as UTF-8",
  userProperties: "User Properties",
});
