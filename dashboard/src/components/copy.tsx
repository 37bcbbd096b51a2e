/** What copies an identifier. */

import { texts } from "../texts/common";
import { nameText } from "./name";
import { toast, toastError } from "./toast";

/** Also where the browser has no clipboard for pages without TLS. */
export async function copyText(text: string): Promise<void> {
  if ("clipboard" in navigator) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  // Inside an open dialog, whatever is outside cannot be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error(texts.copy.failed);
}

export function Copy({ text }: { text: string }) {
  const copy = (event: MouseEvent): void => {
    event.stopPropagation();
    copyText(text).then(() => toast(texts.copy.done), toastError);
  };
  return (
    <button type="button" class="copy" aria-label={texts.copy.label(nameText(text, 60))} title={texts.copy.title} onClick={copy}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <path d="M6 5h7v8.500H6zM3 10.500v-8h7" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" />
      </svg>
    </button>
  );
}
