import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Json, isAbort } from "../api";
import { texts } from "../texts/common";
import { mayChange, mayOperate } from "../session";
import { ErrorPanel } from "./error";

export type FieldType =
  | "text" | "multiline" | "number" | "switch" | "choice" | "list" | "map" | "password" | "json" | "file" | "filename";

export interface Field {
  name: string;
  type: FieldType;
  title: string;
  description?: string | undefined;
  required?: boolean | undefined;
  otherwise?: Json | undefined;
  options?: { value: string; title: string }[];
  min?: number | undefined;
  max?: number | undefined;
  placeholder?: string | undefined;
  /** Stands under "More settings". */
  rare?: boolean;
  /** Shown only where this holds. */
  when?: (values: Values) => boolean;
  /** What is wrong with it beyond its type; undefined: nothing. */
  check?: (value: Json | undefined, values: Values) => string | undefined;
  /** A control of the page's own, such as the editor; it gets the value as text. */
  control?: (props: { id: string; value: string; onValue: (value: string) => void; invalid: boolean }) => ComponentChildren;
  /** Suggestions of a text field. */
  suggestions?: string[];
}

export type Values = Record<string, Json | File | undefined>;

/** What is being typed, as it stands in the controls. */
type Draft = Record<string, string | boolean | string[] | [string, string][] | File | undefined>;

function draftOf(field: Field, value: Json | File | undefined): Draft[string] {
  if (value instanceof File) return value;
  const given = value === undefined ? field.otherwise : value;
  switch (field.type) {
    case "switch":
      return given === true || given === "true";
    case "list":
      return Array.isArray(given) ? given.map(String) : [];
    case "map":
      return given !== null && typeof given === "object" && !Array.isArray(given)
        ? Object.entries(given).map(([key, one]): [string, string] => [key, String(one)])
        : [];
    case "json":
      return given === undefined ? "" : typeof given === "string" ? given : JSON.stringify(given, null, 2);
    case "choice":
      return given === undefined || given === null ? "" : String(given);
    case "file":
      return undefined;
    case "filename":
      return given !== null && typeof given === "object" ? JSON.stringify(given) : String(given ?? "");
    default:
      return given === undefined || given === null ? "" : String(given);
  }
}

/** The value of a control, or what is wrong with it. A control that is left empty has none. */
export function valueOf(field: Field, draft: Draft[string]): { value?: Json | File; wrong?: string } {
  const missing = field.required ? { wrong: texts.form.required } : {};
  switch (field.type) {
    case "switch":
      return { value: draft === true };
    case "file":
      return draft instanceof File ? { value: draft } : missing;
    case "list": {
      const items = ((draft ?? []) as string[]).filter((item) => item !== "");
      return items.length === 0 && field.required ? missing : { value: items };
    }
    case "map": {
      const pairs = ((draft ?? []) as [string, string][]).filter(([key]) => key !== "");
      return pairs.length === 0 && field.required ? missing : { value: Object.fromEntries(pairs) };
    }
    case "number": {
      const text = String(draft ?? "").trim();
      if (text === "") return missing;
      const found = Number(text);
      if (Number.isNaN(found)) return { wrong: texts.form.notNumber };
      if (field.min !== undefined && found < field.min) return { wrong: texts.form.tooSmall(field.min) };
      if (field.max !== undefined && found > field.max) return { wrong: texts.form.tooLarge(field.max) };
      return { value: found };
    }
    case "json": {
      const text = String(draft ?? "");
      if (text.trim() === "") return missing;
      try {
        return { value: JSON.parse(text) as Json };
      } catch (error) {
        return { wrong: `${texts.form.notJson}: ${error instanceof Error ? error.message : ""}` };
      }
    }
    case "filename": {
      const text = String(draft ?? "");
      return text === "" ? missing : { value: text.startsWith("{") ? (JSON.parse(text) as Json) : text };
    }
    default: {
      const text = String(draft ?? "");
      return text === "" ? missing : { value: text };
    }
  }
}

/** Of these fields the one that a message of the API speaks of, by its name as a word. */
export function fieldIn(message: string, fields: Field[]): Field | undefined {
  const words = new Set(message.split(/[^A-Za-z0-9_$]+/));
  return fields.filter((field) => words.has(field.name)).sort((a, b) => b.name.length - a.name.length)[0];
}

export interface FormProps {
  fields: Field[];
  values?: Values;
  /** Throws an `ApiError` where it was refused; the message is shown at its field, or above the buttons. */
  onSubmit: (values: Values) => Promise<unknown>;
  submit?: string;
  onCancel?: () => void;
  /** Something for a viewer too: a search, a test. */
  readOnlyUse?: boolean;
  /** For operators too. */
  operates?: boolean;
  /** The first empty field is focused, as in a dialog. */
  focus?: boolean;
  /** Called with each change, for a preview. */
  onChange?: (values: Values) => void;
  children?: ComponentChildren;
}

/**
 * A form made from a description of its fields. A change of `values` after the first does not touch what is typed;
 * give it another `key` for that.
 */
export function Form(props: FormProps) {
  const form = useId();
  const root = useRef<HTMLFormElement>(null);
  const [draft, setDraft] = useState<Draft>(() =>
    Object.fromEntries(props.fields.map((field) => [field.name, draftOf(field, props.values?.[field.name])])),
  );
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const [error, setError] = useState<Error | undefined>(undefined);
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => {
    const dialog = root.current?.closest("dialog");
    if (!dialog && !props.focus) return;
    const controls = root.current?.querySelectorAll<HTMLInputElement>("[data-field] :is(input:not([type=checkbox], [type=file]), select, textarea)");
    const first = [...(controls ?? [])].find((one) => one.value === "");
    if (!first) return;
    // A dialog that is about to open focuses what has this attribute, not the button that closes it.
    first.autofocus = true;
    if (!dialog || dialog.open) first.focus();
  }, []);
  const told = useRef(props.onChange);
  told.current = props.onChange;

  // Fields may come later, with the choice of a type.
  const current = (field: Field): Draft[string] =>
    field.name in draft ? draft[field.name] : draftOf(field, props.values?.[field.name]);
  const read = (): { values: Values; wrong: Record<string, string>; shown: Field[] } => {
    const values: Values = {};
    const found: Record<string, string> = {};
    for (const field of props.fields) {
      const { value, wrong: why } = valueOf(field, current(field));
      if (value !== undefined) values[field.name] = value;
      if (why !== undefined) found[field.name] = why;
    }
    const shown = props.fields.filter((field) => !field.when || field.when(values));
    for (const field of props.fields) {
      if (!shown.includes(field)) {
        delete values[field.name];
        delete found[field.name];
      } else if (!found[field.name] && field.check) {
        const value = values[field.name];
        const why = field.check(value instanceof File ? undefined : value, values);
        if (why !== undefined) found[field.name] = why;
      }
    }
    return { values, wrong: found, shown };
  };
  const state = read();

  const names = state.shown.map((field) => field.name).join(" ");
  useEffect(() => told.current?.(state.values), [draft, names]);

  const set = (field: Field, value: Draft[string]): void => {
    setDraft((before) => ({ ...before, [field.name]: value }));
    setWrong(({ [field.name]: _, ...others }) => others);
  };
  const pointTo = (names: string[]): void => {
    requestAnimationFrame(() => {
      const first = props.fields.find((field) => names.includes(field.name));
      const control = first && root.current?.querySelector<HTMLElement>(`[data-field="${CSS.escape(first.name)}"]`);
      control?.closest("details")?.setAttribute("open", "");
      control?.querySelector<HTMLElement>("input,select,textarea,button,[tabindex]")?.focus();
    });
  };
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy) return;
    setError(undefined);
    setWrong(state.wrong);
    if (Object.keys(state.wrong).length > 0) {
      pointTo(Object.keys(state.wrong));
      return;
    }
    setBusy(true);
    try {
      await props.onSubmit(state.values);
    } catch (failure) {
      if (isAbort(failure)) return;
      const field = failure instanceof ApiError ? fieldIn(failure.message, state.shown) : undefined;
      if (field) {
        setWrong({ [field.name]: failure instanceof Error ? failure.message : "" });
        pointTo([field.name]);
      } else setError(failure instanceof Error ? failure : new Error(String(failure)));
    } finally {
      setBusy(false);
    }
  };

  const row = (field: Field) => (
    <FieldRow
      key={field.name}
      field={field}
      id={`${form}-${field.name}`}
      value={current(field)}
      wrong={wrong[field.name]}
      onValue={(value) => set(field, value)}
    />
  );
  const usual = state.shown.filter((field) => !field.rare);
  const rare = state.shown.filter((field) => field.rare);
  const allowed = props.readOnlyUse === true || (props.operates ? mayOperate : mayChange).value;
  return (
    <form ref={root} class="form" noValidate onSubmit={(event) => void submit(event)}>
      {usual.map(row)}
      {rare.length > 0 && (
        <details class="more">
          <summary>{texts.form.more}</summary>
          {rare.map(row)}
        </details>
      )}
      {props.children}
      {error && <ErrorPanel error={error} title={texts.errors.title} />}
      <footer>
        {props.onCancel && (
          <button type="button" onClick={props.onCancel}>
            {texts.form.cancel}
          </button>
        )}
        <button type="submit" class="primary" disabled={busy || !allowed} title={allowed ? "" : props.operates ? texts.user.operators : texts.user.viewer}>
          {busy ? texts.form.busy : (props.submit ?? texts.form.save)}
        </button>
      </footer>
    </form>
  );
}

interface RowProps {
  field: Field;
  id: string;
  value: Draft[string];
  wrong: string | undefined;
  onValue: (value: Draft[string]) => void;
}

function FieldRow({ field, id, value, wrong, onValue }: RowProps) {
  const [plain, setPlain] = useState(false);
  const described = [field.description && `${id}-about`, wrong && `${id}-wrong`].filter(Boolean).join(" ") || undefined;
  const marks = { id, "aria-describedby": described, "aria-invalid": wrong ? true : undefined, "aria-required": field.required };
  const text = typeof value === "string" ? value : "";
  let control: ComponentChildren;
  // A group has no one control that a label could name.
  let group = false;
  if (field.control) control = field.control({ id, value: text, onValue, invalid: wrong !== undefined });
  else if (field.type === "switch") {
    control = <input {...marks} type="checkbox" role="switch" checked={value === true} onChange={(event) => onValue(event.currentTarget.checked)} />;
  } else if (field.type === "choice") {
    control = (
      <select {...marks} value={text} onChange={(event) => onValue(event.currentTarget.value)}>
        {(!field.required || text === "") && <option value="">{texts.form.choose}</option>}
        {(field.options ?? []).map((option) => (
          <option key={option.value} value={option.value}>
            {option.title}
          </option>
        ))}
      </select>
    );
  } else if (field.type === "multiline" || field.type === "json") {
    control = (
      <textarea
        {...marks}
        rows={field.type === "json" ? 6 : 4}
        class={field.type === "json" ? "mono" : ""}
        spellcheck={false}
        placeholder={field.placeholder}
        value={text}
        onInput={(event) => onValue(event.currentTarget.value)}
      />
    );
  } else if (field.type === "list") {
    group = true;
    control = <ListControl id={id} items={(value ?? []) as string[]} onValue={onValue} />;
  } else if (field.type === "map") {
    group = true;
    control = <MapControl id={id} pairs={(value ?? []) as [string, string][]} onValue={onValue} />;
  } else if (field.type === "filename") {
    control = <FilenameControl marks={marks} value={text} onValue={onValue} />;
  } else if (field.type === "file") {
    control = <input {...marks} type="file" onChange={(event) => onValue(event.currentTarget.files?.[0])} />;
  } else {
    const secret =
      field.type === "password" && !plain
        ? ({ type: "password" } as const)
        : field.suggestions
          ? ({ type: "text", list: `${id}-list` } as const)
          : ({ type: "text" } as const);
    control = (
      <span class="with-button">
        <input
          {...marks}
          {...secret}
          inputMode={field.type === "number" ? ("decimal" as const) : undefined}
          class={field.type === "number" ? "right" : ""}
          autocomplete={field.type === "password" ? "new-password" : "off"}
          spellcheck={false}
          placeholder={field.placeholder}
          value={text}
          onInput={(event) => onValue(event.currentTarget.value)}
        />
        {field.type === "password" && (
          <button type="button" aria-pressed={plain} onClick={() => setPlain(!plain)}>
            {plain ? texts.form.hide : texts.form.show}
          </button>
        )}
        {field.suggestions && (
          <datalist id={`${id}-list`}>
            {field.suggestions.map((one) => (
              <option key={one} value={one} />
            ))}
          </datalist>
        )}
      </span>
    );
  }
  const title = (
    <>
      {field.title}
      {!field.required && field.type !== "switch" && <span class="faint small"> {texts.form.optional}</span>}
    </>
  );
  return (
    <div
      class={`field ${field.type}`}
      data-field={field.name}
      role={group ? "group" : undefined}
      aria-labelledby={group ? `${id}-title` : undefined}
      aria-describedby={group ? described : undefined}
    >
      {group ? (
        <span class="field-title" id={`${id}-title`}>
          {title}
        </span>
      ) : (
        <label class="field-title" htmlFor={id}>
          {title}
        </label>
      )}
      {control}
      {field.description && (
        <p class="about" id={`${id}-about`}>
          {field.description}
        </p>
      )}
      {wrong && (
        <p class="wrong" id={`${id}-wrong`} role="alert">
          {wrong}
        </p>
      )}
    </div>
  );
}

/** The name of a file on the node's machine, or a file of this one, whose text goes with the form. */
function FilenameControl(props: { marks: Record<string, unknown>; value: string; onValue: (value: string) => void }) {
  const picker = useRef<HTMLInputElement>(null);
  const [wrong, setWrong] = useState("");
  const { value, onValue } = props;
  const sent = value.startsWith("{") ? (JSON.parse(value) as { filename?: string }) : undefined;
  const take = async (file: File | undefined): Promise<void> => {
    if (!file) return;
    const tooLarge = file.size > LARGEST_FILE;
    setWrong(tooLarge ? texts.form.fileTooLarge : "");
    if (!tooLarge) onValue(JSON.stringify({ filename: file.name, file: await file.text() }));
  };
  return (
    <>
      <span class="with-button">
        <input
          {...props.marks}
          spellcheck={false}
          autocomplete="off"
          placeholder={texts.form.filename}
          readOnly={sent !== undefined}
          value={sent ? (sent.filename ?? "") : value}
          onInput={(event) => onValue(event.currentTarget.value.replace(/^\{/, ""))}
        />
        {sent ? (
          <button type="button" onClick={() => onValue("")}>
            {texts.form.noFile}
          </button>
        ) : (
          <button type="button" onClick={() => picker.current?.click()}>
            {texts.form.sendFile}
          </button>
        )}
      </span>
      <input
        ref={picker}
        type="file"
        hidden
        onChange={(event) => void take(event.currentTarget.files?.[0]).finally(() => picker.current && (picker.current.value = ""))}
      />
      {wrong && <p class="wrong">{wrong}</p>}
    </>
  );
}

// The node takes so many characters.
const LARGEST_FILE = 262_144;

function ListControl({ id, items, onValue }: { id: string; items: string[]; onValue: (items: string[]) => void }) {
  const shown = items.length === 0 ? [""] : items;
  const change = (index: number, text: string): void => onValue(shown.map((item, at) => (at === index ? text : item)));
  return (
    <div class="items">
      {shown.map((item, index) => (
        <span class="with-button" key={index}>
          <input
            id={`${id}-${index}`}
            aria-label={texts.form.item(index + 1)}
            value={item}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => change(index, event.currentTarget.value)}
          />
          <button
            type="button"
            class="icon"
            aria-label={texts.form.remove(texts.form.item(index + 1))}
            onClick={() => onValue(shown.filter((_, at) => at !== index))}
          >
            ×
          </button>
        </span>
      ))}
      <button type="button" class="small" onClick={() => onValue([...shown, ""])}>
        {texts.form.add}
      </button>
    </div>
  );
}

function MapControl({ id, pairs, onValue }: { id: string; pairs: [string, string][]; onValue: (pairs: [string, string][]) => void }) {
  const change = (index: number, pair: [string, string]): void => onValue(pairs.map((one, at) => (at === index ? pair : one)));
  return (
    <div class="items">
      {pairs.map(([key, value], index) => (
        <span class="with-button pair" key={index}>
          <input
            id={`${id}-${index}`}
            aria-label={`${texts.form.key} ${index + 1}`}
            placeholder={texts.form.key}
            value={key}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => change(index, [event.currentTarget.value, value])}
          />
          <input
            aria-label={`${texts.form.value} ${index + 1}`}
            placeholder={texts.form.value}
            value={value}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => change(index, [key, event.currentTarget.value])}
          />
          <button
            type="button"
            class="icon"
            aria-label={texts.form.remove(`${texts.form.item(index + 1)}`)}
            onClick={() => onValue(pairs.filter((_, at) => at !== index))}
          >
            ×
          </button>
        </span>
      ))}
      <button type="button" class="small" onClick={() => onValue([...pairs, ["", ""]])}>
        {texts.form.add}
      </button>
    </div>
  );
}
