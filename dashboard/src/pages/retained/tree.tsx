import { type Page, api } from "../../api";
import { Empty } from "../../components/basic";
import { TypedFilter } from "../../components/filters";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { number } from "../../format";
import { useData, useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/retained";
import { above } from "./levels";
import type { Retained } from "./message";

interface Level {
  level: string;
  topic: string;
  /** Levels right below. */
  children: number;
  messages: number;
}

const EVERY = 10_000;

/** Where a level leads: further down, or to its one message. The first level may be empty, which is no prefix. */
function target(level: Level): string {
  if (level.children === 0) return link(["retained", "message", level.topic]);
  if (level.topic === "") return link(["retained", "list"], { _match_topic: "/#" });
  return link(["retained"], { prefix: level.topic });
}

export function Tree({ prefix, changed }: { prefix: string; changed: number }) {
  const [begins] = useQuery("level");
  const own = useData(
    async (signal) => (prefix === "" ? [] : (await api.page<Retained>("/retained", { topic: prefix, _limit: 1 }, signal)).rows),
    [prefix, changed],
    EVERY,
  );
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Level>> =>
    api.page<Level>("/retained_tree", { prefix, level: begins, _page: page, _limit: limit }, signal);
  const { columns } = texts.tree;
  return (
    <>
      {prefix !== "" && (
        <nav class="path" aria-label={texts.tree.path}>
          <a href={link(["retained"])}>{texts.tree.root}</a>
          {above(prefix).map((one) => (
            <>
              {" / "}
              <a href={link(["retained"], { prefix: one.topic })} aria-current={one.topic === prefix ? "page" : undefined}>
                <Name text={one.level} max={40} />
              </a>
            </>
          ))}
        </nav>
      )}
      <div class="filters" role="search" aria-label={texts.tree.label}>
        <TypedFilter name="level" title={texts.tree.begins} search />
      </div>
      {(own.data ?? []).length > 0 && (
        <div class="panel">
          {texts.tree.itself} <a href={link(["retained", "message", prefix])}>{texts.tree.look}</a>
        </div>
      )}
      <PagedTable
        id="retained-tree"
        label={texts.tree.label}
        rowKey={(one) => one.topic}
        load={load}
        deps={[prefix, begins, changed]}
        every={EVERY}
        columns={[
          {
            key: "level",
            title: columns.level,
            fixed: true,
            sort: (one) => one.level,
            render: (one) => (
              <a href={target(one)}>
                <Name text={one.level} />
              </a>
            ),
          },
          { key: "messages", title: columns.messages, right: true, fixed: true, sort: (one) => one.messages, render: (one) => number(one.messages) },
          { key: "children", title: columns.children, right: true, fixed: true, sort: (one) => one.children, render: (one) => number(one.children) },
        ]}
        empty={
          prefix === "" && begins === "" ? (
            <Empty title={texts.tree.none}>
              <p>{texts.tree.noneText}</p>
            </Empty>
          ) : (
            <Empty title={texts.tree.noneBelow} />
          )
        }
      />
    </>
  );
}
