/** The parts of `$share/GROUP/FILTER`; undefined: it is not shared. */
export function shareOf(topic: string): { share: string; filter: string } | undefined {
  const found = /^\$share\/([^/]*)\/([\s\S]*)$/.exec(topic);
  return found ? { share: found[1] ?? "", filter: found[2] ?? "" } : undefined;
}
