/** The latest lines of a node's log, by level and text, and as they come. */

import { useEffect, useRef, useState } from "preact/hooks";
import { api, part } from "../../api";
import { Empty } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { ChosenFilter, TypedFilter } from "../../components/filters";
import { useData, useQuery } from "../../hooks";
import { mayChange } from "../../session";
import { texts } from "../../texts/node";
import { pieces } from "../../visible";

interface Line {
  number: number;
  level: string;
  text: string;
}

interface Lines {
  lines: Line[];
  last: number;
}

const LEVELS = ["info", "warning", "error"];
const EVERY = 1_000;

export function Log() {
  if (!mayChange.value) return <Empty title={texts.log.viewer} />;
  return <Lines />;
}

function Lines() {
  const nodes = useData((signal) => api.get<{ node: string }[]>("/nodes", {}, signal), []);
  const [asked] = useQuery("node");
  const [level] = useQuery("level");
  const [like] = useQuery("_like_text");
  const [follow, setFollow] = useState(true);
  const names = (nodes.data ?? []).map((one) => one.node);
  const node = asked || names[0];
  const load = (signal: AbortSignal): Promise<Lines> =>
    node === undefined
      ? Promise.resolve({ lines: [], last: 0 })
      : api.get<Lines>(`/nodes/${part(node)}/log`, { level: level || undefined, _like_text: like || undefined }, signal);
  const { data, error, reload } = useData(load, [node, level, like], follow ? EVERY : undefined);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current;
    if (follow && element) element.scrollTop = element.scrollHeight;
  }, [data, follow]);
  const lines = data?.lines ?? [];
  return (
    <>
      <div class="filters" role="search" aria-label={texts.log.label}>
        {names.length > 1 && <ChosenFilter name="node" title={texts.log.node} any={names[0] ?? ""} options={names.slice(1)} titles={{}} />}
        <ChosenFilter name="level" title={texts.log.level} any={texts.log.any} options={LEVELS} titles={texts.log.levels} />
        <TypedFilter name="_like_text" title={texts.log.like} search />
        <label>
          <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {texts.log.follow}
        </label>
      </div>
      {error && <ErrorPanel error={error} retry={reload} />}
      <p class="faint small">{texts.log.about}</p>
      {data && lines.length === 0 && <Empty title={texts.log.none} />}
      {lines.length > 0 && (
        <div class="log" ref={box} tabIndex={0} role="log" aria-live="off" aria-label={texts.log.label}>
          {lines.map((line) => (
            <div key={line.number} class={line.level === "INFO" || line.level === "DEBUG" ? "" : `log-${line.level === "WARNING" ? "warn" : "bad"}`}>
              <bdi>{pieces(line.text).map((piece) => (piece.hidden ? <span class="hidden-char">{piece.text}</span> : piece.text))}</bdi>
            </div>
          ))}
        </div>
      )}
    </>
  );
}
