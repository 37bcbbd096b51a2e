import { type Page, api } from "../../api";
import { Empty } from "../../components/basic";
import { TypedFilter } from "../../components/filters";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { number } from "../../format";
import { useData, useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/retained";
import { below, steps } from "../../levels";
import type { Retained } from "./message";

interface Level {
  level: string;
  topic: string;
  /** Levels right below. */
  children: number;
  messages: number;
}

const EVERY = 10_000;

/** Where a level leads: further down, or to its one message. */
function target(level: Level): string {
  if (level.children === 0) return link(["retained", "message", level.topic]);
  return link(["retained"], below(level.topic));
}

/** `prefix`: undefined for the first levels. */
export function Tree({ prefix, changed }: { prefix: string | undefined; changed: number }) {
  const [begins] = useQuery("level");
  const own = useData(
    async (signal) => (!prefix ? [] : (await api.page<Retained>("/retained", { topic: prefix, _limit: 1 }, signal)).rows),
    [prefix, changed],
    EVERY,
  );
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Level>> =>
    api.page<Level>("/retained_tree", { ...(prefix === undefined ? {} : below(prefix)), level: begins, _page: page, _limit: limit }, signal);
  const { columns } = texts.tree;
  return (
    <>
      {prefix !== undefined && (
        <nav class="path" aria-label={texts.tree.path}>
          <a href={link(["retained"])}>{texts.tree.root}</a>
          {steps(prefix).map((one) => (
            <>
              {" / "}
              <a href={link(["retained"], below(one.topic))} aria-current={one.topic === prefix ? "page" : undefined}>
                <Name text={one.level} max={40} />
              </a>
            </>
          ))}
        </nav>
      )}
      <div class="filters" role="search" aria-label={texts.tree.label}>
        <TypedFilter name="level" title={texts.tree.begins} search />
      </div>
      {prefix !== undefined && (own.data ?? []).length > 0 && (
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
          prefix === undefined && begins === "" ? (
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
