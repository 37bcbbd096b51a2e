import { type Json, api } from "../api";
import { texts } from "../texts/publish";
import { Dialog } from "./dialog";
import { type Field, Form, type Values } from "./form";
import { toast } from "./toast";

const PROPERTIES = ["message_expiry_interval", "content_type", "response_topic", "correlation_data"];

/** A message as an operator publishes it. `topics`: suggestions. */
export function PublishDialog(props: { topics?: string[]; values?: Values; onClose: (done: boolean) => void }) {
  const fields: Field[] = [
    { name: "topic", type: "text", title: texts.topic, description: texts.topicAbout, required: true, suggestions: props.topics ?? [] },
    { name: "payload", type: "multiline", title: texts.payload },
    {
      name: "encoding",
      type: "choice",
      title: texts.encoding,
      required: true,
      otherwise: "plain",
      options: [
        { value: "plain", title: texts.encodings.plain },
        { value: "base64", title: texts.encodings.base64 },
      ],
    },
    {
      name: "qos",
      type: "choice",
      title: texts.qos,
      required: true,
      otherwise: "0",
      options: ["0", "1", "2"].map((value) => ({ value, title: value })),
    },
    { name: "retain", type: "switch", title: texts.retain, description: texts.retainAbout },
    { name: "clientid", type: "text", title: texts.clientid, description: texts.clientidAbout, required: true, otherwise: "dashboard", rare: true },
    { name: "message_expiry_interval", type: "number", title: texts.expiry, min: 0, max: 4_294_967_295, rare: true },
    { name: "content_type", type: "text", title: texts.contentType, rare: true },
    { name: "response_topic", type: "text", title: texts.responseTopic, rare: true },
    { name: "correlation_data", type: "text", title: texts.correlation, rare: true },
    { name: "payload_format_indicator", type: "switch", title: texts.utf8, rare: true },
    { name: "user_properties", type: "map", title: texts.userProperties, rare: true },
  ];
  return (
    <Dialog title={texts.title} onClose={() => props.onClose(false)}>
      <Form
        operates
        fields={fields}
        values={props.values ?? {}}
        submit={texts.button}
        onCancel={() => props.onClose(false)}
        onSubmit={async (values) => {
          const properties: Record<string, Json> = {};
          for (const name of PROPERTIES) if (values[name] !== undefined) properties[name] = values[name] as Json;
          if (values["payload_format_indicator"] === true) properties["payload_format_indicator"] = 1;
          const added = values["user_properties"] as Record<string, Json>;
          if (Object.keys(added).length > 0) properties["user_properties"] = added;
          const { topic, payload, encoding, qos, retain, clientid } = values;
          await api.post("/mqtt/publish", { topic, payload: payload ?? "", encoding, qos: Number(qos), retain, clientid, properties });
          toast(texts.done);
          props.onClose(true);
        }}
      />
    </Dialog>
  );
}
