/** The levels of a topic, each with the topic that it ends: for the way back up. A first level that is empty has none. */
export function above(topic: string): { level: string; topic: string }[] {
  const levels = topic.split("/");
  return levels.map((level, index) => ({ level, topic: levels.slice(0, index + 1).join("/") })).filter((one) => one.topic !== "");
}
