import { api, part } from "../../api";
import { Badge, Change, Facts, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt } from "../../components/toast";
import { bytes, duration, number } from "../../format";
import { useData } from "../../hooks";
import { texts } from "../../texts/clients";
import { expiryOf } from "./list";
import { type Client, addressOf, userOf, versionOf } from "./record";
import type { Session } from "./story";

const { columns, details } = texts;

function byQos(client: Client, way: "recv" | "send"): string {
  return details.byQos(number(client[`${way}_msg.qos0`]), number(client[`${way}_msg.qos1`]), number(client[`${way}_msg.qos2`]));
}

export function Details({ client, session }: { client: Client; session: Session | undefined }) {
  return (
    <>
      <Section title={details.session}>
        <Facts
          rows={[
            [columns.username, <Name text={userOf(client)} />],
            [columns.address, addressOf(client)],
            [columns.protocol, versionOf(client)],
            [columns.since, <TimeAgo at={client.connected_at} />],
            ...(client.disconnected_at ? [[columns.ended, <TimeAgo at={client.disconnected_at} />] as [string, preact.JSX.Element]] : []),
            [columns.created, <TimeAgo at={client.created_at} />],
            [columns.cleanStart, texts.values[String(client.clean_start)]],
            [columns.expiry, expiryOf(client)],
            [details.sessionExpires, <TimeAgo at={session?.expires_at} />],
            [columns.keepalive, client.keepalive === 0 ? "–" : duration(client.keepalive)],
            [columns.bridge, texts.values[String(client.is_bridge)]],
            [columns.zone, <Name text={client.zone} />],
            [columns.node, <Name text={client.node} />],
            [details.mountpoint, <Name text={client.mountpoint} />],
            [details.owner, session?.owner === "" ? details.nobody : <Name text={session?.owner} />],
            [details.durable, session ? texts.values[String(session.durable)] : "–"],
            [details.full, session ? <code>{session.queue_full}</code> : "–"],
            [columns.memory, bytes(client.heap_size)],
            [columns.mailbox, number(client.mailbox_len)],
            [columns.awaiting, number(client.awaiting_rel)],
          ]}
        />
      </Section>
      <Section title={details.traffic}>
        <Facts
          rows={[
            [columns.received, number(client.recv_msg)],
            [details.qosIn, byQos(client, "recv")],
            [columns.receivedDropped, number(client["recv_msg.dropped"])],
            [columns.receivedBytes, bytes(client.recv_oct)],
            [details.packetsIn, number(client.recv_pkt)],
            [columns.sent, number(client.send_msg)],
            [details.qosOut, byQos(client, "send")],
            [columns.sentDropped, number(client["send_msg.dropped"])],
            [details.expired, number(client["send_msg.dropped.expired"])],
            [details.queueFull, number(client["send_msg.dropped.queue_full"])],
            [details.tooLarge, number(client["send_msg.dropped.too_large"])],
            [columns.sentBytes, bytes(client.send_oct)],
            [details.packetsOut, number(client.send_pkt)],
          ]}
        />
      </Section>
      <AccessDecisions id={client.clientid} />
    </>
  );
}

interface Decision {
  access: string;
  topic: string;
  result: string;
  updated_time: number;
}

function AccessDecisions({ id }: { id: string }) {
  const path = `/clients/${part(id)}/acl_cache`;
  const { data, error, reload } = useData((signal) => api.get<Decision[]>(path, {}, signal), [id], 5_000);
  const forget = async (): Promise<void> => {
    if (await attempt(() => api.del(path), details.forgotten)) reload();
  };
  return (
    <Section title={details.access} actions={<Change disabled={!data || data.length === 0} onClick={() => void forget()}>{details.forget}</Change>}>
      {error && <ErrorPanel error={error} retry={reload} />}
      {data && (
        <Table
          id="client-decisions"
          label={details.access}
          rows={data}
          rowKey={(one) => `${one.access} ${one.topic}`}
          columns={[
            { key: "a-topic", title: waitingTopic, fixed: true, sort: (one) => one.topic, render: (one) => <Name text={one.topic} /> },
            { key: "a-access", title: details.action, fixed: true, sort: (one) => one.access, render: (one) => details.actions[one.access] ?? one.access },
            {
              key: "a-result",
              title: details.result,
              fixed: true,
              sort: (one) => one.result,
              render: (one) => <Badge tone={one.result === "deny" ? "bad" : "plain"}>{details.results[one.result] ?? one.result}</Badge>,
            },
            { key: "a-decided", title: details.decided, fixed: true, nowrap: true, sort: (one) => one.updated_time, render: (one) => <TimeAgo at={one.updated_time} /> },
          ]}
          empty={<p class="faint">{details.noAccess}</p>}
        />
      )}
    </Section>
  );
}

const waitingTopic = texts.waiting.topic;
