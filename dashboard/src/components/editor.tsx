import { useEffect, useRef } from "preact/hooks";
import type { CompletionSource, Handle } from "../editor/setup";

export interface Problem {
  /** Places in the text, from 0. */
  from: number;
  to: number;
  message: string;
}

export interface EditorProps {
  id?: string;
  value: string;
  language: "sql" | "json" | "text";
  label: string;
  hint?: string;
  readOnly?: boolean;
  /** What can be completed at the cursor, as CodeMirror wants it. */
  complete?: CompletionSource;
  problems?: Problem[];
  onValue: (value: string) => void;
  /** Ctrl-Enter. */
  onSubmit?: () => void;
}

// A function of its own, as in chart.tsx.
const readSetup = () => import("../editor/setup");

/** Text with highlighting and completion. Until its chunk is there, and where it fails, a plain field. */
export function Editor(props: EditorProps) {
  const box = useRef<HTMLDivElement>(null);
  const handle = useRef<Handle | undefined>(undefined);
  const current = useRef(props);
  current.current = props;
  // What was typed and has not come back as `value` yet. An older one that comes late must not take back what was typed since.
  const typed = useRef<string[]>([]);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let gone = false;
    const start = ({ open }: typeof import("../editor/setup")): void => {
      if (gone) return;
      const { language, label, hint, readOnly } = current.current;
      handle.current = open(element, {
        value: current.current.value,
        language,
        label,
        hint,
        readOnly,
        complete: current.current.complete && ((context) => current.current.complete?.(context) ?? null),
        onValue: (value) => {
          typed.current.push(value);
          current.current.onValue(value);
        },
        onSubmit: () => current.current.onSubmit?.(),
      });
      showProblems();
    };
    readSetup().then(start, () => undefined);
    return () => {
      gone = true;
      handle.current?.destroy();
      handle.current = undefined;
    };
  }, [props.language]);

  const showProblems = (): void => {
    const { problems, value, language } = current.current;
    if (problems === undefined && language === "json") return;
    handle.current?.setProblems(
      (problems ?? []).map(({ from, to, message }) => ({
        from: Math.min(from, value.length),
        to: Math.min(Math.max(to, from), value.length),
        message,
        severity: "error",
      })),
    );
  };
  useEffect(() => {
    const known = typed.current.lastIndexOf(props.value);
    typed.current = known < 0 ? [] : typed.current.slice(known + 1);
    if (known < 0) handle.current?.setValue(props.value);
  }, [props.value]);
  useEffect(() => handle.current?.setReadOnly(props.readOnly ?? false), [props.readOnly]);
  useEffect(showProblems, [props.problems]);

  return <div id={props.id} ref={box} class="editor" data-editor onClick={() => handle.current?.focus()} />;
}
