/** Work that is done one piece a task, so that keys and clicks come between. */

const waiting = new Set<() => void>();

function next(): void {
  const [work] = waiting;
  if (!work) return;
  waiting.delete(work);
  if (waiting.size > 0) setTimeout(next);
  work();
}

/** Do it in a task of its own, after what waits already. What waits is not put there twice. */
export function inTurn(work: () => void): void {
  if (waiting.size === 0) setTimeout(next);
  waiting.add(work);
}
