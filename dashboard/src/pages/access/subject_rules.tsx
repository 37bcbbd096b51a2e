import { useEffect, useRef, useState } from "preact/hooks";
import { api } from "../../api";
import { Change, Empty } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { toast } from "../../components/toast";
import { useData } from "../../hooks";
import { mayChange } from "../../session";
import { texts } from "../../texts/access";
import { type Kind, type Line, MOST_LINES, lineIn, moved, pathOf, readLines, repeated, rulesOf, same } from "./rule_lines";

const words = texts.rules;
/** So near to an edge of the window a rule that is dragged scrolls the page. */
const EDGE = 60;

/** The rules of one subject in their order: edited in place, and saved all at once. `version`: read again when it changes. */
export function SubjectRules({ kind, name, version = 0 }: { kind: Kind; name: string; version?: number }) {
  const { data, error, reload } = useData(async (signal) => ({ lines: await readLines(kind, name, signal) }), [kind, name, version]);
  // What is edited, and the rules that it began with.
  const [draft, setDraft] = useState<{ base: Line[]; lines: Line[] } | undefined>(undefined);
  const saved = useRef(false);
  const [wrong, setWrong] = useState<{ id: number; text: string } | undefined>(undefined);
  const [failure, setFailure] = useState<Error | undefined>(undefined);
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  const [drag, setDrag] = useState<{ from: number; to: number } | undefined>(undefined);
  const list = useRef<HTMLOListElement>(null);
  const nextId = useRef(-1);
  const focus = useRef<{ id: number; part: string } | undefined>(undefined);
  useEffect(() => {
    const wanted = focus.current;
    focus.current = undefined;
    if (wanted) list.current?.querySelector<HTMLElement>(`[data-line="${wanted.id}"] ${wanted.part}`)?.focus();
  }, [draft]);
  useEffect(() => {
    if (saved.current || (draft && same(draft.lines, draft.base))) setDraft(undefined);
    saved.current = false;
  }, [data]);

  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return <div class="table-waiting" />;
  const { lines: there } = data;
  if (!there) return <Empty title={words.tooMany(MOST_LINES)} />;
  const lines = draft?.lines ?? there;
  const base = draft?.base ?? there;
  const dirty = !same(lines, base);
  const allowed = mayChange.value;

  const edit = (next: Line[]): void => {
    setDraft({ base, lines: next });
    setWrong(undefined);
    setFailure(undefined);
  };
  const set = (at: number, change: Partial<Line>): void => edit(lines.map((line, index) => (index === at ? { ...line, ...change } : line)));
  const move = (from: number, to: number, part?: string): void => {
    if (from === to || to < 0 || to >= lines.length) return;
    const id = lines[from]?.id ?? 0;
    // At an end its button is off: the other one is pressed next.
    const end = to === 0 ? ".down" : to === lines.length - 1 ? ".up" : part;
    if (part && end) focus.current = { id, part: end };
    edit(moved(lines, from, to));
    setSaid(words.moved(to + 1, lines.length));
  };
  const add = (): void => {
    const id = nextId.current;
    nextId.current -= 1;
    focus.current = { id, part: "input" };
    edit([...lines, { id, topic: "", action: "pubsub", access: "allow", listener: "" }]);
  };
  const discard = (): void => {
    setWrong(undefined);
    setFailure(undefined);
    setDraft(undefined);
    reload();
  };
  const save = async (): Promise<void> => {
    const again = repeated(lines);
    if (again) return setWrong({ id: lines[again[0]]?.id ?? 0, text: words.repeats(again[1] + 1) });
    setBusy(true);
    setFailure(undefined);
    try {
      await api.put(pathOf(kind, name), { rules: rulesOf(lines), instead_of: rulesOf(base) });
      toast(words.saved);
      saved.current = true;
      reload();
    } catch (thrown) {
      const reason = thrown instanceof Error ? thrown : new Error(String(thrown));
      const line = lines[lineIn(reason.message, lines)];
      if (line) setWrong({ id: line.id, text: reason.message });
      else setFailure(reason);
    }
    setBusy(false);
  };

  const begin = (event: PointerEvent, from: number): void => {
    if (!allowed || event.button !== 0) return;
    event.preventDefault();
    let to = from;
    const place = (y: number): number => {
      const rows = [...(list.current?.children ?? [])].map((row) => row.getBoundingClientRect());
      const above = rows.filter((row, at) => at !== from && row.top + row.height / 2 < y).length;
      return Math.min(above, rows.length - 1);
    };
    const follow = (moving: PointerEvent): void => {
      to = place(moving.clientY);
      setDrag({ from, to });
      if (moving.clientY < EDGE) scrollBy(0, -EDGE / 4);
      else if (moving.clientY > innerHeight - EDGE) scrollBy(0, EDGE / 4);
    };
    const end = (ended: Event): void => {
      removeEventListener("pointermove", follow);
      for (const name of ["pointerup", "pointercancel", "keydown"]) removeEventListener(name, end);
      setDrag(undefined);
      if (ended.type === "pointerup") move(from, to);
    };
    setDrag({ from, to });
    addEventListener("pointermove", follow);
    for (const name of ["pointerup", "pointercancel", "keydown"]) addEventListener(name, end);
  };
  const dragged = (at: number): string => {
    if (!drag) return "";
    if (at === drag.from) return "dragged";
    if (at === drag.to) return drag.to < drag.from ? "drop-before" : "drop-after";
    return "";
  };
  const choice = (line: Line, at: number, field: "action" | "access", options: Record<string, string>) => (
    <label class={`line-${field}`}>
      <span class="line-label">{words.columns[field]}</span>
      <select
        aria-label={words.fieldOf(words.columns[field], at + 1)}
        class={field === "access" ? line.access : ""}
        value={line[field]}
        disabled={!allowed}
        onChange={(event) => set(at, { [field]: event.currentTarget.value })}
      >
        {Object.entries(options).map(([value, title]) => (
          <option key={value} value={value}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
  const text = (line: Line, at: number, field: "topic" | "listener", placeholder: string) => (
    <label class={`line-${field}`}>
      <span class="line-label">{words.columns[field]}</span>
      <input
        aria-label={words.fieldOf(words.columns[field], at + 1)}
        aria-invalid={wrong?.id === line.id ? true : undefined}
        value={line[field]}
        placeholder={placeholder}
        disabled={!allowed}
        spellcheck={false}
        autocomplete="off"
        onInput={(event) => set(at, { [field]: event.currentTarget.value })}
      />
    </label>
  );
  return (
    <div class="table-block rule-lines">
      {lines.length === 0 ? (
        <Empty title={words.none}>
          <p>{words.noneText}</p>
        </Empty>
      ) : (
        <div class="line-head" aria-hidden="true">
          <span class="line-topic">{words.columns.topic}</span>
          <span class="line-action">{words.columns.action}</span>
          <span class="line-access">{words.columns.access}</span>
          <span class="line-listener">{words.columns.listener}</span>
        </div>
      )}
      <ol ref={list} aria-label={words.lines} class={drag ? "dragging" : ""}>
        {lines.map((line, at) => (
          <li key={line.id} data-line={line.id} class={dragged(at)}>
            <span class="line-handle" aria-hidden="true" title={allowed ? words.drag : ""} onPointerDown={(event) => begin(event, at)}>
              ⠿
            </span>
            <span class="line-place faint">{at + 1}</span>
            {text(line, at, "topic", "devices/%u/#")}
            {choice(line, at, "action", words.actions)}
            {choice(line, at, "access", words.access)}
            {text(line, at, "listener", words.anyListener)}
            <span class="line-buttons">
              <button type="button" class="icon up" aria-label={words.up(at + 1)} title={words.up(at + 1)} disabled={!allowed || at === 0} onClick={() => move(at, at - 1, ".up")}>
                ↑
              </button>
              <button
                type="button"
                class="icon down"
                aria-label={words.down(at + 1)}
                title={words.down(at + 1)}
                disabled={!allowed || at === lines.length - 1}
                onClick={() => move(at, at + 1, ".down")}
              >
                ↓
              </button>
              <button
                type="button"
                class="icon remove"
                aria-label={words.removeLine(at + 1)}
                title={words.removeLine(at + 1)}
                disabled={!allowed}
                onClick={() => edit(lines.filter((_, index) => index !== at))}
              >
                ×
              </button>
            </span>
            {wrong?.id === line.id && (
              <p class="wrong" role="alert">
                {wrong.text}
              </p>
            )}
          </li>
        ))}
      </ol>
      <p class="sr" aria-live="polite">
        {said}
      </p>
      {failure && <ErrorPanel error={failure} title={words.notSaved} />}
      <div class="table-tools line-foot">
        <Change onClick={add}>{words.addLine}</Change>
        {(dirty || failure) && (
          <span class="actions">
            <span class="faint">{words.unsaved}</span>
            <button type="button" onClick={discard} disabled={busy}>
              {words.discard}
            </button>
            <Change kind="primary" onClick={() => void save()} disabled={busy}>
              {words.save}
            </Change>
          </span>
        )}
      </div>
    </div>
  );
}
