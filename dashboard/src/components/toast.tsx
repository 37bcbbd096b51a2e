import { signal } from "@preact/signals";
import { texts } from "../texts/common";
import { isAbort } from "../api";
import { messageOf } from "./error";
import { visible } from "../visible";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

const toasts = signal<Toast[]>([]);
let last = 0;

function close(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

function show(text: string, bad: boolean): void {
  last += 1;
  const id = last;
  toasts.value = [...toasts.value.slice(-4), { id, text: visible(text), bad }];
  if (!bad) setTimeout(() => close(id), 5_000);
}

/** What was done; goes by itself. */
export function toast(text: string): void {
  show(text, false);
}

/** What was not done; stays until it is closed. */
export function toastError(error: unknown): void {
  if (!isAbort(error)) show(messageOf(error), true);
}

/** Do it, and say what came of it. True: it was done. */
export async function attempt(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work();
  } catch (error) {
    toastError(error);
    return false;
  }
  if (done) toast(done);
  return true;
}

export function Toasts() {
  return (
    <div class="toasts" role="region" aria-label={texts.toasts.label} aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={one.bad ? "toast bad" : "toast good"} role={one.bad ? "alert" : "status"}>
          <span>{one.text}</span>
          <button type="button" class="icon" aria-label={texts.toasts.close} onClick={() => close(one.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
