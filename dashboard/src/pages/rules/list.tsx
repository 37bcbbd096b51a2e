import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { Badge, Change, Empty, Search } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { Menu } from "../../components/menu";
import { Name, nameText } from "../../components/name";
import { type Column, PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { FirstRule } from "../../components/first";
import { number, rate } from "../../format";
import { useData, useLive, useQuery, useTyped } from "../../hooks";
import { useKey } from "../../keys";
import { go, link } from "../../router";
import { texts } from "../../texts/rules";
import { Flow } from "./flow";
import { type LiveRules, type Resource, type Rule, allActions, latestError, total, unreached, waiting, withLive } from "./records";

const EVERY = 10_000;

/** `resources`: where they are known, one that is not reached is said. */
export function State({ rule, resources }: { rule: Rule; resources?: Resource[] | undefined }) {
  if (rule.suspended !== undefined) {
    return (
      <>
        <Badge tone="bad">{texts.list.suspended}</Badge> <Name text={rule.suspended} />
      </>
    );
  }
  const down = rule.enabled ? unreached(rule, resources) : [];
  if (down.length > 0) {
    return (
      <>
        <Badge tone="bad">{texts.list.unreached}</Badge>
        {down.map((id) => (
          <span key={id} class="small">
            {" "}
            <a href={link(["rules", "resources", id])}>
              <Name text={id} max={60} />
            </a>
          </span>
        ))}
      </>
    );
  }
  return <Badge tone={rule.enabled ? "good" : "plain"}>{rule.enabled ? texts.list.on : texts.list.off}</Badge>;
}

/** Whether it is to run; a suspended rule is, although it cannot. */
export const isOn = (rule: Rule): boolean => rule.enabled || rule.suspended !== undefined;

export async function switchRule(rule: Rule): Promise<void> {
  const enabled = !isOn(rule);
  await attempt(() => api.put(`/rules/${part(rule.id)}`, { enabled }), enabled ? texts.list.enabled : texts.list.disabled);
}

export async function removeRule(rule: Rule): Promise<boolean> {
  const done = await confirm({
    title: texts.list.removeTitle,
    hits: [rule.id, ...(rule.description ? [rule.description] : []), ...rule.for],
    text: texts.list.removeText,
    action: texts.common.remove,
    work: () => api.del(`/rules/${part(rule.id)}`),
  });
  if (done) toast(texts.list.removed);
  return done;
}

export function RuleList() {
  const search = useTyped("search");
  const described = useTyped("description");
  const matching = useTyped("match");
  const [source] = useQuery("search");
  const [description] = useQuery("description");
  const [match] = useQuery("match");
  const [enabled, setEnabled] = useQuery("enabled");
  const [view, setView] = useQuery("view", "list");
  const [live, setLive] = useState<LiveRules>({});
  const [count, setCount] = useState(0);
  const again = (): void => setCount((before) => before + 1);
  const begin = (): void => go(["rules", "new"]);
  useKey("n", texts.list.new, begin);
  useLive(
    { rules: 1 },
    {
      rules: (data: LiveRules) => {
        if (Object.values(data).includes(null)) again();
        setLive((before) => ({ ...before, ...data }));
      },
    },
  );
  const picture = view === "picture";
  const resources = useData((signal) => api.get<Resource[]>("/resources", {}, signal), [count], EVERY);

  const lost = (rule: Rule): number => allActions(rule.actions).reduce((sum, one) => sum + total(one.metrics, (each) => each.failed), 0);
  const done = (rule: Rule): number => allActions(rule.actions).reduce((sum, one) => sum + total(one.metrics, (each) => each.success), 0);
  const matched = (rule: Rule): number => total(rule.metrics, (one) => one.matched);
  const speed = (rule: Rule): number => total(rule.metrics, (one) => one.speed);
  const failed = (rule: Rule): number => total(rule.metrics, (one) => one.exception);
  const { columns } = texts.list;
  const name: Column<Rule> = {
    key: "id",
    title: columns.id,
    fixed: true,
    sort: (rule) => rule.id,
    copy: (rule) => rule.id,
    render: (rule) => (
      <>
        <a href={link(["rules", "rule", rule.id])}>
          <Name text={rule.id} />
        </a>
        {rule.description && (
          <div class="faint small">
            <Name text={rule.description} />
          </div>
        )}
      </>
    ),
  };
  const act: Column<Rule> = {
    key: "act",
    title: "",
    fixed: true,
    render: (rule) => (
      <Menu
        label={texts.list.menu(nameText(rule.id, 60))}
        items={[
          { title: isOn(rule) ? texts.list.disable : texts.list.enable, act: () => void switchRule(rule).then(again) },
          { title: `${texts.common.remove}…`, act: () => void removeRule(rule).then(again), danger: true },
        ]}
      />
    ),
  };
  const list: Column<Rule>[] = [
    name,
    {
      key: "sources", room: "medium",
      title: columns.sources,
      sort: (rule) => rule.for[0],
      render: (rule) => rule.for.map((one) => <div key={one}><Name text={one} max={60} /></div>),
    },
    { key: "state", title: columns.state, sort: isOn, render: (rule) => <State rule={rule} resources={resources.data} /> },
    { key: "matched", room: "medium", title: columns.matched, right: true, sort: matched, render: (rule) => number(matched(rule)) },
    { key: "speed", room: "wide", title: columns.speed, right: true, sort: speed, render: (rule) => rate(speed(rule)) },
    { key: "done", room: "wide", title: columns.done, right: true, sort: done, render: (rule) => number(done(rule)) },
    {
      key: "waiting",
      title: columns.waiting,
      right: true,
      sort: waiting,
      render: (rule) => (waiting(rule) > 0 ? <Badge tone="warn">{number(waiting(rule))}</Badge> : number(0)),
    },
    { key: "lost", room: "medium", title: columns.lost, right: true, sort: lost, render: (rule) => number(lost(rule)) },
    { key: "failed", title: columns.failed, right: true, off: true, sort: failed, render: (rule) => number(failed(rule)) },
    {
      key: "actions",
      title: columns.actions,
      off: true,
      render: (rule) => rule.actions.map((one) => <div key={one.id}><Name text={one.name} /></div>),
    },
    {
      key: "error", room: "wide",
      title: columns.error,
      sort: (rule) => latestError(rule)?.at,
      render: (rule) => {
        const error = latestError(rule);
        return error ? (
          <>
            <TimeAgo at={error.at} /> <Name text={error.reason} max={80} />
          </>
        ) : (
          <span class="faint">–</span>
        );
      },
    },
    { key: "created", title: columns.created, off: true, sort: (rule) => rule.created_at, render: (rule) => <TimeAgo at={rule.created_at} /> },
    act,
  ];
  const drawn: Column<Rule>[] = [
    { key: "flow", title: texts.one.picture, fixed: true, render: (rule) => <Flow rule={rule} resources={resources.data} linked /> },
  ];
  return (
    <PagedTable<Rule>
      id={picture ? "rules-picture" : "engine-rules"}
      label={texts.tabs.rules}
      deps={[source, description, match, enabled, count]}
      every={EVERY}
      load={(page, limit, signal) =>
        api.page<Rule>(
          "/rules",
          { _like_for: source, _like_description: description, _match_for: match, enabled, _page: page, _limit: limit },
          signal,
        )
      }
      change={(rows) => rows.map((rule) => withLive(rule, live))}
      rowKey={(rule) => rule.id}
      rowClass={(rule) => (isOn(rule) ? "" : "faint")}
      columns={picture ? drawn : list}
      tools={
        <>
          <Search label={texts.list.search} {...search} />
          <input type="search" aria-label={texts.list.match} placeholder={texts.list.match} spellcheck={false} {...matching} />
          <input type="search" aria-label={texts.list.description} placeholder={texts.list.description} spellcheck={false} {...described} />
          <label>
            {texts.list.state}{" "}
            <select value={enabled} onChange={(event) => setEnabled(event.currentTarget.value)}>
              {Object.entries(texts.list.states).map(([value, title]) => (
                <option key={value} value={value}>
                  {title}
                </option>
              ))}
            </select>
          </label>
          <span class="segmented" role="group" aria-label={texts.list.as}>
            {Object.entries(texts.list.views).map(([value, title]) => (
              <button key={value} type="button" aria-pressed={value === view} onClick={() => setView(value)}>
                {title}
              </button>
            ))}
          </span>
          <Change kind="primary" onClick={begin} title="n">
            {texts.list.new}
          </Change>
        </>
      }
      empty={
        <Empty title={texts.list.none}>
          <p>{texts.list.noneText}</p>
          <FirstRule />
        </Empty>
      }
    />
  );
}
