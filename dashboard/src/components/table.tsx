import { signal, useComputed } from "@preact/signals";
import type { ComponentChildren, VNode } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Page, save } from "../api";
import { csv } from "../csv";
import { number } from "../format";
import { useData } from "../hooks";
import { language } from "../language";
import { place, setQuery } from "../router";
import { remember, remembered } from "../storage";
import { texts } from "../texts/common";
import { Copy } from "./copy";
import { ErrorPanel } from "./error";
import { toastError } from "./toast";
import { Views } from "./views";

export interface Column<T> {
  key: string;
  title: string;
  render: (row: T) => ComponentChildren;
  /** What it is sorted by, within the page; a column without it is not sorted. */
  sort?: (row: T) => number | string | boolean | null | undefined;
  /** The field by which the node sorts all rows, not only those of the page; the rows come in this order. */
  order?: string;
  /** Its value in a file, where it is neither what it is sorted by nor the field of `order`. */
  value?: (row: T) => unknown;
  /** An identifier that one may want elsewhere: with a button that copies it. */
  copy?: (row: T) => string | null | undefined;
  /** Figures stand on the right. */
  right?: boolean;
  /** In one line. */
  nowrap?: boolean;
  /** Sentences: wide enough to read them. */
  prose?: boolean;
  /** Shown only when it was chosen. */
  off?: boolean;
  /** Always shown: the name of the row. */
  fixed?: boolean;
  /** Shown in a window of 700 pixels and more, or of 1,200; else only when it was chosen. */
  room?: "medium" | "wide";
}

const medium = matchMedia("(min-width: 700px)");
const wide = matchMedia("(min-width: 1200px)");
const roomNow = (): Set<Column<unknown>["room"]> => new Set([undefined, ...(medium.matches ? ["medium" as const] : []), ...(wide.matches ? ["wide" as const] : [])]);
/** Which columns the window has room for. */
const room = signal(roomNow());
for (const one of [medium, wide]) one.addEventListener("change", () => (room.value = roomNow()));

interface Common<T> {
  /** Of the kind of list: the chosen columns are kept under it. */
  id: string;
  label: string;
  columns: Column<T>[];
  rowKey: (row: T) => string;
  /**
   * A row that comes takes the elements of one that has gone, which is quicker than to make new ones by far. For cells
   * that keep nothing of their own about the row they show.
   */
  reuse?: boolean;
  /** What it says where there is nothing. */
  empty?: ComponentChildren;
  /** Beside the choice of columns. */
  tools?: ComponentChildren;
  /** A class for a row, such as `faint`. */
  rowClass?: (row: T) => string;
  /** All rows for a file, where there are more than those of the page. */
  all?: () => Promise<T[]>;
  /** Whether filters can be kept under a name. */
  views?: boolean;
}

function valueOf<T>(column: Column<T>, row: T): unknown {
  if (column.value) return column.value(row);
  if (column.sort) return column.sort(row);
  if (column.copy) return column.copy(row);
  return column.order === undefined ? undefined : (row as Record<string, unknown>)[column.order];
}

/** Columns of buttons are none of a file. */
const hasValue = <T,>(column: Column<T>): boolean => Boolean(column.value ?? column.sort ?? column.copy ?? column.order);

function chosenColumns(id: string): string[] | undefined {
  const text = remembered(`taipan.columns.${id}`);
  return text === null ? undefined : text.split(",");
}

function compare(left: unknown, right: unknown): number {
  if (left === right) return 0;
  if (left === null || left === undefined) return 1;
  if (right === null || right === undefined) return -1;
  if (typeof left === "number" && typeof right === "number") return left - right;
  return String(left).localeCompare(String(right), language(), { numeric: true });
}

/**
 * For each key a number: its own for as long as it is there, then that of one that comes. Where less than half of the
 * keys are known, the list is another one and each has its place: rows that change places cost more than new text.
 */
export class Slots {
  private taken = new Map<string, number>();

  of(keys: string[]): number[] {
    const wanted = new Set(keys);
    const kept = new Map([...this.taken].filter(([key]) => wanted.has(key)));
    if (kept.size * 2 < keys.length) kept.clear();
    const used = new Set(kept.values());
    let free = 0;
    for (const key of keys) {
      if (kept.has(key)) continue;
      while (used.has(free)) free += 1;
      kept.set(key, free);
      free += 1;
    }
    this.taken = kept;
    return keys.map((key) => kept.get(key) ?? 0);
  }
}

/** Whether there is more of it to its left and to its right, and what looks again. */
function useSides(element: { current: HTMLElement | null }, deps: unknown[]): [{ left: boolean; right: boolean }, () => void] {
  const [sides, setSides] = useState({ left: false, right: false });
  const look = useCallback((): void => {
    const { scrollLeft = 0, scrollWidth = 0, clientWidth = 0 } = element.current ?? {};
    const left = scrollLeft > 1;
    const right = scrollLeft + clientWidth < scrollWidth - 1;
    setSides((before) => (before.left === left && before.right === right ? before : { left, right }));
  }, []);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(look);
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  useEffect(look, deps);
  return [sides, look];
}

/** Rows that the first drawing adds in one task: about as many as are in sight. */
const PART = 20;

/** Rows that are all here: sorted by `?sort=`, with a choice of columns. */
export function Table<T>(props: Common<T> & { rows: T[]; busy?: boolean; foot?: ComponentChildren }) {
  const { columns, rows, id } = props;
  const [chosen, setChosen] = useState(() => chosenColumns(id));
  const fits = room.value;
  const isShown = (column: Column<T>): boolean =>
    column.fixed || (chosen ? chosen.includes(column.key) : column.off !== true && fits.has(column.room));
  const shown = useMemo(() => columns.filter(isShown), [columns, chosen, fits]);
  const without = chosen ? 0 : columns.filter((column) => !column.fixed && column.off !== true && !fits.has(column.room)).length;
  // Computed: what else is in the address is nothing to the rows.
  const sort = useComputed(() => place.value.query["sort"] ?? "").value;
  const down = sort.startsWith("-");
  const by = columns.find((column) => column.key === sort.replace(/^-/, "") && (column.sort || column.order));
  const sorted = useMemo(() => {
    const key = by?.order === undefined ? by?.sort : undefined;
    if (!key) return rows;
    const keyed = rows.map((row) => ({ row, key: key(row) }));
    keyed.sort((left, right) => (down ? compare(right.key, left.key) : compare(left.key, right.key)));
    return keyed.map(({ row }) => row);
  }, [rows, by, down]);

  const toggle = (column: Column<T>): void => {
    const next = columns.filter((one) => (one.key === column.key ? !isShown(one) : isShown(one))).map((one) => one.key);
    setChosen(next);
    remember(`taipan.columns.${id}`, next.join(","));
  };
  const order = (column: Column<T>): void => {
    // The highest figures of all rows are what one looks for.
    const [first, second] = column.order && column.right ? [`-${column.key}`, column.key] : [column.key, `-${column.key}`];
    const next = by !== column ? first : sort === first ? second : undefined;
    setQuery(column.order === undefined ? { sort: next } : { sort: next, page: undefined }, true);
  };
  const download = async (): Promise<void> => {
    const wanted = shown.filter(hasValue);
    const found = props.all ? await props.all() : sorted;
    const text = csv(wanted.map((column) => column.title), found.map((row) => wanted.map((column) => valueOf(column, row))));
    // The mark tells programs for tables that it is UTF-8.
    save(new Blob(["\ufeff", text], { type: "text/csv" }), `${id}.csv`);
  };
  const cards = !fits.has("medium");
  // Elements that are drawn as blocks are no table to a screen reader otherwise.
  const role = <R extends string>(name: R): { role?: R } => (cards ? { role: name } : {});
  const choosable = columns.filter((column) => !column.fixed);
  const line = (row: T, place: string | number): VNode => (
    <tr key={place} class={props.rowClass?.(row) ?? ""} {...role("row")}>
      {shown.map((column) => {
        const copied = column.copy?.(row);
        return (
          <td key={column.key} class={column.right ? "right" : column.nowrap ? "nowrap" : column.prose ? "prose" : ""} data-label={column.title} {...role("cell")}>
            {column.render(row)}
            {copied ? <Copy text={copied} /> : null}
          </td>
        );
      })}
    </tr>
  );
  const slots = useRef(new Slots());
  // Made in parts, so that no task is long. Rows that change do so at once: each layout of the table costs more than they.
  const [count, setCount] = useState(PART);
  useEffect(() => {
    if (count < sorted.length) setCount(count + PART);
  }, [sorted, count]);
  const next = useMemo(() => (count < sorted.length ? sorted.slice(0, count) : sorted), [sorted, count]);
  // While the next rows are awaited, those that are in sight are not drawn again; nor is a row when its neighbours are.
  const drawn = useMemo(() => new Map<T, { place: string | number; row: VNode }>(), [shown, props.rowClass, cards]);
  const body = useMemo(() => {
    const keys = next.map(props.rowKey);
    const places: (string | number)[] = props.reuse ? slots.current.of(keys) : keys;
    const before = new Map(drawn);
    drawn.clear();
    next.forEach((row, index) => {
      const place = places[index] ?? index;
      const known = before.get(row);
      drawn.set(row, known?.place === place ? known : { place, row: line(row, place) });
    });
    return <tbody {...role("rowgroup")}>{next.map((row) => drawn.get(row)?.row)}</tbody>;
  }, [next, drawn]);

  const scroller = useRef<HTMLDivElement>(null);
  const [more, look] = useSides(scroller, [next, shown]);
  return (
    <div class={`table-block${cards ? " cards" : ""}${more.left ? " more-left" : ""}${more.right ? " more-right" : ""}`} aria-busy={props.busy ?? false}>
      <div class="table-tools">
        {props.tools}
        {more.right && (
          <button type="button" class="small table-more" onClick={() => scroller.current?.scrollBy({ left: scroller.current.clientWidth * 0.7 })}>
            {texts.table.right}
          </button>
        )}
        {props.views && <Views id={id} />}
        {rows.length > 0 && shown.filter(hasValue).length > 1 && (
          <button type="button" class="small table-csv" title={texts.table.csvTitle} onClick={() => void download().catch(toastError)}>
            {texts.table.csv}
          </button>
        )}
        {choosable.length > 1 && (
          <details class="columns">
            <summary>{without > 0 ? texts.table.columnsMore(without) : texts.table.columns}</summary>
            <div class="popup">
              {choosable.map((column) => (
                <label key={column.key}>
                  <input type="checkbox" checked={isShown(column)} onChange={() => toggle(column)} />
                  {column.title}
                </label>
              ))}
            </div>
          </details>
        )}
      </div>
      <div class="table-scroll" ref={scroller} onScroll={look} tabIndex={0} role="region" aria-label={props.label}>
        <table {...role("table")} aria-label={cards ? props.label : undefined}>
          <caption class="sr">{props.label}</caption>
          <thead {...role("rowgroup")}>
            <tr {...role("row")}>
              {shown.map((column) => (
                <th
                  key={column.key}
                  scope="col"
                  {...role("columnheader")}
                  class={column.right ? "right" : ""}
                  aria-sort={by === column ? (down ? "descending" : "ascending") : undefined}
                >
                  {column.sort || column.order ? (
                    <button type="button" class="sort" title={(column.order ? texts.table.orderBy : texts.table.sortBy)(column.title)} onClick={() => order(column)}>
                      {column.title}
                      <span aria-hidden="true">{by === column ? (down ? " ↓" : " ↑") : ""}</span>
                    </button>
                  ) : (
                    column.title || <span class="sr">{texts.table.actions}</span>
                  )}
                </th>
              ))}
            </tr>
          </thead>
          {body}
        </table>
        {rows.length === 0 && !props.busy && (props.empty ?? <p class="empty">{texts.table.none}</p>)}
      </div>
      {props.foot}
    </div>
  );
}

/** What `?sort=` asks the node for: `-mqueue_len`; nothing if the column is sorted in the page. */
export function orderOf<T>(columns: Column<T>[], sort: string | undefined): string | undefined {
  const field = columns.find((column) => column.key === sort?.replace(/^-/, ""))?.order;
  return field === undefined ? undefined : sort?.startsWith("-") ? `-${field}` : field;
}

/** Rows of a file at most, and of each request for it. */
const EXPORTED = 10_000;
const PART_OF_EXPORT = 1_000;
const LIMITS = [20, 50, 100, 500];
const LIMIT = 50;

/**
 * A list that the node pages and filters: `load` gets page and limit, which are in the address. It is read again when
 * one of `deps` changes and every `every` milliseconds; rows stay in sight meanwhile.
 */
export function PagedTable<T>(
  props: Common<T> & {
    load: (page: number, limit: number, signal: AbortSignal) => Promise<Page<T>>;
    deps: unknown[];
    every?: number;
    /** What is shown of the rows that came, such as with what the live stream adds. */
    change?: (rows: T[]) => T[];
    /** Called with each page that came. */
    onPage?: (page: Page<T>) => void;
  },
) {
  const { load, deps, every, onPage, change, ...rest } = props;
  const { query } = place.value;
  const page = Math.max(1, Math.trunc(Number(query["page"])) || 1);
  const limit = LIMITS.includes(Number(query["limit"])) ? Number(query["limit"]) : LIMIT;
  const told = useRef(onPage);
  told.current = onPage;
  const { data, error, slow, reload } = useData(
    async (signal) => {
      const answer = await load(page, limit, signal);
      told.current?.(answer);
      return answer;
    },
    [page, limit, ...deps],
    every,
  );
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return slow ? <p class="empty">{texts.table.loading}</p> : <div class="table-waiting" />;
  const { rows, meta } = data;
  const all = change ? change(rows) : rows;
  // Those that are of this page alone, and that the node does not count.
  const added = all.length - rows.length;
  const from = (page - 1) * limit + 1;
  const to = from + rows.length - 1;
  const range =
    rows.length === 0
      ? texts.table.page(page)
      : meta.count >= 0
        ? texts.table.rangeOf(number(from), number(to), number(meta.count))
        : texts.table.range(number(from), number(to));
  const turn = (next: number): void => setQuery({ page: next === 1 ? undefined : String(next) }, true);
  return (
    <Table
      views
      {...rest}
      all={async () => {
        const found: T[] = [];
        for (let next = 1; found.length < EXPORTED; next += 1) {
          const answer = await load(next, PART_OF_EXPORT, new AbortController().signal);
          found.push(...answer.rows);
          if (!answer.meta.hasnext || answer.rows.length === 0) break;
        }
        return change ? change(found) : found;
      }}
      rows={all}
      busy={slow}
      foot={
        <div class="pager">
          <span class="faint" aria-live="polite">
            {range}
            {added > 0 && ` ${texts.table.added(number(added))}`}
          </span>
          <span class="pager-turn">
            {page > 2 && (
              <button type="button" onClick={() => turn(1)}>
                {texts.table.first}
              </button>
            )}
            <button type="button" disabled={page <= 1} onClick={() => turn(page - 1)}>
              {texts.table.previous}
            </button>
            <button type="button" disabled={!meta.hasnext} onClick={() => turn(page + 1)}>
              {texts.table.next}
            </button>
          </span>
          <label>
            <span class="faint">{texts.table.rows}</span>
            <select
              value={String(limit)}
              onChange={(event) => setQuery({ limit: event.currentTarget.value, page: undefined }, true)}
            >
              {LIMITS.map((one) => (
                <option key={one} value={String(one)}>
                  {one}
                </option>
              ))}
            </select>
          </label>
        </div>
      }
    />
  );
}
