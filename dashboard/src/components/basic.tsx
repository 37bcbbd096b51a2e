import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { mayChange, mayOperate } from "../session";
import { Copy } from "./copy";
import { texts } from "../texts/common";

/** The head of a page: its title, and beside it what can be done here. `copy`: the title, if it is an identifier. */
export function PageHead({ title, copy, children, sub }: { title: ComponentChildren; copy?: string; children?: ComponentChildren; sub?: ComponentChildren }) {
  return (
    <header class="page-head">
      <div>
        <div class="page-title">
          <h1 tabIndex={-1}>{title}</h1>
          {copy && <Copy text={copy} />}
        </div>
        {sub && <p class="faint">{sub}</p>}
      </div>
      <div class="actions">{children}</div>
    </header>
  );
}

/** What a list says that has nothing in it: why, and what to do. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

type ButtonProps = Omit<JSX.IntrinsicElements["button"], "class" | "type" | "disabled"> & {
  kind?: "danger" | "primary" | "icon";
  disabled?: boolean;
  /** For operators too. */
  operates?: boolean;
};

/** A button that changes something: who may not sees it, cannot press it, and reads why. */
export function Change({ kind, disabled, title, operates, ...rest }: ButtonProps) {
  const allowed = (operates ? mayOperate : mayChange).value;
  return (
    <button
      {...rest}
      type="button"
      class={kind ?? ""}
      disabled={disabled || !allowed}
      title={allowed ? (title ?? "") : operates ? texts.user.operators : texts.user.viewer}
    />
  );
}

/** The field that `/` goes to. */
export function Search(props: { label: string; value: string; onInput: (event: Event) => void; placeholder?: string }) {
  const said = props.placeholder ?? props.label;
  return (
    <input
      type="search"
      class="search"
      size={said.length}
      data-search
      aria-label={props.label}
      placeholder={said}
      value={props.value}
      onInput={props.onInput}
      autocomplete="off"
      spellcheck={false}
    />
  );
}

/** Tabs of a page; which one is open is in the address. */
export function Tabs(props: { label: string; tabs: { key: string; title: string; href: string }[]; current: string }) {
  const list = useRef<HTMLElement>(null);
  useEffect(() => {
    list.current?.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [props.current]);
  return (
    <nav class="tabs" aria-label={props.label} ref={list}>
      {props.tabs.map((tab) => (
        <a key={tab.key} href={tab.href} aria-current={tab.key === props.current ? "page" : undefined}>
          {tab.title}
        </a>
      ))}
    </nav>
  );
}

/** A figure with its name. `href`: the list behind it. */
export function Tile(props: { label: string; href?: string | undefined; value: string; sub?: ComponentChildren; title?: string; tone?: "bad" | "warn" }) {
  return (
    <div class={`tile ${props.tone ?? ""}`} title={props.title}>
      {props.href === undefined ? <span class="tile-label">{props.label}</span> : <a class="tile-label" href={props.href}>{props.label}</a>}
      <span class="tile-value">{props.value}</span>
      {props.sub !== undefined && <span class="tile-sub">{props.sub}</span>}
    </div>
  );
}

/** A word with a colour: a state. The word says it all; the colour is a help. */
export function Badge({ tone, children }: { tone?: "good" | "bad" | "warn" | "plain"; children: ComponentChildren }) {
  return <span class={`badge ${tone ?? "plain"}`}>{children}</span>;
}

/** Names and values of one thing. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value ?? "–"}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Section({ title, actions, children }: { title: string; actions?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="section">
      <header>
        <h2>{title}</h2>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </section>
  );
}
