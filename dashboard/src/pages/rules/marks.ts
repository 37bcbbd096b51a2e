/** Whether the SQL of a rule takes an event: one question after the other, about the events that are shown. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Json, api } from "../../api";

/** `unknown`: the event is not complete, or the node did not answer. */
export type Mark = "taken" | "left" | "failed" | "unknown";

export interface Marked {
  mark: Mark;
  /** Why it failed. */
  text: string;
}

/** The mark of a failed test; undefined: the SQL itself is wrong, which says nothing of the event. */
export function markOf(failure: unknown): Marked | undefined {
  if (!(failure instanceof ApiError)) return { mark: "unknown", text: "" };
  if (failure.status === 404) return { mark: "left", text: "" };
  return failure.place ? undefined : { mark: "failed", text: failure.message };
}

/** The first event without a mark, latest first; undefined: all have one. */
export function nextOf<Event extends { number: number }>(events: Event[], marks: ReadonlyMap<number, Marked>): Event | undefined {
  return events.find((one) => !marks.has(one.number));
}

const REST = 500;

/**
 * The marks of these events of a source, by their numbers. At most one test runs; it begins when the SQL has rested. Events
 * that left the list before their turn are not tested, so a fast source costs the node one test at a time.
 */
export function useMarks(
  source: string,
  sql: string,
  events: { number: number; event: Record<string, Json> }[],
  allowed: boolean,
): ReadonlyMap<number, Marked> {
  const [marks, setMarks] = useState<ReadonlyMap<number, Marked>>(new Map());
  const [rested, setRested] = useState("");
  const [turn, setTurn] = useState(0);
  const running = useRef(false);
  const wanted = `${source}\n${sql}`;
  const latest = useRef(wanted);
  latest.current = wanted;
  useEffect(() => {
    setMarks(new Map());
    setRested("");
    const timer = setTimeout(() => setRested(wanted), REST);
    return () => clearTimeout(timer);
  }, [wanted]);
  const next = allowed && rested === wanted && sql.trim() !== "" ? nextOf(events, marks) : undefined;
  useEffect(() => {
    if (!next || running.current) return;
    running.current = true;
    void test(sql, next.event).then((found) => {
      running.current = false;
      if (latest.current === wanted) {
        if (found) setMarks((before) => new Map([...[...before].slice(-100), [next.number, found]]));
        else setRested("");
      }
      setTurn((before) => before + 1);
    });
  }, [next?.number, wanted, turn]);
  return marks;
}

async function test(sql: string, event: Record<string, Json>): Promise<Marked | undefined> {
  if (event["payload_cut"] !== undefined) return { mark: "unknown", text: "" };
  try {
    await api.post<Json>("/rules", { rawsql: sql, ctx: event, test: true });
    return { mark: "taken", text: "" };
  } catch (failure) {
    return markOf(failure);
  }
}
