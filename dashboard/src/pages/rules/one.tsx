import { useState } from "preact/hooks";
import { type Json, ApiError, api, part } from "../../api";
import { Badge, Change, Empty, Facts, PageHead, Section } from "../../components/basic";
import { Editor } from "../../components/editor";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt } from "../../components/toast";
import { number, rate } from "../../format";
import { useData, useLive } from "../../hooks";
import { useKey } from "../../keys";
import { go, link } from "../../router";
import { texts } from "../../texts/rules";
import { Flow } from "./flow";
import { State, isOn, removeRule, switchRule } from "./list";
import { type Action, type LastError, type LiveRules, type Resource, type Rule, resourceOf, total, underWay, withLive } from "./records";

const EVERY = 5_000;
const TRACE_EVERY = 2_000;
const KEPT = 20;

interface Evaluation {
  at: number;
  event: string;
  topic: string;
  clientid: string;
  outcome: string;
  reason: string;
  rows: string[];
  actions: { id: string; outcome: string; reason: string }[];
}

/** Actions in the order of their list, fallbacks behind what they are for. */
function flat(actions: Action[], depth = 0): { action: Action; depth: number }[] {
  return actions.flatMap((action) => [{ action, depth }, ...flat(action.fallbacks, depth + 1)]);
}

function tone(outcome: string): "good" | "bad" | "plain" {
  if (outcome === "passed" || outcome === "success") return "good";
  return outcome === "exception" || outcome === "failed" ? "bad" : "plain";
}

function Outcome({ outcome }: { outcome: string }) {
  return <Badge tone={tone(outcome)}>{texts.one.outcomes[outcome] ?? outcome}</Badge>;
}

export function paramText(value: Json): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function Failures({ rule }: { rule: Rule }) {
  const found: { of: string; error: LastError }[] = [];
  if (rule.last_error) found.push({ of: texts.one.rule, error: rule.last_error });
  for (const { action } of flat(rule.actions)) if (action.last_error) found.push({ of: action.id, error: action.last_error });
  found.sort((a, b) => b.error.at - a.error.at);
  const { columns } = texts.one;
  return (
    <Section title={texts.one.failures}>
      <Table
        id="rule-failures"
        label={texts.one.failures}
        rows={found}
        rowKey={(one) => one.of}
        columns={[
          { key: "of", title: columns.of, fixed: true, render: (one) => <Name text={one.of} /> },
          { key: "at", title: columns.at, render: (one) => <TimeAgo at={one.error.at} /> },
          { key: "reason", title: columns.reason, render: (one) => <Name text={one.error.reason} max={300} /> },
          { key: "clause", title: columns.clause, render: (one) => <Name text={one.error.clause || null} /> },
          { key: "sample", title: columns.sample, render: (one) => <Name text={one.error.sample || null} max={160} /> },
        ]}
        empty={<p class="faint">{texts.one.noFailure}</p>}
      />
    </Section>
  );
}

function Trace({ id }: { id: string }) {
  const { data, error, reload } = useData((signal) => api.get<Evaluation[]>(`/rules/${part(id)}/trace`, {}, signal), [id], TRACE_EVERY);
  const keep = async (size: number): Promise<void> => {
    await attempt(() => api.put(`/rules/${part(id)}/trace`, { size }));
    reload();
  };
  const columns = texts.one.traceColumns;
  return (
    <Section
      title={texts.one.trace}
      actions={
        <>
          <Change onClick={() => void keep(KEPT)}>{texts.one.traceOn}</Change>
          <Change onClick={() => void keep(0)}>{texts.one.traceOff}</Change>
        </>
      }
    >
      <p class="faint">{texts.one.traceAbout}</p>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="rule-trace"
        label={texts.one.trace}
        rows={[...(data ?? [])].reverse()}
        rowKey={(one) => `${one.at} ${one.clientid} ${one.topic} ${one.rows.join()}`}
        columns={[
          { key: "at", title: columns.at, fixed: true, render: (one) => <TimeAgo at={one.at} /> },
          { key: "event", title: columns.event, off: true, render: (one) => <Name text={one.event} /> },
          { key: "topic", title: columns.topic, render: (one) => <Name text={one.topic || one.event} /> },
          { key: "client", title: columns.client, render: (one) => <Name text={one.clientid || null} /> },
          {
            key: "outcome",
            title: columns.outcome,
            render: (one) => (
              <>
                <Outcome outcome={one.outcome} /> {one.reason && <Name text={one.reason} max={200} />}
              </>
            ),
          },
          { key: "rows", title: columns.rows, render: (one) => one.rows.map((row, at) => <div key={at} class="mono"><Name text={row} max={200} /></div>) },
          {
            key: "actions",
            title: columns.actions,
            render: (one) =>
              one.actions.map((each) => (
                <div key={each.id}>
                  <Name text={each.id} /> <Outcome outcome={each.outcome} /> {each.reason && <Name text={each.reason} max={200} />}
                </div>
              )),
          },
        ]}
        empty={<p class="faint">{texts.one.traceNone}</p>}
      />
    </Section>
  );
}

export function OneRule({ id }: { id: string }) {
  const rule = useData((signal) => api.get<Rule>(`/rules/${part(id)}`, {}, signal), [id], EVERY);
  const resources = useData((signal) => api.get<Resource[]>("/resources", {}, signal), [], EVERY);
  const [live, setLive] = useState<LiveRules>({});
  const edit = (): void => go(["rules", "rule", id, "edit"]);
  useKey("e", texts.one.edit, edit);
  // The list of identifiers is separated by commas; one that has some is found among all.
  useLive(
    { rules: id.includes(",") ? "1" : id },
    {
      rules: (data: LiveRules) => {
        if (data[id] === null) rule.reload();
        setLive((before) => ({ ...before, ...data }));
      },
    },
  );
  const back = <a href={link(["rules"])}>{texts.common.back}</a>;
  if (!rule.data) {
    if (!rule.error) return <PageHead copy={id} title={<Name text={id} />} sub={back} />;
    return (
      <>
        <PageHead copy={id} title={<Name text={id} />} sub={back} />
        <ErrorPanel error={rule.error} retry={rule.reload} />
      </>
    );
  }
  if (rule.error instanceof ApiError && rule.error.status === 404) {
    return (
      <>
        <PageHead copy={id} title={<Name text={id} />} sub={back} />
        <Empty title={texts.one.gone}>{back}</Empty>
      </>
    );
  }
  const shown = withLive(rule.data, live);
  const sum = (of: (one: Rule["metrics"][number]) => number): string => number(total(shown.metrics, of));
  const remove = async (): Promise<void> => {
    if (await removeRule(shown)) go(["rules"]);
  };
  const reset = async (): Promise<void> => {
    await attempt(() => api.put(`/rules/${part(id)}/reset_metrics`), texts.one.resetDone);
    setLive({});
    rule.reload();
  };
  const columns = texts.one.actionColumns;
  return (
    <>
      <PageHead copy={id} title={<Name text={id} />} sub={<>{back} · <State rule={shown} resources={resources.data} /></>}>
        <Change kind="primary" onClick={edit} title="e">
          {texts.one.edit}
        </Change>
        <Change onClick={() => void switchRule(shown).then(rule.reload)}>{isOn(shown) ? texts.list.disable : texts.list.enable}</Change>
        <Change onClick={() => void reset()}>{texts.one.reset}</Change>
        <Change kind="danger" onClick={() => void remove()}>
          {texts.common.remove}
        </Change>
      </PageHead>
      {rule.error && <ErrorPanel error={rule.error} retry={rule.reload} />}
      <Section title={texts.one.picture}>
        <Flow rule={shown} resources={resources.data} />
      </Section>
      <div class="grid">
        <Section title={texts.one.sql}>
          <Editor language="sql" label={texts.one.sql} value={shown.rawsql} readOnly onValue={() => undefined} />
          <Facts
            rows={[
              [texts.one.description, <Name text={shown.description || null} />],
              [texts.one.created, <TimeAgo at={shown.created_at} />],
              [texts.one.onFailed, texts.one.onFailedWords[shown.on_action_failed] ?? shown.on_action_failed],
            ]}
          />
        </Section>
        <Section title={texts.one.facts}>
          <Facts
            rows={[
              [texts.one.matched, sum((one) => one.matched)],
              [texts.one.evaluated, sum((one) => one.evaluated)],
              [texts.one.passed, sum((one) => one.passed)],
              [texts.one.noResult, sum((one) => one.no_result)],
              [texts.one.exception, sum((one) => one.exception)],
              [texts.one.speed, rate(total(shown.metrics, (one) => one.speed))],
              [texts.one.speedMax, rate(total(shown.metrics, (one) => one.speed_max))],
              [texts.one.speedMean, rate(total(shown.metrics, (one) => one.speed_last5m))],
            ]}
          />
        </Section>
      </div>
      <Section title={texts.one.actions}>
        <Table
          id="rule-actions"
          label={texts.one.actions}
          rows={flat(shown.actions)}
          rowKey={({ action }) => action.id}
          columns={[
            {
              key: "id",
              title: columns.id,
              fixed: true,
              render: ({ action, depth }) => (
                <>
                  {depth > 0 && <span class="faint">{"↳ ".repeat(depth)}{texts.one.fallback}: </span>}
                  <Name text={action.id} />
                  <details>
                    <summary class="small">{texts.one.params}</summary>
                    <Facts rows={Object.entries(action.params).map(([name, value]) => [name, <Name text={paramText(value)} />])} />
                  </details>
                </>
              ),
            },
            {
              key: "resource",
              title: columns.resource,
              render: ({ action }) => {
                const resource = resourceOf(action);
                return resource === undefined ? (
                  <span class="faint">–</span>
                ) : (
                  <a href={link(["rules", "resources", resource])}>
                    <Name text={resource} />
                  </a>
                );
              },
            },
            { key: "taken", title: columns.taken, right: true, render: ({ action }) => number(total(action.metrics, (one) => one.taken)) },
            { key: "success", title: columns.success, right: true, render: ({ action }) => number(total(action.metrics, (one) => one.success)) },
            { key: "failed", title: columns.failed, right: true, render: ({ action }) => number(total(action.metrics, (one) => one.failed)) },
            { key: "waiting", title: columns.waiting, right: true, render: ({ action }) => number(underWay(action)) },
          ]}
          empty={<p class="faint">{texts.one.noAction}</p>}
        />
      </Section>
      <Failures rule={shown} />
      <Trace id={id} />
    </>
  );
}
