import { api } from "../../api";
import { Badge, Empty, Section } from "../../components/basic";
import { Form } from "../../components/form";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { number } from "../../format";
import { useData, useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/topics";

interface Receiver {
  node: string;
  clientid: string;
  connected: boolean;
  topics: string[];
  qos: number;
  share?: string;
  strategy?: string;
  delivered?: number;
}

function wildcard(value: unknown): string | undefined {
  return typeof value === "string" && /[+#]/.test(value) ? texts.topic.about : undefined;
}

export function OneTopic() {
  const [topic, setTopic] = useQuery("topic");
  const { columns } = texts.topic;
  const retained = useData(
    async (signal) => topic !== "" && (await api.page<unknown>("/retained", { topic, _limit: 1 }, signal)).rows.length > 0,
    [topic],
    5_000,
  );
  return (
    <>
      <Form
        key={topic}
        fields={[{ name: "topic", type: "text", title: texts.topic.field, description: texts.topic.about, required: true, check: wildcard }]}
        values={{ topic }}
        submit={texts.topic.show}
        readOnlyUse
        onSubmit={async (values) => setTopic(String(values["topic"]))}
      />
      {topic === "" ? (
        <Empty title={texts.topic.empty} />
      ) : (
        <Section
          title={texts.topic.receivers}
          actions={
            <>
              {retained.data === true && <a href={link(["retained", "message", topic])}>{texts.topic.retained}</a>}
              {retained.data === false && <span class="faint">{texts.topic.notRetained}</span>}
              <a href={link(["topics", "why"], { topic })}>{texts.why.open}</a>
              <a href={link(["topics", "who"], { topic })}>{texts.topic.may}</a>
            </>
          }
        >
          <PagedTable<Receiver>
            id="receivers"
            label={texts.topic.receivers}
            deps={[topic]}
            every={5_000}
            load={(page, limit, signal) => api.page<Receiver>("/subscribers", { topic, _page: page, _limit: limit }, signal)}
            rowKey={(one) => `${one.node} ${one.clientid} ${one.share ?? ""} ${one.topics.join(" ")}`}
            columns={[
              {
                key: "client",
                title: columns.client,
                fixed: true,
                sort: (one) => one.clientid,
                render: (one) => (
                  <a href={link(["clients", one.clientid])}>
                    <Name text={one.clientid} />
                  </a>
                ),
              },
              {
                key: "connected",
                title: columns.connected,
                sort: (one) => one.connected,
                render: (one) => <Badge tone={one.connected ? "good" : "plain"}>{one.connected ? texts.topic.connected : texts.topic.away}</Badge>,
              },
              { key: "filters", title: columns.filters, render: (one) => <Name text={one.topics.join(", ")} /> },
              { key: "qos", title: columns.qos, right: true, sort: (one) => one.qos, render: (one) => one.qos },
              { key: "share", title: columns.share, sort: (one) => one.share, render: (one) => <Name text={one.share ?? null} /> },
              { key: "strategy", title: columns.strategy, off: true, render: (one) => one.strategy ?? "–" },
              {
                key: "delivered",
                title: columns.delivered,
                right: true,
                sort: (one) => one.delivered,
                render: (one) => number(one.delivered),
              },
              { key: "node", title: columns.node, off: true, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
            ]}
            empty={
              <Empty title={texts.topic.none}>
                <p>{texts.topic.noneText}</p>
              </Empty>
            }
          />
          <p class="faint small">{texts.topic.share}</p>
        </Section>
      )}
    </>
  );
}
