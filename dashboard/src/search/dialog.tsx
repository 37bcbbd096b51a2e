/** One search over pages, clients, topics, rules, resources and settings. Loaded when it is opened. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api } from "../api";
import { Dialog } from "../components/dialog";
import { Name } from "../components/name";
import { useData } from "../hooks";
import { link } from "../router";
import { pages } from "../routes";
import { texts as access } from "../texts/access";
import { texts as common } from "../texts/common";
import { texts as node } from "../texts/node";
import { texts as rules } from "../texts/rules";
import { texts as subscriptions } from "../texts/subscriptions";
import { texts as top } from "../texts/top";
import { texts as topics } from "../texts/topics";
import { texts as trouble } from "../texts/trouble";
import { type Asked, type Found, type Known, type Resource, type Rule, type Setting, branch, found } from "./found";

const { search: words } = common;
/** Milliseconds after which the node is asked for what was typed. */
const REST = 120;
const ROWS = { _limit: 5, _page: 1 };
const MOST = 2_000;

/** All pages and their tabs. */
function places(): Found[] {
  const listed: Found[] = [];
  const tabbed: Record<string, { texts: Record<string, string>; first: string }> = {
    top: { texts: top.tabs, first: "clients" },
    topics: { texts: topics.tabs, first: "tree" },
    subscriptions: { texts: subscriptions.tabs, first: "all" },
    rules: { texts: rules.tabs, first: "rules" },
    access: { texts: access.tabs, first: "users" },
    trouble: { texts: trouble.tabs, first: "alarms" },
    node: { texts: node.tabs, first: "nodes" },
  };
  for (const { name } of pages) {
    const title = common.pages[name];
    listed.push({ kind: "page", text: title, href: link([name]) });
    const of = tabbed[name];
    for (const [key, tab] of Object.entries(of?.texts ?? {})) {
      if (key !== "label") listed.push({ kind: "page", text: tab, about: title, href: link(key === of?.first ? [name] : [name, key]) });
    }
  }
  // A page whose first tab has its name stands once. The tabs follow the pages.
  const once = listed.filter((one, index) => listed.findIndex((other) => other.text === one.text && other.href === one.href) === index);
  return [...once.filter((one) => one.about === undefined), ...once.filter((one) => one.about !== undefined)];
}

async function readKnown(signal: AbortSignal): Promise<Omit<Known, "pages">> {
  const [ofRules, resources, settings] = await Promise.all([
    api.get<Rule[]>("/rules", { _limit: MOST }, signal),
    api.get<Resource[]>("/resources", {}, signal),
    api.get<Setting[]>("/configuration", { _limit: 10_000 }, signal),
  ]);
  return { rules: ofRules, resources, settings };
}

async function ask(text: string, signal: AbortSignal): Promise<Asked> {
  const search = text.trim();
  if (search === "") return { clients: [], users: [], topics: [] };
  const [clients, users, ofTopics] = await Promise.all([
    api.page<Asked["clients"][number]>("/clients", { _like_clientid: search, ...ROWS }, signal),
    api.page<Asked["users"][number]>("/clients", { _like_username: search, ...ROWS }, signal),
    api.page<Asked["topics"][number]>("/topic_tree", { ...branch(search), ...ROWS }, signal),
  ]);
  return { clients: clients.rows, users: users.rows, topics: ofTopics.rows };
}

export default function SearchDialog({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [asked, setAsked] = useState("");
  const [at, setAt] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const listed = useMemo(places, []);
  const known = useData(readKnown, []);
  const answer = useData((signal) => ask(asked, signal), [asked]);
  useEffect(() => {
    const timer = setTimeout(() => setAsked(text), REST);
    return () => clearTimeout(timer);
  }, [text]);
  const rows = useMemo(
    () =>
      found(
        text,
        { pages: listed, rules: known.data?.rules ?? [], resources: known.data?.resources ?? [], settings: known.data?.settings ?? [] },
        // What was found for another text is not what was asked for.
        asked === text && answer.data ? answer.data : { clients: [], users: [], topics: [] },
      ),
    [text, asked, answer.data, known.data],
  );
  const chosen = Math.min(at, rows.length - 1);
  useEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [chosen, rows]);
  const open = (row: Found | undefined): void => {
    if (!row) return;
    location.hash = row.href;
    onClose();
  };
  const onKey = (event: KeyboardEvent): void => {
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    const move = moves[event.key];
    if (move !== undefined) {
      event.preventDefault();
      setAt(Math.min(rows.length - 1, Math.max(0, chosen + move)));
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      open(rows[chosen]);
    }
  };
  const error = known.error ?? answer.error;
  return (
    <Dialog title={words.title} onClose={onClose} wide>
      <input
        type="text"
        class="everything"
        role="combobox"
        aria-expanded={rows.length > 0}
        aria-controls="everything-found"
        aria-activedescendant={rows.length > 0 ? `everything-${chosen}` : undefined}
        aria-label={words.title}
        placeholder={words.placeholder}
        value={text}
        autofocus
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={onKey}
      />
      {error && (
        <p class="wrong" role="alert">
          {error.message}
        </p>
      )}
      <ul class="found" id="everything-found" role="listbox" aria-label={words.found} ref={list}>
        {rows.map((row, index) => (
          <li
            key={`${row.kind} ${row.href} ${row.text}`}
            id={`everything-${index}`}
            role="option"
            aria-selected={index === chosen}
            onClick={() => open(row)}
            onPointerMove={() => setAt(index)}
          >
            <span class="found-kind">{words.kinds[row.kind]}</span>
            <span class="found-text">
              <Name text={row.text} />
              {row.about && (
                <span class="faint">
                  {" "}
                  <Name text={row.about} max={90} />
                </span>
              )}
            </span>
          </li>
        ))}
      </ul>
      <p class="faint small">{words.keys}</p>
    </Dialog>
  );
}
