/**
 * CodeMirror 6, in a chunk of its own. It stands in a shadow root: there it uses constructed style sheets, which the
 * Content-Security-Policy allows; in the document it would make a `style` element, which it refuses.
 */

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionSource } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json, jsonParseLinter } from "@codemirror/lang-json";
import { SQLDialect, sql } from "@codemirror/lang-sql";
import { HighlightStyle, bracketMatching, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, linter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { Annotation, Compartment, EditorState, type Extension } from "@codemirror/state";
import { EditorView, drawSelection, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { tags } from "@lezer/highlight";

export type { CompletionSource, Diagnostic };

const rules = SQLDialect.define({
  keywords:
    "select from where and or not as foreach do incase case when then else end like in div mod true false null undefined is",
  types: "",
  builtin: "",
  doubleQuotedStrings: false,
  identifierQuotes: "`\"",
});

const highlight = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: "var(--code-keyword)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.propertyName, tags.typeName], color: "var(--code-name)" },
  { tag: tags.comment, color: "var(--ink-2)", fontStyle: "italic" },
]);

const look = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--field)", fontSize: "13px", height: "100%" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--ink)", minHeight: "6em" },
  ".cm-gutters": { backgroundColor: "var(--field)", color: "var(--ink-2)", border: "none" },
  ".cm-scroller": { overflow: "auto", maxHeight: "50vh" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-placeholder": { color: "var(--ink-2)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--ink)", border: "1px solid var(--border)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--select)",
  },
});

/** On a change that the page made, not its user. */
const given = Annotation.define<boolean>();

export interface EditorOptions {
  value: string;
  language: "sql" | "json" | "text";
  label: string;
  hint?: string | undefined;
  readOnly?: boolean | undefined;
  complete?: CompletionSource | undefined;
  onValue: (value: string) => void;
  onSubmit?: (() => void) | undefined;
}

export interface Handle {
  setValue: (value: string) => void;
  setReadOnly: (readOnly: boolean) => void;
  setProblems: (problems: Diagnostic[]) => void;
  focus: () => void;
  destroy: () => void;
}

export function open(parent: HTMLElement, options: EditorOptions): Handle {
  const root = parent.shadowRoot ?? parent.attachShadow({ mode: "open" });
  const writable = new Compartment();
  const may = (readOnly: boolean): Extension => [EditorState.readOnly.of(readOnly), EditorView.editable.of(!readOnly)];
  const language: Extension[] =
    options.language === "sql"
      ? [sql({ dialect: rules, upperCaseKeywords: true })]
      : options.language === "json"
        ? [json(), linter((view) => (view.state.doc.length === 0 ? [] : jsonParseLinter()(view)))]
        : [];
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: options.value,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        bracketMatching(),
        closeBrackets(),
        autocompletion(options.complete ? { override: [options.complete] } : {}),
        syntaxHighlighting(highlight),
        ...language,
        look,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": options.label, tabindex: "0" }),
        placeholder(options.hint ?? ""),
        writable.of(may(options.readOnly ?? false)),
        // Tab goes on to the next control, as everywhere: nobody is caught in the editor.
        keymap.of([
          { key: "Mod-Enter", run: () => (options.onSubmit ? (options.onSubmit(), true) : false) },
          ...closeBracketsKeymap,
          ...defaultKeymap,
          ...historyKeymap,
          ...completionKeymap,
          ...lintKeymap,
        ]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((one) => one.annotation(given))) options.onValue(update.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    setValue: (value) => {
      if (value !== view.state.doc.toString()) view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: value }, annotations: given.of(true) });
    },
    setReadOnly: (readOnly) => view.dispatch({ effects: writable.reconfigure(may(readOnly)) }),
    setProblems: (problems) => view.dispatch(setDiagnostics(view.state, problems)),
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
