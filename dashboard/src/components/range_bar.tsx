/** The choice of a time range: up to now, or from one moment to another. */

import { useMemo } from "preact/hooks";
import { exact } from "../format";
import { nodeNow } from "../clock";
import { RANGES, type Range, absolute, chooseRange, chooseSpan, toField } from "../range";
import { setQuery } from "../router";
import { texts } from "../texts/common";

function Custom({ range }: { range: Range }) {
  // What is typed is kept while the page is drawn anew.
  const [from, to] = useMemo(() => {
    const end = range.to ?? nodeNow();
    return [range.from ?? end - range.span, end];
  }, [range.name, range.from, range.to]);
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const chosen = new FormData(form);
    const [low, high] = [Date.parse(String(chosen.get("from"))), Date.parse(String(chosen.get("to")))];
    if (Number.isNaN(low) || Number.isNaN(high)) return;
    chooseSpan(low, high);
    form.closest("details")?.removeAttribute("open");
  };
  return (
    <details class="drop range-custom">
      <summary>{texts.range.custom}</summary>
      <form class="popup" key={`${from} ${to}`} onSubmit={submit}>
        <label>
          {texts.range.from}
          <input type="datetime-local" name="from" step="1" required defaultValue={toField(from)} />
        </label>
        <label>
          {texts.range.to}
          <input type="datetime-local" name="to" step="1" required defaultValue={toField(to)} />
        </label>
        <button type="submit" class="primary">
          {texts.range.show}
        </button>
      </form>
    </details>
  );
}

export function RangeBar({ range, usual = "10m", names = Object.keys(RANGES) }: { range: Range; usual?: string; names?: string[] }) {
  const { from, to } = range;
  return (
    <div class="range-bar">
      <span class="segmented" role="group" aria-label={texts.range.label}>
        {names.map((name) => (
          <button key={name} type="button" aria-pressed={name === range.name} onClick={() => chooseRange(name, usual)}>
            {texts.range.names[name]}
          </button>
        ))}
      </span>
      <Custom range={range} />
      {from !== undefined && to !== undefined && (
        <span class="range-absolute">
          <strong>
            {exact(from)} – {exact(to)}
          </strong>
          <button type="button" class="small" onClick={() => setQuery(absolute(from - range.span / 2, to + range.span / 2), true)}>
            {texts.range.out}
          </button>
          <button type="button" class="small" onClick={() => chooseRange(usual, usual)}>
            {texts.range.now}
          </button>
        </span>
      )}
    </div>
  );
}
