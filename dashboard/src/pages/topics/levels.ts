/** Rows of the topic tree: what is known of a level, and what comes on it while one looks. */

export interface Level {
  level: string;
  topic: string;
  children: number;
  topics: number;
  retained: number;
  subscribers: number;
}

export interface LiveLevel {
  level: string;
  topic: string;
  rate: number;
  messages: number;
  payload: string | null;
  deeper: boolean;
}

export interface LiveTopics {
  prefix: string;
  rows: LiveLevel[];
  others: number;
}

export interface Row extends Level {
  live?: LiveLevel;
}

/** Levels in their order with what came on them; on the first page also those that nobody subscribes to. */
export function merged(levels: Level[], live: LiveLevel[], first: boolean, begin: string): Row[] {
  const heard = new Map(live.map((one) => [one.level, one]));
  const rows = levels.map((level): Row => {
    const one = heard.get(level.level);
    heard.delete(level.level);
    return one ? { ...level, live: one } : level;
  });
  if (!first) return rows;
  for (const one of heard.values()) {
    if (one.level.startsWith(begin)) {
      rows.push({ level: one.level, topic: one.topic, children: 0, topics: 0, retained: 0, subscribers: 0, live: one });
    }
  }
  return rows;
}
