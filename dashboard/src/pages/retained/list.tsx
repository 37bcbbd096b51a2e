import { useState } from "preact/hooks";
import { type Page, api } from "../../api";
import { Empty } from "../../components/basic";
import { TypedFilter } from "../../components/filters";
import { Menu } from "../../components/menu";
import { Name, nameText } from "../../components/name";
import { PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { bytes } from "../../format";
import { useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/retained";
import type { Retained } from "./message";
import { removeOne } from "./remove";

const EVERY = 5_000;

export function RetainedList({ changed }: { changed: number }) {
  const [match] = useQuery("_match_topic");
  const [topic] = useQuery("topic");
  const [removed, setRemoved] = useState(0);
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Retained>> =>
    api.page<Retained>("/retained", { _match_topic: match, topic, _page: page, _limit: limit }, signal);
  const remove = async (one: Retained): Promise<void> => {
    if (await removeOne(one.topic)) setRemoved(removed + 1);
  };
  const { columns } = texts.list;
  return (
    <>
      <div class="filters" role="search" aria-label={texts.list.label}>
        <TypedFilter name="_match_topic" title={texts.list.match} search placeholder={texts.list.hint} />
        <TypedFilter name="topic" title={texts.list.topic} />
      </div>
      <PagedTable
        id="retained"
        label={texts.list.label}
        rowKey={(one) => one.topic}
        load={load}
        deps={[match, topic, changed, removed]}
        every={EVERY}
        columns={[
          {
            key: "topic",
            title: columns.topic,
            fixed: true,
            sort: (one) => one.topic,
            copy: (one) => one.topic,
            render: (one) => (
              <a href={link(["retained", "message", one.topic])}>
                <Name text={one.topic} />
              </a>
            ),
          },
          { key: "size", room: "medium", title: columns.size, right: true, sort: (one) => one.payload_size, render: (one) => bytes(one.payload_size) },
          { key: "qos", room: "medium", title: columns.qos, right: true, sort: (one) => one.qos, render: (one) => one.qos },
          { key: "at", title: columns.at, nowrap: true, sort: (one) => one.publish_at, render: (one) => <TimeAgo at={one.publish_at} /> },
          { key: "expires", room: "wide", title: columns.expires, nowrap: true, sort: (one) => one.expires_at, render: (one) => <TimeAgo at={one.expires_at} otherwise={texts.list.never} /> },
          { key: "from", room: "wide", title: columns.from, sort: (one) => one.from_clientid, render: (one) => <Publisher message={one} /> },
          { key: "user", title: columns.user, off: true, sort: (one) => one.from_username, render: (one) => <Name text={one.from_username} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <Menu label={texts.remove.menu(nameText(one.topic, 60))} items={[{ title: `${texts.remove.one}…`, act: () => void remove(one), danger: true }]} />
            ),
          },
        ]}
        empty={
          match || topic ? (
            <Empty title={texts.list.noneFound}>
              <p>{texts.list.noneFoundText}</p>
            </Empty>
          ) : (
            <Empty title={texts.tree.none}>
              <p>{texts.tree.noneText}</p>
            </Empty>
          )
        }
      />
    </>
  );
}

export function Publisher({ message }: { message: Retained }) {
  if (message.from_clientid === null) return <span class="faint">{texts.list.node}</span>;
  return (
    <a href={link(["clients", message.from_clientid])}>
      <Name text={message.from_clientid} />
    </a>
  );
}
