import { type Page, api, save } from "../../api";
import { Empty } from "../../components/basic";
import { ChosenFilter, TimeFilter, TypedFilter } from "../../components/filters";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toastError } from "../../components/toast";
import { place } from "../../router";
import { mayChange } from "../../session";
import { texts } from "../../texts/trouble";

interface Change {
  time: number;
  door: string;
  who: string;
  address: string;
  what: string;
  target: string;
  before: unknown;
  after: unknown;
  node: string;
}

const words = texts.audit;
const { columns } = words;
const FILTERS = ["who", "door", "_like_what", "_gte_at", "_lte_at"];
const EXPORTED = 10_000;

function Value({ value }: { value: unknown }) {
  if (value === null || value === undefined) return <span class="faint">–</span>;
  return (
    <code class="small">
      <Name text={JSON.stringify(value)} max={300} />
    </code>
  );
}

/** Who changed what, latest first, on all nodes. */
export function Audit() {
  const { query } = place.value;
  const filters = Object.fromEntries(FILTERS.flatMap((name) => (query[name] ? [[name, query[name]]] : [])));
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Change>> =>
    api.page<Change>("/audit", { ...filters, _page: page, _limit: limit }, signal);
  const download = async (): Promise<void> => {
    const { rows } = await api.page<Change>("/audit", { ...filters, _limit: EXPORTED });
    save(new Blob([rows.map((row) => `${JSON.stringify(row)}\n`).join("")], { type: "application/jsonl" }), "audit.jsonl");
  };
  if (!mayChange.value) return <Empty title={words.viewer} />;
  return (
    <>
      <div class="filters" role="search" aria-label={words.search}>
        <TypedFilter name="who" title={columns.who} />
        <ChosenFilter name="door" title={columns.door} any={words.any} options={Object.keys(words.doors)} titles={words.doors} />
        <TypedFilter name="_like_what" title={words.like} search />
        <TimeFilter name="_gte_at" title={words.from} />
        <TimeFilter name="_lte_at" title={words.to} />
      </div>
      <PagedTable<Change>
        id="audit"
        label={texts.tabs.audit}
        load={load}
        deps={[JSON.stringify(filters)]}
        every={5_000}
        rowKey={(one) => `${one.node} ${one.time} ${one.what} ${one.target}`}
        tools={
          <button type="button" onClick={() => void download().catch(toastError)}>
            {words.download}
          </button>
        }
        columns={[
          { key: "time", title: columns.time, fixed: true, nowrap: true, render: (one) => <TimeAgo at={one.time} /> },
          { key: "who", title: columns.who, fixed: true, render: (one) => <Name text={one.who || null} /> },
          { key: "door", title: columns.door, render: (one) => words.doors[one.door] ?? one.door },
          { key: "address", room: "wide", title: columns.address, nowrap: true, render: (one) => one.address || "–" },
          {
            key: "what",
            title: columns.what,
            fixed: true,
            render: (one) => (
              <>
                {one.what}
                {one.target && (
                  <div class="small faint">
                    <Name text={one.target} max={200} />
                  </div>
                )}
              </>
            ),
          },
          { key: "before", room: "wide", title: columns.before, render: (one) => <Value value={one.before} /> },
          { key: "after", room: "medium", title: columns.after, render: (one) => <Value value={one.after} /> },
          { key: "node", off: true, title: columns.node, render: (one) => <Name text={one.node} /> },
        ]}
        empty={
          <Empty title={words.none}>
            <p>{words.noneText}</p>
          </Empty>
        }
      />
    </>
  );
}
