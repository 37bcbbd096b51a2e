import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { texts } from "../texts/common";
import { ErrorPanel } from "./error";
import { Name } from "./name";

/** A modal dialog while it is rendered. Escape and the cross call `onClose`; without it neither closes. */
export function Dialog(props: { title: string; onClose?: (() => void) | undefined; wide?: boolean; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={props.wide ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(event) => {
        if (event.target !== event.currentTarget) return;
        event.preventDefault();
        props.onClose?.();
      }}
    >
      <header>
        <h2 id={id}>{props.title}</h2>
        {props.onClose && (
          <button type="button" class="icon" aria-label={texts.dialog.close} onClick={props.onClose}>
            ×
          </button>
        )}
      </header>
      {props.children}
    </dialog>
  );
}

export interface Question {
  title: string;
  /** The names of what it hits: clients, topics, rules. */
  hits?: string[];
  /** What comes of it. */
  text?: string;
  /** The word on the button: "Kick", "Delete". */
  action: string;
  /** Done while the dialog stays open; where it fails the dialog says so. */
  work: () => Promise<unknown>;
}

const asked = signal<{ question: Question; answer: (done: boolean) => void } | null>(null);

/** Ask before something is destroyed. True: it was confirmed and done. */
export function confirm(question: Question): Promise<boolean> {
  asked.value?.answer(false);
  return new Promise((answer) => (asked.value = { question, answer }));
}

const LISTED = 10;

function Confirm({ question, answer }: { question: Question; answer: (done: boolean) => void }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | undefined>(undefined);
  const end = (done: boolean): void => {
    asked.value = null;
    answer(done);
  };
  const go = async (): Promise<void> => {
    setBusy(true);
    setError(undefined);
    try {
      await question.work();
      end(true);
    } catch (failure) {
      setError(failure instanceof Error ? failure : new Error(String(failure)));
      setBusy(false);
    }
  };
  const hits = question.hits ?? [];
  return (
    <Dialog title={question.title} onClose={busy ? undefined : () => end(false)}>
      {hits.length > 0 && (
        <>
          <p>{texts.confirm.hits}</p>
          <ul class="hits" tabIndex={0} aria-label={texts.confirm.hits}>
            {hits.slice(0, LISTED).map((hit) => (
              <li key={hit}>
                <Name text={hit} />
              </li>
            ))}
            {hits.length > LISTED && <li>{texts.confirm.more(hits.length - LISTED)}</li>}
          </ul>
        </>
      )}
      {question.text && <p>{question.text}</p>}
      {error && <ErrorPanel error={error} title={texts.errors.title} />}
      <footer>
        <button type="button" onClick={() => end(false)} disabled={busy}>
          {texts.confirm.cancel}
        </button>
        <button type="button" class="danger" onClick={() => void go()} disabled={busy}>
          {busy ? texts.form.busy : question.action}
        </button>
      </footer>
    </Dialog>
  );
}

export function ConfirmHost() {
  const open = asked.value;
  return open && <Confirm key={open.question.title} question={open.question} answer={open.answer} />;
}
