import { useEffect, useState } from "preact/hooks";
import { ApiError, api, part } from "../../api";
import { Change, PageHead, Section } from "../../components/basic";
import { Editor, type Problem } from "../../components/editor";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { toast } from "../../components/toast";
import { useData } from "../../hooks";
import { go, link, place } from "../../router";
import { texts } from "../../texts/rules";
import { ActionList } from "./actions";
import { isOn } from "./list";
import { type ActionType, type GivenAction, type Rule, given } from "./records";
import { type RuleEvent, type RuleFunction, completions, problemAt } from "./sql";
import { type Sample, Test } from "./test";

interface Draft {
  id: string;
  rawsql: string;
  description: string;
  enabled: boolean;
  on_action_failed: string;
  actions: GivenAction[];
}

// What was typed and not saved, until the page is loaded anew: who looks something up on another page finds it again.
const drafts = new Map<string, Draft>();

function draftOf(rule: Rule | undefined): Draft {
  return rule
    ? {
        id: rule.id,
        rawsql: rule.rawsql,
        description: rule.description,
        enabled: isOn(rule),
        on_action_failed: rule.on_action_failed,
        actions: given(rule.actions),
      }
    : { id: "", rawsql: place.value.query["sql"] ?? "", description: "", enabled: true, on_action_failed: "continue", actions: [] };
}

/** The editor of a new rule, or of one there is. */
export function Editing({ id }: { id: string | undefined }) {
  const { data, error, reload } = useData(async (signal) => {
    const [rule, events, functions, types] = await Promise.all([
      id === undefined ? undefined : api.get<Rule>(`/rules/${part(id)}`, {}, signal),
      api.get<RuleEvent[]>("/rule_events", {}, signal),
      api.get<RuleFunction[]>("/rule_functions", {}, signal),
      api.get<ActionType[]>("/actions", {}, signal),
    ]);
    return { rule, catalogue: { events, functions }, types };
  }, [id]);
  // It is read once: what is typed is not written over when the node comes back.
  const [first, setFirst] = useState<typeof data>(undefined);
  useEffect(() => setFirst((before) => before ?? data), [data]);
  const title = id === undefined ? texts.editor.new : texts.editor.change(nameText(id, 60));
  if (!first) {
    return (
      <>
        <PageHead title={title} sub={<a href={link(["rules"])}>{texts.common.back}</a>} />
        {error && <ErrorPanel error={error} retry={reload} />}
      </>
    );
  }
  return <RuleEditor id={id} title={title} rule={first.rule} catalogue={first.catalogue} types={first.types} />;
}

interface EditorProps {
  id: string | undefined;
  title: string;
  rule: Rule | undefined;
  catalogue: { events: RuleEvent[]; functions: RuleFunction[] };
  types: ActionType[];
}

function RuleEditor({ id, title, rule, catalogue, types }: EditorProps) {
  const key = id ?? "";
  const [kept, setKept] = useState(drafts.has(key));
  const [draft, setDraft] = useState<Draft>(() => drafts.get(key) ?? draftOf(rule));
  const [problems, setProblems] = useState<Problem[]>([]);
  const [error, setError] = useState<Error | undefined>(undefined);
  const [busy, setBusy] = useState(false);
  const [sample, setSample] = useState<Sample>({});
  const [asked, setAsked] = useState(0);

  const change = (changes: Partial<Draft>): void => {
    setError(undefined);
    setDraft((before) => {
      const next = { ...before, ...changes };
      if (JSON.stringify(next) === JSON.stringify(draftOf(rule))) drafts.delete(key);
      else drafts.set(key, next);
      return next;
    });
  };
  const wrongSql = (failure: ApiError | undefined): void => {
    setProblems(failure?.place ? [problemAt(draft.rawsql, failure.place, failure.message)] : []);
  };
  const leave = (): void => {
    drafts.delete(key);
    go(id === undefined ? ["rules"] : ["rules", "rule", id]);
  };
  const save = async (): Promise<void> => {
    if (busy) return;
    if (draft.rawsql.trim() === "") {
      setError(new Error(texts.editor.needSql));
      return;
    }
    setBusy(true);
    setError(undefined);
    try {
      const { id: wanted, ...rest } = draft;
      const saved =
        id === undefined
          ? await api.post<Rule>("/rules", { ...rest, ...(wanted ? { id: wanted } : {}) })
          : await api.put<Rule>(`/rules/${part(id)}`, rest);
      drafts.delete(key);
      toast(id === undefined ? texts.editor.created : texts.editor.saved);
      go(["rules", "rule", saved.id]);
    } catch (failure) {
      setError(failure instanceof Error ? failure : new Error(String(failure)));
      if (failure instanceof ApiError) wrongSql(failure);
      setBusy(false);
    }
  };
  const discard = (): void => {
    drafts.delete(key);
    setDraft(draftOf(rule));
    setKept(false);
  };
  return (
    <>
      <PageHead title={title} sub={<a href={link(["rules"])}>{texts.common.back}</a>}>
        <button type="button" onClick={leave}>
          {texts.editor.cancel}
        </button>
        <Change kind="primary" onClick={() => void save()} disabled={busy}>
          {id === undefined ? texts.editor.create : texts.editor.save}
        </Change>
      </PageHead>
      {kept && (
        <p class="banner">
          {texts.editor.kept}{" "}
          <button type="button" onClick={discard}>
            {texts.editor.discard}
          </button>
        </p>
      )}
      {error && <ErrorPanel error={error} title={texts.editor.notSaved} />}
      <div class="columns-2">
        <div>
          <Section title={texts.editor.sql}>
            <Editor
              language="sql"
              label={texts.editor.sql}
              hint={texts.editor.hint}
              value={draft.rawsql}
              problems={problems}
              onValue={(rawsql) => change({ rawsql })}
              onSubmit={() => setAsked((count) => count + 1)}
              complete={(context) => {
                const { state, pos, explicit } = context;
                const found = completions(state.doc.toString(), pos, catalogue, sample);
                if (!found || (!explicit && found.from === pos && state.sliceDoc(pos - 1, pos) !== ".")) return null;
                return { ...found, validFor: /^[\w$/]*$/ };
              }}
            />
            {problems.map((one) => (
              <p key={one.message} class="wrong" role="alert">
                <Name text={one.message} max={600} />
              </p>
            ))}
            <p class="about">{texts.editor.sqlAbout}</p>
          </Section>
          <Section title={texts.editor.actions}>
            {draft.actions.length === 0 && <p class="faint">{texts.editor.noActions}</p>}
            <ActionList types={types} actions={draft.actions} onActions={(actions) => change({ actions })} add={texts.editor.add} />
          </Section>
          <Section title={texts.editor.rest}>
            <div class="form">
              {id === undefined && (
                <label class="field">
                  <span class="field-title">{texts.editor.ruleId}</span>
                  <input
                    value={draft.id}
                    maxLength={256}
                    autocomplete="off"
                    spellcheck={false}
                    placeholder={texts.editor.ruleIdAbout}
                    onInput={(event) => change({ id: event.currentTarget.value })}
                  />
                </label>
              )}
              <label class="field">
                <span class="field-title">{texts.editor.description}</span>
                <input value={draft.description} autocomplete="off" onInput={(event) => change({ description: event.currentTarget.value })} />
              </label>
              <label class="field">
                <span class="field-title">{texts.editor.onFailed}</span>
                <select value={draft.on_action_failed} onChange={(event) => change({ on_action_failed: event.currentTarget.value })}>
                  {Object.entries(texts.editor.onFailedOptions).map(([value, words]) => (
                    <option key={value} value={value}>
                      {words}
                    </option>
                  ))}
                </select>
              </label>
              <label class="field switch">
                <input type="checkbox" role="switch" checked={draft.enabled} onChange={(event) => change({ enabled: event.currentTarget.checked })} />
                <span class="field-title">{texts.editor.enabled}</span>
              </label>
            </div>
          </Section>
        </div>
        <Test sql={draft.rawsql} catalogue={catalogue} asked={asked} onSample={setSample} onAnswer={wrongSql} />
      </div>
    </>
  );
}
