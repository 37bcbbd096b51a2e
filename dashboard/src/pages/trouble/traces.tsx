import { useEffect, useRef, useState } from "preact/hooks";
import { type Json, api, open, part, send } from "../../api";
import { nodeNow } from "../../clock";
import { Badge, Change, Empty, Section } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt, toast, toastError } from "../../components/toast";
import { bytes, number } from "../../format";
import { useData } from "../../hooks";
import { useKey } from "../../keys";
import { link, setQuery, place } from "../../router";
import { texts } from "../../texts/trouble";
import { pieces } from "../../visible";
import { joinLines } from "./trace_lines";

interface Trace {
  name: string;
  type: "clientid" | "topic" | "ip_address";
  clientid?: string;
  topic?: string;
  ip_address?: string;
  start_at: string;
  end_at: string;
  status: string;
  /** Bytes, by node. */
  log_size: Record<string, number>;
}

const TYPES = ["clientid", "topic", "ip_address"] as const;

function condition(trace: Trace): string {
  return trace[trace.type] ?? "";
}

function size(trace: Trace): number {
  return Object.values(trace.log_size).reduce((sum, one) => sum + one, 0);
}

/** `type` and the condition may be given in the address: another page sends here to trace a client. */
function NewTrace({ onClose }: { onClose: (made: boolean) => void }) {
  const { query } = place.value;
  const fields: Field[] = [
    { name: "name", type: "text", title: texts.traces.fields.name, description: texts.traces.fields.nameAbout, required: true },
    {
      name: "type",
      type: "choice",
      title: texts.traces.fields.type,
      required: true,
      otherwise: "clientid",
      options: TYPES.map((value) => ({ value, title: texts.traces.types[value] ?? value })),
    },
    ...TYPES.map((type): Field => ({
      name: type,
      type: "text",
      title: texts.traces.types[type] ?? type,
      required: true,
      when: (values) => values["type"] === type,
    })),
    {
      name: "minutes",
      type: "number",
      title: texts.traces.fields.minutes,
      description: texts.traces.fields.minutesAbout,
      otherwise: 10,
      min: 0.1,
      max: 1440,
      required: true,
    },
  ];
  const given: Values = {};
  for (const name of ["type", ...TYPES]) {
    const value = query[name];
    if (value !== undefined) given[name] = value as Json;
  }
  return (
    <Dialog title={texts.traces.new} onClose={() => onClose(false)}>
      <Form
        fields={fields}
        values={given}
        submit={texts.traces.begin}
        onCancel={() => onClose(false)}
        onSubmit={async ({ minutes, ...rest }) => {
          const end = new Date(nodeNow() + Number(minutes) * 60_000);
          await api.post("/trace", { ...rest, end_at: `${end.toISOString().slice(0, 19)}Z` });
          toast(texts.traces.begun);
          onClose(true);
        }}
      />
    </Dialog>
  );
}

export function Traces() {
  const { data, error, reload } = useData((signal) => api.get<Trace[]>("/trace", {}, signal), [], 5_000);
  const asked = place.value.query["new"] === "1";
  const begin = (): void => setQuery({ new: "1" }, true);
  useKey("n", texts.traces.new, begin);
  const close = (made: boolean): void => {
    setQuery({ new: undefined, type: undefined, clientid: undefined, topic: undefined, ip_address: undefined }, true);
    if (made) reload();
  };
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;

  const remove = async (trace: Trace): Promise<void> => {
    const done = await confirm({
      title: texts.traces.removeTitle,
      hits: [trace.name],
      action: texts.traces.remove,
      work: () => api.del(`/trace/${part(trace.name)}`),
    });
    if (done) toast(texts.traces.removed);
    reload();
  };
  const removeAll = async (): Promise<void> => {
    const done = await confirm({
      title: texts.traces.removeAllTitle,
      hits: data.map((trace) => trace.name),
      action: texts.traces.removeAll,
      work: () => api.del("/trace"),
    });
    if (done) toast(texts.traces.removed);
    reload();
  };
  const stop = async (trace: Trace): Promise<void> => {
    await attempt(() => api.put(`/trace/${part(trace.name)}/stop`), texts.traces.stopped);
    reload();
  };
  return (
    <>
      {asked && <NewTrace onClose={close} />}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="traces"
        label={texts.tabs.traces}
        rows={data}
        rowKey={(trace) => trace.name}
        tools={
          <>
            <Change kind="primary" onClick={begin} title="n">
              {texts.traces.new}
            </Change>
            <Change disabled={data.length === 0} onClick={() => void removeAll()}>
              {texts.traces.removeAll}
            </Change>
          </>
        }
        columns={[
          {
            key: "name",
            title: texts.traces.columns.name,
            fixed: true,
            sort: (trace) => trace.name,
            render: (trace) => (
              <a href={link(["trouble", "traces", trace.name])}>
                <Name text={trace.name} />
              </a>
            ),
          },
          { key: "type", room: "medium", title: texts.traces.columns.type, sort: (trace) => trace.type, render: (trace) => texts.traces.types[trace.type] ?? trace.type },
          { key: "condition", title: texts.traces.columns.condition, sort: condition, render: (trace) => <Name text={condition(trace)} /> },
          {
            key: "status",
            title: texts.traces.columns.status,
            sort: (trace) => trace.status,
            render: (trace) => (
              <Badge tone={trace.status === "running" ? "good" : "plain"}>{texts.traces.status[trace.status] ?? trace.status}</Badge>
            ),
          },
          { key: "from", room: "wide", title: texts.traces.columns.from, sort: (trace) => trace.start_at, render: (trace) => <TimeAgo at={trace.start_at} /> },
          { key: "to", room: "medium", title: texts.traces.columns.to, sort: (trace) => trace.end_at, render: (trace) => <TimeAgo at={trace.end_at} /> },
          { key: "size", room: "wide", title: texts.traces.columns.size, right: true, sort: size, render: (trace) => bytes(size(trace)) },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (trace) => (
              <span class="actions">
                <button type="button" onClick={() => void api.download(`/trace/${part(trace.name)}/download`, `${trace.name}.zip`).catch(toastError)}>
                  {texts.traces.download}
                </button>
                {trace.status !== "stopped" && <Change onClick={() => void stop(trace)}>{texts.traces.stop}</Change>}
                <Change kind="danger" onClick={() => void remove(trace)}>
                  {texts.traces.remove}
                </Change>
              </span>
            ),
          },
        ]}
        empty={
          <Empty title={texts.traces.none}>
            <p>{texts.traces.noneText}</p>
          </Empty>
        }
      />
    </>
  );
}

// The page keeps so many lines; the file has them all.
const KEPT = 2_000;
const PIECE = 65_536;
const EVERY = 1_000;

/** The file of a trace on the node that serves the page, from its beginning, as it grows. */
export function TraceLog({ name }: { name: string }) {
  const [lines, setLines] = useState<string[]>([]);
  const [dropped, setDropped] = useState(0);
  const [error, setError] = useState<Error | undefined>(undefined);
  const [follow, setFollow] = useState(true);
  const [again, setAgain] = useState(0);
  const box = useRef<HTMLDivElement>(null);

  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let position = 0;
    let rest = "";
    let all: string[] = [];
    let gone = 0;
    const path = `/trace/${part(name)}/log`;
    const read = async (): Promise<void> => {
      try {
        for (;;) {
          const response = await send("GET", path, { query: { position, bytes: PIECE }, signal: controller.signal });
          const answer = (await open(response, "GET", path)) as { data?: string; meta?: { position?: number } };
          const next = answer.meta?.position ?? position;
          const joined = joinLines(rest, answer.data ?? "");
          rest = joined.rest;
          all = all.concat(joined.lines);
          if (all.length > KEPT) {
            gone += all.length - KEPT;
            all = all.slice(-KEPT);
          }
          const end = next === position || joined.read < PIECE;
          position = next;
          if (end) break;
        }
        setLines(all);
        setDropped(gone);
        setError(undefined);
      } catch (failure) {
        if (controller.signal.aborted) return;
        setError(failure instanceof Error ? failure : new Error(String(failure)));
      }
      timer = setTimeout(() => void read(), EVERY);
    };
    void read();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [name, again]);

  useEffect(() => {
    const element = box.current;
    if (follow && element) element.scrollTop = element.scrollHeight;
  }, [lines, follow]);

  return (
    <Section
      title={texts.traces.log(name)}
      actions={
        <>
          <a href={link(["trouble", "traces"])}>{texts.traces.back}</a>
          <label>
            <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {texts.traces.follow}
          </label>
          <button type="button" onClick={() => void api.download(`/trace/${part(name)}/download`, `${name}.zip`).catch(toastError)}>
            {texts.traces.download}
          </button>
        </>
      }
    >
      {error && <ErrorPanel error={error} retry={() => setAgain(again + 1)} />}
      <p class="faint small" aria-live="off">
        {texts.traces.lines(number(lines.length + dropped))} {dropped > 0 && texts.traces.cut}
      </p>
      {lines.length === 0 && !error && <Empty title={texts.traces.waiting} />}
      {lines.length > 0 && (
        <div class="log" ref={box} tabIndex={0} role="log" aria-live="off" aria-label={texts.traces.log(name)}>
          {lines.map((line, index) => (
            <div key={dropped + index}>
              <bdi>{pieces(line).map((piece) => (piece.hidden ? <span class="hidden-char">{piece.text}</span> : piece.text))}</bdi>
            </div>
          ))}
        </div>
      )}
    </Section>
  );
}
