/** Where a page was scrolled to: each step of the history has its own place, and *Back* leads to it. */

let last = Date.now();
/** Of this step of the history. */
let entry = 0;
const places = new Map<number, number>();
let stop: (() => void) | undefined;

/** Milliseconds that what was in sight has to come back, and between two looks. */
const PATIENCE = 10_000;
const EVERY = 50;

function numberOf(state: unknown): number | undefined {
  const found = (state as { entry?: unknown } | null)?.entry;
  return typeof found === "number" ? found : undefined;
}

/** For a new step of the history. */
export function nextState(): { entry: number } {
  stop?.();
  entry = last += 1;
  return { entry };
}

/** The address is another one: a new step begins at its head where the page is another, an old one where it was. */
export function arrived(otherPage: boolean): void {
  const known = numberOf(history.state);
  if (known === undefined) {
    history.replaceState(nextState(), "");
    if (otherPage) scrollTo(0, 0);
  } else if (known !== entry) {
    entry = known;
    bringBack(places.get(known) ?? 0);
  }
}

/** As soon as the page is long enough again, unless somebody scrolls meanwhile. */
function bringBack(place: number): void {
  stop?.();
  const until = performance.now() + PATIENCE;
  const touched = ["wheel", "touchstart", "pointerdown", "keydown"];
  let timer: ReturnType<typeof setTimeout> | undefined;
  const end = (): void => {
    clearTimeout(timer);
    for (const name of touched) removeEventListener(name, end);
    stop = undefined;
  };
  const look = (): void => {
    const most = document.documentElement.scrollHeight - innerHeight;
    if (most >= place) scrollTo(0, place);
    if (most >= place || performance.now() > until) end();
    else timer = setTimeout(look, EVERY);
  };
  stop = end;
  for (const name of touched) addEventListener(name, end, { passive: true });
  // What is drawn now is still the page that is left.
  timer = setTimeout(look, 0);
}

{
  const known = numberOf(history.state);
  if (known === undefined) history.replaceState(nextState(), "");
  else entry = known;
}
addEventListener("scroll", () => stop ?? places.set(entry, scrollY), { passive: true });
history.scrollRestoration = "manual";
