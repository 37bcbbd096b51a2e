/** What else can be done with a row: behind a button, so that nothing is destroyed by a slip. */

import { useId, useRef, useState } from "preact/hooks";
import { mayChange, mayOperate } from "../session";
import { texts } from "../texts/common";

export interface Item {
  title: string;
  act: () => void;
  /** It destroys something. */
  danger?: boolean;
  /** It changes nothing: a viewer may do it too. */
  reads?: boolean;
  /** An operator may do it too. */
  operates?: boolean;
}

/** `label`: of which row it is, for a screen reader. */
export function Menu({ label, items, text }: { label: string; items: Item[]; text?: string }) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState(false);
  const toggled = (event: Event): void => {
    const opens = (event as ToggleEvent).newState === "open";
    setOpen(opens);
    if (!opens) return;
    // It is above all else, also where a table would cut it off.
    const [at, size] = [button.current?.getBoundingClientRect(), list.current?.getBoundingClientRect()];
    if (!at || !size || !list.current) return;
    const below = at.bottom + size.height + 8 <= innerHeight;
    list.current.style.left = `${Math.max(8, Math.min(at.right - size.width, innerWidth - size.width - 8))}px`;
    list.current.style.top = `${below ? at.bottom + 4 : Math.max(8, at.top - size.height - 4)}px`;
    list.current.querySelector("button")?.focus();
  };
  const operator = mayOperate.value;
  const administrator = mayChange.value;
  return (
    <>
      <button type="button" class={text ? "small" : "menu-button"} ref={button} popovertarget={id} aria-expanded={open} aria-label={label} title={text ? label : texts.table.actions}>
        {text ?? "⋯"}
      </button>
      <div id={id} popover="auto" class="menu-list" ref={list} onToggle={toggled}>
        {items.map(({ title, act, danger, reads, operates }) => (
          <button
            key={title}
            type="button"
            class={danger ? "danger" : ""}
            disabled={!reads && !(operates ? operator : administrator)}
            title={reads || (operates ? operator : administrator) ? "" : operates ? texts.user.operators : texts.user.viewer}
            onClick={() => {
              list.current?.hidePopover();
              act();
            }}
          >
            {title}
          </button>
        ))}
      </div>
    </>
  );
}
