/** The levels of a topic, and how they are asked for. */

/** What is below a topic, as `/topic_tree` and the address have it. A first level that is empty has no prefix. */
export function below(topic: string): { prefix?: string; below?: string } {
  return topic === "" ? { below: "/" } : { prefix: topic };
}

/** The topic whose levels the address asks for; undefined: the first ones. */
export function asked(query: Record<string, string>): string | undefined {
  return query["below"] === "/" ? "" : query["prefix"] || undefined;
}

/** `a//b` is three levels; each with the topic that leads to it. */
export function steps(topic: string): { level: string; topic: string }[] {
  const levels = topic.split("/");
  return levels.map((level, index) => ({ level, topic: levels.slice(0, index + 1).join("/") }));
}
