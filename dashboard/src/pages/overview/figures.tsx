/** The figures of now, in three groups: the traffic, who is here, and whether it is well. */

import { Badge } from "../../components/basic";
import { Sparkline } from "../../components/sparkline";
import { bytes, percent } from "../../format";
import { link } from "../../router";
import type { Series } from "../../series";
import { texts } from "../../texts/overview";
import { OF_FIGURES } from "./behind";
import { format, title } from "./format";
import { type Tone, type Trouble, toneOf } from "./health";

const GROUPS: { key: keyof typeof texts.groups; figures: string[] }[] = [
  { key: "traffic", figures: ["messages_received", "messages_sent", "bytes_received", "bytes_sent", "messages_dropped"] },
  { key: "here", figures: ["connections", "sessions", "subscriptions", "topics", "retained"] },
  { key: "well", figures: ["deliveries_dropped", "refused", "loop_lag", "commit_time", "memory", "disk_free"] },
];

/** How many points before now it is compared with. */
const BEFORE = 60;

/** By how much it is more or less than a minute ago; empty: by less than a hundredth, or nobody knows. */
export function trend(now: number | null, before: number | null): string {
  if (now === null || before === null || before === 0) return "";
  const part = (now - before) / before;
  if (Math.abs(part) < 0.01) return "";
  return `${part > 0 ? "↑" : "↓"} ${percent(Math.min(Math.abs(part), 9.99), 1)}`;
}

function Figure({ series, name, limit }: { series: Series; name: string; limit: number | undefined }) {
  const values = name === "refused" ? series.refused() : series.column(name);
  const last = values.length - 1;
  const now = values[last] ?? null;
  const before = values[last - BEFORE] ?? null;
  const show = format(name);
  const tone = toneOf(name, series, limit);
  const minute = before === null ? "" : texts.minuteAgo(show(before));
  const ofLimit = limit && now !== null ? texts.ofLimit(percent(now, limit), bytes(limit)) : "";
  const href = name === "refused" ? link(["top", "refused"]) : OF_FIGURES[name];
  return (
    <div class={`tile ${tone ?? ""}`} title={[texts.about[name], ofLimit, minute].filter(Boolean).join(" · ")}>
      <a class="tile-label" href={href}>
        {title(name)}
      </a>
      <span class="tile-row">
        <span class="tile-value">{show(now)}</span>
        <span class="tile-sub">{ofLimit || trend(now, before)}</span>
      </span>
      <Sparkline values={values} />
    </div>
  );
}

export function Figures({ series, limit, found }: { series: Series; limit: number | undefined; found: Trouble[] | undefined }) {
  const worst: Tone | undefined = found?.some((one) => one.tone === "bad") ? "bad" : found?.length ? "warn" : undefined;
  return (
    <div class="groups">
      {GROUPS.map(({ key, figures }) => (
        <section key={key} class="group" aria-labelledby={`group-${key}`}>
          <header>
            <h2 id={`group-${key}`}>{texts.groups[key]}</h2>
            {key === "well" && found && <Badge tone={worst ?? "good"}>{texts.groups.state(found.length)}</Badge>}
          </header>
          <div class="tiles">
            {figures.map((name) => (
              <Figure key={name} series={series} name={name} limit={name === "memory" ? limit : undefined} />
            ))}
          </div>
        </section>
      ))}
    </div>
  );
}
