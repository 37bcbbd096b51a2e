/** One branch of topics for one user: what is created, and how it is undone where a part fails. */

import { ApiError, type Json, api, part } from "../../api";
import { type Line, type Rule, linesOf, pathOf, rulesOf } from "./rule_lines";
import { type UserKind, createUser } from "./user_requests";

export interface Wanted {
  topic: string;
  action: string;
  /** All other topics are denied. */
  only: boolean;
}

export interface Step {
  rule: Rule;
  isNew: boolean;
}

const DENY_OTHERS: Rule = { topic: "#", action: "pubsub", access: "deny" };

const isSame = (left: Rule, right: Rule): boolean =>
  left.topic === right.topic && left.action === right.action && left.access === right.access && (left.listener ?? "") === (right.listener ?? "");

/** All rules of the user afterwards: the new one is checked first, and what denies all others is last. */
export function planOf(there: Line[], wanted: Wanted): Step[] {
  const allow: Rule = { topic: wanted.topic, action: wanted.action, access: "allow" };
  const rules = rulesOf(there);
  const known = rules.some((rule) => isSame(rule, allow));
  const steps: Step[] = [{ rule: allow, isNew: !known }, ...rules.filter((rule) => !isSame(rule, allow)).map((rule) => ({ rule, isNew: false }))];
  if (wanted.only && !rules.some((rule) => isSame(rule, DENY_OTHERS))) steps.push({ rule: DENY_OTHERS, isNew: true });
  return steps;
}

/** What is known of a name. `superuser`: no rule is asked for it. */
export interface Found {
  name: string;
  exists: boolean;
  superuser: boolean;
  lines: Line[];
}

export async function find(kind: UserKind, name: string, signal?: AbortSignal): Promise<Found> {
  const path = kind === "username" ? "/auth_user" : "/auth_clientid";
  const [user, rules] = await Promise.all([
    api.get<{ is_superuser?: boolean; created_at?: number; login?: string }>(`${path}/${part(name)}`, {}, signal),
    api.get<Rule[]>(pathOf(kind, name), {}, signal),
  ]);
  return { name, exists: Object.keys(user).length > 0, superuser: user.is_superuser === true, lines: linesOf(rules) };
}

/** The user was not created, and its rules could not be undone. */
export class NotUndone extends Error {
  constructor(
    readonly why: Error,
    readonly undo: Error,
  ) {
    super(why.message);
  }
}

/**
 * Store the rules, and then create the user, so that it can do no more at any moment. Where the user is refused, the
 * rules are as before again. `credentials`: undefined where no user is created. Returns the password that the node made.
 */
export async function carryOut(kind: UserKind, found: Found, steps: Step[], credentials: Record<string, Json> | undefined): Promise<string | undefined> {
  const path = pathOf(kind, found.name);
  const before = rulesOf(found.lines);
  const after = steps.map(({ rule }) => rule);
  await api.put(path, { rules: after, instead_of: before });
  if (!credentials) return undefined;
  try {
    return (await createUser(kind, found.name, credentials)).secret;
  } catch (thrown) {
    const why = thrown instanceof Error ? thrown : new Error(String(thrown));
    // Without an answer nobody knows whether the user is there: it keeps its rules.
    if (!(why instanceof ApiError)) throw why;
    try {
      await api.put(path, { rules: before, instead_of: after });
    } catch (undo) {
      throw new NotUndone(why, undo instanceof Error ? undo : new Error(String(undo)));
    }
    throw why;
  }
}
