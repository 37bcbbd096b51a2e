/** Who may not connect, as the API has it. */

import { api } from "../../api";

export interface Ban {
  as: string;
  who: string;
  by: string;
  reason: string;
  /** Unix seconds, both. */
  at: number;
  until: number;
}

/** Seconds from which on nobody waits for its end: fifty years. */
const FOR_EVER = 50 * 365 * 86_400;
const ROWS = 500;
const PAGES = 4;

export function isForEver(ban: Ban): boolean {
  return ban.until - ban.at > FOR_EVER;
}

/** The ban of this client id, or of the user name or address that was banned here; of the first 2,000 bans. */
export async function findBan(id: string, also: { as: string; who: string } | undefined, signal: AbortSignal): Promise<Ban | null> {
  for (let page = 1; page <= PAGES; page += 1) {
    const { rows, meta } = await api.page<Ban>("/banned", { _page: page, _limit: ROWS }, signal);
    const found = rows.find((ban) => (ban.as === "clientid" && ban.who === id) || (ban.as === also?.as && ban.who === also.who));
    if (found) return found;
    if (!meta.hasnext) break;
  }
  return null;
}
