import { effect, signal } from "@preact/signals";
import { ahead, nodeNow } from "../clock";
import { ago, duration, exact, moment } from "../format";
import { texts } from "../texts/common";

/** The time now by the node's clock, unix milliseconds; a step each five seconds while the tab is seen. */
export const now = signal(nodeNow());
const step = (): void => {
  now.value = nodeNow();
};
setInterval(() => {
  if (!document.hidden) step();
}, 5_000);
document.addEventListener("visibilitychange", step);
effect(() => {
  now.value = Date.now() + ahead.value;
});

/** The exact time, when somebody points there: its zone's name alone takes the browser 30 ms, once. */
function pointed(when: number): { onPointerEnter: (event: PointerEvent) => void } {
  return {
    onPointerEnter: (event) => {
      (event.currentTarget as HTMLElement).title = exact(when);
    },
  };
}

/** *2 minutes ago*, with the exact time on hover. Takes whatever the API has as a time. */
export function TimeAgo({ at, otherwise = "–" }: { at: number | string | null | undefined; otherwise?: string }) {
  const when = moment(at);
  if (when === undefined) return <span class="faint">{otherwise}</span>;
  return (
    <time dateTime={new Date(when).toISOString()} {...pointed(when)}>
      {ago(when, now.value)}
    </time>
  );
}

/** How long it has been so: `2 h 5 min`, with since when on hover. */
export function Since({ at }: { at: number | string | null | undefined }) {
  const when = moment(at);
  if (when === undefined) return <span class="faint">{texts.time.unknown}</span>;
  return <span {...pointed(when)}>{duration((now.value - when) / 1000)}</span>;
}
