/** What pages use to read from the node. */

import { signal, useComputed, useSignal } from "@preact/signals";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { NodeAway, type Query, isAbort, returned } from "./api";
import { type Handlers, LiveStream } from "./live";
import { place, setQuery } from "./router";

export interface Loaded<T> {
  /** The latest answer; stays while the next one is awaited. */
  data: T | undefined;
  error: Error | undefined;
  /** True from 200 ms on: nothing flickers where the node is quick. */
  slow: boolean;
  reload: () => void;
}

const PATIENCE = 200;

/**
 * Reads when the page opens, when one of `deps` changes, when the node has come back, and every `every` milliseconds
 * while the tab is seen. An answer that is no longer wanted is cancelled.
 */
export function useData<T>(load: (signal: AbortSignal) => Promise<T>, deps: unknown[], every = 0): Loaded<T> {
  const [data, setData] = useState<T | undefined>(undefined);
  const [error, setError] = useState<Error | undefined>(undefined);
  const [slow, setSlow] = useState(false);
  const [asked, setAsked] = useState(0);
  // Whether there was an answer, though it may be that there is nothing.
  const [answered, setAnswered] = useState(false);
  const loader = useRef(load);
  loader.current = load;
  const back = returned.value;

  // Not after the next frame, as an effect: the node is asked at once.
  useLayoutEffect(() => {
    const controller = new AbortController();
    const patience = setTimeout(() => setSlow(true), PATIENCE);
    let again: ReturnType<typeof setTimeout> | undefined;
    const read = async (): Promise<void> => {
      try {
        const answer = await loader.current(controller.signal);
        if (controller.signal.aborted) return;
        setAnswered(true);
        setData(() => answer);
        setError(undefined);
      } catch (failure) {
        if (controller.signal.aborted || isAbort(failure)) return;
        // The shell says that the node is away; what was read stays in sight.
        if (!(failure instanceof NodeAway)) setError(failure instanceof Error ? failure : new Error(String(failure)));
      }
      clearTimeout(patience);
      setSlow(false);
      if (every > 0) again = setTimeout(next, every);
    };
    const next = (): void => {
      if (document.hidden) document.addEventListener("visibilitychange", next, { once: true });
      else void read();
    };
    void read();
    return () => {
      controller.abort();
      clearTimeout(patience);
      clearTimeout(again);
      document.removeEventListener("visibilitychange", next);
      setSlow(false);
    };
  }, [...deps, asked, back, every]);

  useReading(!answered && error === undefined);
  const reload = useCallback(() => setAsked((count) => count + 1), []);
  return { data, error, slow, reload };
}

/** How much is awaited for longer than `PATIENCE` that is not there yet. */
export const reading = signal(0);

/** Counts as that for as long as it is awaited. */
export function useReading(awaited: boolean): void {
  useEffect(() => {
    if (!awaited) return;
    let counted = false;
    const timer = setTimeout(() => {
      counted = true;
      reading.value += 1;
    }, PATIENCE);
    return () => {
      clearTimeout(timer);
      if (counted) reading.value -= 1;
    };
  }, [awaited]);
}

/** How many of a page's `count` parts are drawn: from `ready` on one more after each frame, so that keys come between. */
export function useParts(count: number, ready: boolean): number {
  const [drawn, setDrawn] = useState(1);
  useEffect(() => {
    if (ready && drawn < count) setDrawn(drawn + 1);
  }, [ready, drawn, count]);
  return drawn;
}

/** One value of the address's query, and how to change it. `push`: as a step of the history. */
export function useQuery(name: string, otherwise = ""): [string, (value: string, push?: boolean) => void] {
  const value = useComputed(() => place.value.query[name] ?? otherwise).value;
  // Whoever changes a filter wants the first page of what it finds.
  const set = useCallback(
    (next: string, push = true) => setQuery({ [name]: next === otherwise ? undefined : next, page: undefined }, push),
    [name, otherwise],
  );
  return [value, set];
}

/** The live stream of this page: one, opened with the page and closed with it. `null`: none now. */
export function useLive(query: Query | null, handlers: Handlers): void {
  const current = useRef(handlers);
  current.current = handlers;
  const key = query === null ? null : JSON.stringify(query);
  useEffect(() => {
    if (key === null) return;
    const latest: Handlers = {};
    for (const name of Object.keys(current.current)) latest[name] = (data) => current.current[name]?.(data);
    const stream = new LiveStream(JSON.parse(key) as Query, latest);
    return () => stream.close();
  }, [key]);
}

/** Milliseconds between two changes of the address by what is typed: the node is asked at each of them. */
const REST = 60;

/**
 * What is typed: in the field at once. In the address at once too where the last change is older than `REST`, else as
 * soon as it is: whoever types quickly asks once for several letters.
 */
export function useTyped(name: string): { value: string; onInput: (event: Event) => void } {
  const [kept, setKept] = useQuery(name);
  const typed = useSignal(kept);
  const written = useRef(kept);
  const changed = useRef(-Infinity);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  // Back and forward change the address under the field.
  if (kept !== written.current) {
    written.current = kept;
    typed.value = kept;
  }
  useEffect(() => () => clearTimeout(timer.current), []);
  const onInput = (event: Event): void => {
    const { value } = event.currentTarget as HTMLInputElement;
    typed.value = value;
    clearTimeout(timer.current);
    const write = (): void => {
      changed.current = performance.now();
      written.current = value;
      setKept(value, false);
    };
    const wait = changed.current + REST - performance.now();
    if (wait <= 0) write();
    else timer.current = setTimeout(write, wait);
  };
  return { value: typed.value, onInput };
}
