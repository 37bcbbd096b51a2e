import { type Page, type Query, api } from "../../api";
import { Badge, Empty, Section, Tile } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { TypedFilter } from "../../components/filters";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { FirstClient } from "../../components/first";
import { number, percent } from "../../format";
import { useData } from "../../hooks";
import { link, place } from "../../router";
import { texts as all } from "../../texts/subscriptions";

/** Of one node. */
interface SharedGroup {
  node: string;
  topic: string;
  share: string;
  strategy: string;
  members: number;
  connected: number;
  delivered: number;
}

interface Member {
  node: string;
  clientid: string;
  connected: boolean;
  qos: number;
  delivered: number;
}

const texts = all.groups;
const EVERY = 3_000;

export function Groups() {
  const { query } = place.value;
  const filters: Query = { share: query["share"], topic: query["topic"] };
  const set = Boolean(query["share"] || query["topic"]);
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<SharedGroup>> =>
    api.page<SharedGroup>("/shared_groups", { ...filters, _page: page, _limit: limit }, signal);
  const { columns } = texts;
  return (
    <>
      <div class="filters" role="search" aria-label={all.tabs.groups}>
        <TypedFilter name="share" title={all.filters.share} search />
        <TypedFilter name="topic" title={all.filters.groupTopic} />
      </div>
      <PagedTable
        id="shared-groups"
        label={all.tabs.groups}
        rowKey={(one) => `${one.node} ${one.topic}`}
        load={load}
        deps={[JSON.stringify(filters)]}
        every={EVERY}
        columns={[
          {
            key: "topic",
            title: columns.topic,
            fixed: true,
            sort: (one) => one.topic,
            copy: (one) => one.topic,
            render: (one) => (
              <a href={link(["subscriptions", "groups", one.topic])}>
                <Name text={one.topic} />
              </a>
            ),
          },
          { key: "share", title: columns.share, sort: (one) => one.share, render: (one) => <Name text={one.share} /> },
          {
            key: "strategy", room: "wide",
            title: columns.strategy,
            sort: (one) => one.strategy,
            render: (one) => <code title={texts.strategies[one.strategy] ?? ""}>{one.strategy}</code>,
          },
          { key: "members", title: columns.members, right: true, sort: (one) => one.members, render: (one) => number(one.members) },
          { key: "connected", room: "medium", title: columns.connected, right: true, sort: (one) => one.connected, render: (one) => number(one.connected) },
          { key: "delivered", title: columns.delivered, right: true, sort: (one) => one.delivered, render: (one) => number(one.delivered) },
          { key: "node", title: columns.node, off: true, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
        ]}
        empty={
          <Empty title={set ? texts.noneFound : texts.none}>
            <p>{texts.noneText}</p>
            {!set && <FirstClient />}
          </Empty>
        }
      />
    </>
  );
}

/** One, over all nodes. */
export function Group({ topic }: { topic: string }) {
  const { data, error, reload } = useData((signal) => api.get<SharedGroup[]>("/shared_groups", { topic, _limit: 1000 }, signal), [topic], EVERY);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const sum = (value: (one: SharedGroup) => number): number => data.reduce((total, one) => total + value(one), 0);
  const given = sum((one) => one.delivered);
  const strategy = data[0]?.strategy;
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Member>> =>
    api.page<Member>("/shared_groups/members", { topic, _page: page, _limit: limit }, signal);
  return (
    <Section title={`${texts.members}`} actions={<a href={link(["subscriptions", "groups"])}>{texts.back}</a>}>
      <p>
        <Name text={topic} />
      </p>
      {strategy && (
        <>
          <div class="tiles">
            <Tile label={texts.columns.members} value={number(sum((one) => one.members))} />
            <Tile label={texts.columns.connected} value={number(sum((one) => one.connected))} />
            <Tile label={texts.columns.delivered} value={number(given)} />
          </div>
          <p>
            {texts.columns.strategy} <code>{strategy}</code>: {texts.strategies[strategy]}. {texts.setting} {texts.since}
          </p>
        </>
      )}
      <PagedTable
        id="shared-members"
        label={texts.members}
        rowKey={(one) => `${one.node} ${one.clientid}`}
        load={load}
        deps={[topic]}
        every={EVERY}
        columns={[
          {
            key: "member",
            title: texts.member,
            fixed: true,
            sort: (one) => one.clientid,
            copy: (one) => one.clientid,
            render: (one) => (
              <a href={link(["clients", one.clientid])}>
                <Name text={one.clientid} />
              </a>
            ),
          },
          {
            key: "state",
            title: texts.state,
            sort: (one) => one.connected,
            render: (one) => <Badge tone={one.connected ? "good" : "plain"}>{one.connected ? texts.connected : texts.away}</Badge>,
          },
          { key: "qos", title: all.columns.qos, right: true, sort: (one) => one.qos, render: (one) => one.qos },
          { key: "delivered", title: texts.delivered, right: true, sort: (one) => one.delivered, render: (one) => number(one.delivered) },
          { key: "part", title: texts.part, right: true, sort: (one) => one.delivered, render: (one) => percent(one.delivered, given) },
          { key: "node", title: all.columns.node, off: true, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
        ]}
        empty={
          <Empty title={texts.gone}>
            <p>{texts.goneText}</p>
          </Empty>
        }
      />
    </Section>
  );
}
