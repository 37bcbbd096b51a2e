/** Rules and resources as the API has them, and what is summed up of them. */

import type { Json } from "../../api";
import type { Params, Parameters } from "../../components/catalogue";

export interface LastError {
  at: number;
  reason: string;
  clause?: string;
  sample?: string;
}

export interface RuleFigures {
  node: string;
  matched: number;
  speed: number;
  speed_max: number;
  speed_last5m: number;
  evaluated: number;
  passed: number;
  failed: number;
  no_result: number;
  exception: number;
}

export interface ActionFigures {
  node: string;
  success: number;
  failed: number;
  taken: number;
}

export interface Action {
  id: string;
  name: string;
  params: Params;
  metrics: ActionFigures[];
  fallbacks: Action[];
  last_error?: LastError;
}

export interface Rule {
  id: string;
  rawsql: string;
  for: string[];
  enabled: boolean;
  description: string;
  on_action_failed: string;
  created_at: number;
  metrics: RuleFigures[];
  actions: Action[];
  suspended?: string;
  last_error?: LastError;
}

/** What of an action is given when a rule is made or changed. */
export interface GivenAction {
  name: string;
  params: Params;
  fallbacks: GivenAction[];
}

export interface Buffer {
  waiting: number;
  waiting_bytes: number;
  delivered: number;
  retried: number;
  dropped: Record<string, number>;
  set_aside: number;
  dead_letters: number;
  breaker: string;
  breaker_opened: number;
  last_error: string;
}

export interface ResourceStatus {
  node: string;
  is_alive: boolean;
  reason?: string;
  connections?: number;
  received?: number;
  received_refused?: number;
  buffer?: Buffer;
}

export interface Resource {
  id: string;
  type: string;
  config: Params;
  description: string;
  fault?: string;
  /** Of all nodes in the list, of each where one is looked at. */
  status: boolean | ResourceStatus[];
}

export interface ActionType {
  name: string;
  types: string[];
  category: string;
  params: Parameters;
  title: Json;
  description: Json;
}

export interface ResourceType {
  name: string;
  params: Parameters;
  title: Json;
  description: Json;
}

/** Of the live stream: what has changed, by rule; null: it is gone. */
export type LiveRules = Record<string, { rule: RuleFigures; actions: Record<string, ActionFigures> } | null>;

/** The parameter of an action that names its resource. */
export const RESOURCE = "$resource";

/** One node's figures put in the place of what it had. */
function put<T extends { node: string }>(metrics: T[], one: T | undefined): T[] {
  if (!one) return metrics;
  return metrics.some(({ node }) => node === one.node) ? metrics.map((each) => (each.node === one.node ? one : each)) : [...metrics, one];
}

function actionsWith(actions: Action[], live: Record<string, ActionFigures>): Action[] {
  return actions.map((action) => ({
    ...action,
    metrics: put(action.metrics, live[action.id]),
    fallbacks: actionsWith(action.fallbacks, live),
  }));
}

/** The rule with what the live stream said last of it. */
export function withLive(rule: Rule, live: LiveRules): Rule {
  const found = live[rule.id];
  return found ? { ...rule, metrics: put(rule.metrics, found.rule), actions: actionsWith(rule.actions, found.actions) } : rule;
}

/** Over all nodes. */
export function total<T>(metrics: T[], of: (one: T) => number): number {
  return metrics.reduce((sum, one) => sum + of(one), 0);
}

/** Rows that were taken and are neither a success nor failed: they are on their way. */
export function underWay(action: Action): number {
  return Math.max(0, total(action.metrics, (one) => one.taken - one.success - one.failed));
}

/** Rows of all its actions that are on their way, such as in the buffer of a resource whose server is away. */
export function waiting(rule: Rule): number {
  return allActions(rule.actions).reduce((sum, one) => sum + underWay(one), 0);
}

/** Resources of its actions that are not reached now. */
export function unreached(rule: Rule, resources: Resource[] | undefined): string[] {
  const down = new Set(resources?.filter((one) => !alive(one)).map((one) => one.id));
  return [...new Set(allActions(rule.actions).map(resourceOf))].filter((id): id is string => id !== undefined && down.has(id));
}

/** Actions and all their fallbacks. */
export function allActions(actions: Action[]): Action[] {
  return actions.flatMap((action) => [action, ...allActions(action.fallbacks)]);
}

export function resourceOf(action: { params: Params }): string | undefined {
  const id = action.params[RESOURCE];
  return typeof id === "string" && id !== "" ? id : undefined;
}

/** The latest of what went wrong in a rule and its actions. */
export function latestError(rule: Rule): LastError | undefined {
  const errors = [rule.last_error, ...allActions(rule.actions).map((one) => one.last_error)];
  return errors.filter((one) => one !== undefined).sort((a, b) => b.at - a.at)[0];
}

export function given(actions: Action[]): GivenAction[] {
  return actions.map(({ name, params, fallbacks }) => ({ name, params, fallbacks: given(fallbacks) }));
}

/** The nodes' buffers of a resource in one. */
export function buffered(resource: Resource): Buffer | undefined {
  if (typeof resource.status === "boolean") return undefined;
  const found = resource.status.flatMap(({ buffer }) => (buffer ? [buffer] : []));
  const [first] = found;
  if (!first) return undefined;
  const dropped: Record<string, number> = {};
  for (const one of found) for (const [reason, count] of Object.entries(one.dropped)) dropped[reason] = (dropped[reason] ?? 0) + count;
  return {
    waiting: total(found, (one) => one.waiting),
    waiting_bytes: total(found, (one) => one.waiting_bytes),
    delivered: total(found, (one) => one.delivered),
    retried: total(found, (one) => one.retried),
    set_aside: total(found, (one) => one.set_aside),
    dead_letters: total(found, (one) => one.dead_letters),
    breaker_opened: total(found, (one) => one.breaker_opened),
    dropped,
    breaker: found.find((one) => one.breaker !== "closed")?.breaker ?? first.breaker,
    last_error: found.map((one) => one.last_error).find((text) => text !== "") ?? "",
  };
}

export function alive(resource: Resource): boolean {
  return typeof resource.status === "boolean" ? resource.status : resource.status.length > 0 && resource.status.every((one) => one.is_alive);
}
