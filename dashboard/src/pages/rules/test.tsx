import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Json, NodeAway, api } from "../../api";
import { Badge, Change, Section } from "../../components/basic";
import { Editor } from "../../components/editor";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { Payload } from "../../components/payload";
import { TimeAgo } from "../../components/time";
import { useLive } from "../../hooks";
import { mayChange } from "../../session";
import { texts as common } from "../../texts/common";
import { texts } from "../../texts/rules";
import { useMarks } from "./marks";
import { type Catalogue, exampleOf, sourcesOf } from "./sql";

export type Sample = Record<string, Json>;

const MODES = ["sample", "live"] as const;
const REST = 500;
const LISTED = 20;

type Answer = { rows: Json } | { none: true } | { error: Error };

function parsed(text: string): Sample | undefined {
  try {
    const found = JSON.parse(text) as Json;
    return found !== null && typeof found === "object" && !Array.isArray(found) ? found : undefined;
  } catch {
    return undefined;
  }
}

const lines = (sample: Sample): string => JSON.stringify(sample, null, 2);

interface Shown {
  number: number;
  event: Sample;
}

/** The last events of a source, as they come; one of them can be taken for the test. */
const TONES = { taken: "good", left: "plain", failed: "bad", unknown: "warn" } as const;

function RealEvents({ source, sql, onUse, onFirst }: { source: string; sql: string; onUse: (event: Sample) => void; onFirst: (event: Sample) => void }) {
  const [events, setEvents] = useState<Shown[]>([]);
  const [held, setHeld] = useState(false);
  const last = useRef(0);
  useEffect(() => {
    setEvents([]);
    last.current = 0;
  }, [source]);
  useLive(source === "" ? null : { events: source }, {
    events: ({ events: came }: { events: Sample[] }) => {
      if (came[came.length - 1] !== undefined && last.current === 0) onFirst(came[came.length - 1] as Sample);
      if (held) return;
      const numbered = came.map((event): Shown => ({ number: (last.current += 1), event }));
      setEvents((before) => [...numbered.reverse(), ...before].slice(0, LISTED));
    },
  });
  const marks = useMarks(source, sql, events, mayChange.value);
  const markOf = (number: number) => {
    const found = marks.get(number);
    if (!found) return null;
    return (
      <span title={found.text}>
        <Badge tone={TONES[found.mark]}>{texts.test.marks[found.mark]}</Badge>
        {found.text !== "" && <span class="faint small"> <Name text={found.text} max={120} /></span>}{" "}
      </span>
    );
  };
  const textOf = (value: Json | undefined): string | null => (value === undefined || value === null ? null : typeof value === "string" ? value : JSON.stringify(value));
  return (
    <>
      <label class="small">
        <input type="checkbox" checked={held} onChange={(event) => setHeld(event.currentTarget.checked)} /> {texts.test.hold}
      </label>
      {events.length === 0 ? (
        <p class="faint" role="status">
          {source === "" ? texts.test.noSource : texts.test.waiting}
        </p>
      ) : (
        <ul class="real-events" aria-label={texts.test.events} tabIndex={0}>
          {events.map(({ number, event }) => (
            <li key={number}>
              <span>
                {markOf(number)}
                <TimeAgo at={typeof event["timestamp"] === "number" ? event["timestamp"] : null} />{" "}
                <Name text={textOf(event["topic"] ?? event["event"])} max={60} />{" "}
                <span class="faint">
                  <Name text={textOf(event["payload"] ?? event["clientid"])} max={60} />
                </span>
                {event["payload_cut"] !== undefined && <span class="faint small"> {texts.test.cut}</span>}
              </span>
              <button type="button" class="small" onClick={() => onUse(event)}>
                {texts.test.use}
              </button>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

interface TestProps {
  sql: string;
  catalogue: Catalogue;
  /** Grows with each wish to run it. */
  asked: number;
  onSample: (sample: Sample) => void;
  /** What became of the SQL: undefined where it was taken. */
  onAnswer: (error: ApiError | undefined) => void;
}

/** What the SQL makes of an event: an example, or one that has really come. */
export function Test({ sql, catalogue, asked, onSample, onAnswer }: TestProps) {
  const sources = sourcesOf(sql);
  const [chosen, setChosen] = useState("");
  // While the SQL is typed again it has no source: the events of the last one stay.
  const latest = useRef("");
  const source = sources.includes(chosen) ? chosen : (sources[0] ?? latest.current);
  latest.current = source;
  const [mode, setMode] = useState<(typeof MODES)[number]>("sample");
  const [context, setContext] = useState(() => lines(exampleOf(source, catalogue)));
  const [own, setOwn] = useState(false);
  const [real, setReal] = useState(false);
  const [auto, setAuto] = useState(true);
  const [wanted, setWanted] = useState(0);
  const [answer, setAnswer] = useState<Answer | undefined>(undefined);
  const told = useRef(onAnswer);
  told.current = onAnswer;
  const sample = parsed(context);

  // As long as nobody has changed it, it is the example of the source, or the first real event that comes.
  useEffect(() => {
    if (!own && mode === "sample") setContext(lines(exampleOf(source, catalogue)));
    setReal(false);
  }, [source, own, mode]);
  const awaited = mode === "live" && !own && !real;
  useEffect(() => {
    if (sample) onSample(sample);
  }, [context]);

  const run = async (isWanted: () => boolean): Promise<void> => {
    const ctx = parsed(context);
    // What was invented says nothing of real events.
    if (awaited) setAnswer(undefined);
    if (awaited || !ctx || sql.trim() === "" || !mayChange.value) return;
    const { payload_cut: _, ...columns } = ctx;
    try {
      const rows = await api.post<Json>("/rules", { rawsql: sql, ctx: columns, test: true });
      if (!isWanted()) return;
      setAnswer({ rows });
      told.current(undefined);
    } catch (failure) {
      if (!isWanted() || failure instanceof NodeAway) return;
      const refused = failure instanceof ApiError ? failure : undefined;
      setAnswer(refused?.status === 404 ? { none: true } : { error: failure instanceof Error ? failure : new Error(String(failure)) });
      told.current(refused?.place ? refused : undefined);
    }
  };
  useEffect(() => {
    if (sql.trim() === "") {
      setAnswer(undefined);
      told.current(undefined);
    }
    let current = true;
    const timer = auto ? setTimeout(() => void run(() => current), REST) : undefined;
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [sql, context, auto, awaited]);
  useEffect(() => {
    if (asked + wanted === 0) return;
    let current = true;
    void run(() => current);
    return () => {
      current = false;
    };
  }, [asked, wanted]);

  const use = (event: Sample): void => {
    setOwn(true);
    setContext(lines(event));
  };
  const first = (event: Sample): void => {
    if (own) return;
    setContext(lines(event));
    setReal(true);
  };
  return (
    <Section title={texts.test.title}>
      <p class="about">{texts.test.about}</p>
      <div class="filters">
        <span class="segmented" role="group" aria-label={texts.test.from}>
          {MODES.map((one) => (
            <button key={one} type="button" aria-pressed={one === mode} onClick={() => setMode(one)}>
              {texts.test.modes[one]}
            </button>
          ))}
        </span>
        {sources.length > 1 && (
          <label>
            {texts.test.source}
            <select value={source} onChange={(event) => setChosen(event.currentTarget.value)}>
              {sources.map((one) => (
                <option key={one} value={one}>
                  {nameText(one, 60)}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      {mode === "live" && <RealEvents source={source} sql={sql} onUse={use} onFirst={first} />}
      <h3>{texts.test.context}</h3>
      <Editor
        language="json"
        label={texts.test.context}
        value={context}
        onValue={(text) => {
          if (text === context) return;
          setOwn(true);
          setContext(text);
        }}
        onSubmit={() => setWanted((count) => count + 1)}
      />
      {!sample && (
        <p class="wrong" role="alert">
          {texts.test.notJson}
        </p>
      )}
      <div class="actions">
        <Change onClick={() => setWanted((count) => count + 1)} disabled={!sample || sql.trim() === ""}>
          {texts.test.run}
        </Change>
        {own && (
          <button type="button" onClick={() => setOwn(false)}>
            {texts.test.reset}
          </button>
        )}
        <label>
          <input type="checkbox" checked={auto} onChange={(event) => setAuto(event.currentTarget.checked)} /> {texts.test.auto}
        </label>
      </div>
      <h3>{texts.test.result}</h3>
      <div aria-live="polite" data-result>
        {!mayChange.value ? (
          <p class="faint">{common.user.viewer}</p>
        ) : answer === undefined ? (
          <p class="faint">{awaited && sql.trim() !== "" ? texts.test.awaited : texts.test.none}</p>
        ) : "none" in answer ? (
          <p>
            <Badge tone="warn">{texts.test.noMatch}</Badge>
          </p>
        ) : "error" in answer ? (
          <ErrorPanel error={answer.error} title={texts.test.wrong} />
        ) : (
          <>
            {Array.isArray(answer.rows) && <p>{texts.test.rows(answer.rows.length)}</p>}
            <Payload bytes={new TextEncoder().encode(JSON.stringify(answer.rows, null, 2))} />
          </>
        )}
      </div>
    </Section>
  );
}
