import { useEffect, useState } from "preact/hooks";
import { api } from "../../api";
import { Empty, Search } from "../../components/basic";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { FirstClient } from "../../components/first";
import { number, rate } from "../../format";
import { useLive, useTyped } from "../../hooks";
import { link, place } from "../../router";
import { texts } from "../../texts/topics";
import { asked, below, steps } from "../../levels";
import { type LiveTopics, type Row, merged } from "./levels";

// Levels change seldom; messages are told by the stream.
const EVERY = 10_000;

export function Tree() {
  const { query } = place.value;
  const prefix = asked(query);
  const of = prefix === undefined ? {} : below(prefix);
  const search = useTyped("level");
  const begin = query["level"] ?? "";
  const first = (query["page"] ?? "1") === "1";
  const [live, setLive] = useState<LiveTopics | undefined>(undefined);
  useEffect(() => setLive(undefined), [prefix]);
  useLive({ ...(of.below ? { topics_below: of.below } : { topics: prefix ?? "" }), every: 1000 }, { topics: (data: LiveTopics) => setLive(data) });
  const { columns } = texts.tree;
  const ofLive = live !== undefined && live.prefix === (prefix ?? "") ? live : undefined;
  return (
    <>
      <nav class="crumbs" aria-label={texts.tree.path}>
        <a href={link(["topics", "tree"])}>{texts.tree.root}</a>
        {prefix !== undefined &&
          steps(prefix).map((step, index, all) => (
            <span key={step.topic}>
              {" / "}
              {index === all.length - 1 ? (
                <strong aria-current="location">
                  <Name text={step.level} max={60} />
                </strong>
              ) : (
                <a href={link(["topics", "tree"], below(step.topic))}>
                  <Name text={step.level} max={60} />
                </a>
              )}
            </span>
          ))}
      </nav>
      <PagedTable<Row>
        id="topics"
        label={texts.tabs.tree}
        deps={[prefix, begin]}
        every={EVERY}
        load={(page, limit, signal) => api.page<Row>("/topic_tree", { ...of, level: begin, _page: page, _limit: limit }, signal)}
        change={(rows) => merged(rows, ofLive?.rows ?? [], first, begin)}
        rowKey={(row) => row.level}
        rowClass={(row) => (row.subscribers === 0 ? "faint" : "")}
        tools={
          <>
            <Search label={texts.tree.search} {...search} />
            <span class="faint small">{texts.tree.live}</span>
          </>
        }
        columns={[
          {
            key: "level",
            title: columns.level,
            fixed: true,
            sort: (row) => row.level,
            render: (row) => (
              <>
                {row.children > 0 || row.live?.deeper ? (
                  <a href={link(["topics", "tree"], below(row.topic))}>
                    <Name text={row.level} />
                  </a>
                ) : (
                  <Name text={row.level} />
                )}
                {row.topics === 0 && <span class="faint small"> {texts.tree.onlyLive}</span>}
              </>
            ),
          },
          {
            key: "rate",
            title: columns.rate,
            right: true,
            sort: (row) => row.live?.rate ?? 0,
            render: (row) => (row.live ? <span title={number(row.live.messages)}>{rate(row.live.rate)}</span> : <span class="faint">–</span>),
          },
          { key: "payload", room: "wide", title: columns.payload, render: (row) => <Name text={row.live?.payload ?? null} max={80} /> },
          { key: "subscribers", title: columns.subscribers, right: true, sort: (row) => row.subscribers, render: (row) => number(row.subscribers) },
          { key: "topics", room: "medium", title: columns.topics, right: true, sort: (row) => row.topics, render: (row) => number(row.topics) },
          { key: "retained", room: "medium", title: columns.retained, right: true, sort: (row) => row.retained, render: (row) => number(row.retained) },
          { key: "children", room: "wide", title: columns.children, right: true, sort: (row) => row.children, render: (row) => number(row.children) },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (row) =>
              row.topic === "" || row.topic.includes("+") || row.topic.includes("#") ? null : (
                <a class="small" href={link(["topics", "topic"], { topic: row.topic })}>
                  {texts.tree.open}
                </a>
              ),
          },
        ]}
        empty={
          <Empty title={texts.tree.none}>
            <p>{texts.tree.noneText}</p>
            <FirstClient />
          </Empty>
        }
      />
      {ofLive && ofLive.others > 0 && <p class="faint">{texts.tree.others(number(ofLive.others))}</p>}
    </>
  );
}
