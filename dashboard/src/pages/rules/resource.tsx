import { useState } from "preact/hooks";
import { ApiError, api, part } from "../../api";
import { Badge, Change, Empty, Facts, PageHead, Section } from "../../components/basic";
import { textOf } from "../../components/catalogue";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { PagedTable, Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toast, toastError } from "../../components/toast";
import { bytes, number } from "../../format";
import { useData } from "../../hooks";
import { useKey } from "../../keys";
import { go, link, place, setQuery } from "../../router";
import { texts } from "../../texts/rules";
import { paramText } from "./one";
import { type Resource, type ResourceStatus, type ResourceType, type Rule, alive, allActions, resourceOf } from "./records";
import { ResourceDialog, removeResource, tryAgain } from "./resources";
import { State } from "./list";

const EVERY = 2_000;

interface Letter {
  id: number;
  action: string;
  clientid: string;
  at: number;
  taken_at: number;
  attempts: number;
  reason: string;
  row: string;
}

function Letters({ id }: { id: string }) {
  const [count, setCount] = useState(0);
  const path = `/resources/${part(id)}/dead_letters`;
  const again = (): void => setCount((before) => before + 1);
  const send = async (ids?: number[]): Promise<void> => {
    try {
      const sent = await api.post<{ count: number }>(path, ids ? { ids } : {});
      toast(texts.resources.sent(sent.count));
    } catch (error) {
      toastError(error);
    }
    again();
  };
  const forget = async (letter?: Letter): Promise<void> => {
    let removed = 0;
    const done = await confirm({
      title: texts.resources.forgetTitle,
      hits: letter ? [texts.resources.row(letter.id), letter.row] : [id],
      text: texts.resources.forgetText,
      action: texts.resources.forget,
      work: async () => {
        const answer = await api.del<{ count: number } | undefined>(letter ? `${path}/${letter.id}` : path);
        removed = answer?.count ?? 1;
      },
    });
    if (done) toast(texts.resources.forgotten(removed));
    again();
  };
  const columns = texts.resources.letterColumns;
  return (
    <Section
      title={texts.resources.letters}
      actions={
        <>
          <Change onClick={() => void send()}>{texts.resources.sendAll}</Change>
          <Change kind="danger" onClick={() => void forget()}>
            {texts.resources.forgetAll}
          </Change>
        </>
      }
    >
      <p class="faint">{texts.resources.lettersAbout}</p>
      <PagedTable<Letter>
        id="dead-letters"
        label={texts.resources.letters}
        deps={[id, count]}
        every={EVERY}
        load={(page, limit, signal) => api.page<Letter>(path, { _page: page, _limit: limit }, signal)}
        rowKey={(one) => String(one.id)}
        columns={[
          { key: "id", title: columns.id, fixed: true, right: true, sort: (one) => one.id, render: (one) => number(one.id) },
          { key: "at", title: columns.at, sort: (one) => one.at, render: (one) => <TimeAgo at={one.at} /> },
          { key: "reason", title: columns.reason, render: (one) => <Name text={one.reason} /> },
          { key: "row", title: columns.row, render: (one) => <span class="mono"><Name text={one.row} max={160} /></span> },
          { key: "client", title: columns.client, sort: (one) => one.clientid, render: (one) => <Name text={one.clientid || null} /> },
          { key: "action", title: columns.action, off: true, render: (one) => <Name text={one.action} /> },
          { key: "taken", title: columns.taken, off: true, render: (one) => <TimeAgo at={one.taken_at} /> },
          { key: "attempts", title: columns.attempts, right: true, render: (one) => number(one.attempts) },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <span class="actions">
                <Change onClick={() => void send([one.id])}>{texts.resources.send}</Change>
                <Change kind="danger" onClick={() => void forget(one)}>
                  {texts.resources.forget}
                </Change>
              </span>
            ),
          },
        ]}
        empty={<p class="faint">{texts.resources.noLetters}</p>}
      />
    </Section>
  );
}

function Dropped({ dropped }: { dropped: Record<string, number> }) {
  const found = Object.entries(dropped).filter(([, count]) => count > 0);
  if (found.length === 0) return <>0</>;
  return (
    <>
      {found.map(([reason, count]) => (
        <div key={reason}>
          {number(count)} <Name text={reason} />
        </div>
      ))}
    </>
  );
}

function Statuses({ rows }: { rows: ResourceStatus[] }) {
  const columns = texts.resources.statusColumns;
  const bridge = rows.some((one) => one.received !== undefined);
  return (
    <Table<ResourceStatus>
      id={bridge ? "bridge-status" : "resource-status"}
      label={texts.resources.status}
      rows={rows}
      rowKey={(one) => one.node}
      columns={[
        { key: "node", title: columns.node, fixed: true, render: (one) => <Name text={one.node} /> },
        {
          key: "state",
          title: columns.state,
          fixed: true,
          render: (one) => (
            <>
              <Badge tone={one.is_alive ? "good" : "bad"}>{one.is_alive ? texts.resources.up : texts.resources.down}</Badge>{" "}
              {one.reason && <Name text={one.reason} max={300} />}
            </>
          ),
        },
        { key: "waiting", title: columns.waiting, right: true, render: (one) => number(one.buffer?.waiting) },
        { key: "bytes", title: columns.bytes, right: true, render: (one) => bytes(one.buffer?.waiting_bytes) },
        { key: "delivered", title: columns.delivered, right: true, render: (one) => number(one.buffer?.delivered) },
        { key: "retried", title: columns.retried, right: true, render: (one) => number(one.buffer?.retried) },
        { key: "dropped", title: columns.dropped, render: (one) => <Dropped dropped={one.buffer?.dropped ?? {}} /> },
        { key: "breaker", title: columns.breaker, render: (one) => <Name text={one.buffer?.breaker} /> },
        { key: "error", title: columns.error, render: (one) => <Name text={one.buffer?.last_error || null} max={200} /> },
        ...(bridge
          ? [{ key: "received", title: columns.received, right: true, render: (one: ResourceStatus) => number(one.received) }]
          : []),
      ]}
    />
  );
}

export function OneResource({ id }: { id: string }) {
  const { data, error, reload } = useData(
    async (signal) => {
      const [resource, rules, types] = await Promise.all([
        api.get<Resource>(`/resources/${part(id)}`, {}, signal),
        api.get<Rule[]>("/rules", { enable_paging: false }, signal),
        api.get<ResourceType[]>("/resource_types", {}, signal),
      ]);
      const users = rules.filter((rule) => allActions(rule.actions).some((action) => resourceOf(action) === id));
      return { resource, users, type: types.find((one) => one.name === resource.type) };
    },
    [id],
    EVERY,
  );
  const [tried, setTried] = useState<Error | undefined>(undefined);
  const [trying, setTrying] = useState(false);
  const editing = place.value.query["change"] !== undefined;
  const edit = (): void => setQuery({ change: "1" }, true);
  useKey("e", texts.resources.change, edit);
  const back = <a href={link(["rules", "resources"])}>{texts.resources.back}</a>;
  const title = <Name text={id} />;
  if (!data || (error instanceof ApiError && error.status === 404)) {
    return (
      <>
        <PageHead title={title} sub={back} />
        {error && <ErrorPanel error={error} retry={reload} />}
      </>
    );
  }
  const { resource, users, type } = data;
  const again = async (): Promise<void> => {
    setTrying(true);
    setTried(await tryAgain(resource, reload));
    setTrying(false);
  };
  const remove = async (): Promise<void> => {
    if (await removeResource(resource)) go(["rules", "resources"]);
  };
  const close = (): void => {
    setQuery({ change: undefined }, true);
    reload();
  };
  const up = alive(resource);
  return (
    <>
      {editing && <ResourceDialog resource={resource} onClose={close} />}
      <PageHead
        title={title}
        sub={
          <>
            {back} · {textOf(type?.title) || resource.type} · <Badge tone={up ? "good" : "bad"}>{up ? texts.resources.up : texts.resources.down}</Badge>
          </>
        }
      >
        <Change kind="primary" onClick={edit} title="e">
          {texts.resources.change}
        </Change>
        <Change onClick={() => void again()} disabled={trying}>
          {trying ? texts.resources.testing : texts.resources.again}
        </Change>
        <Change kind="danger" onClick={() => void remove()}>
          {texts.common.remove}
        </Change>
      </PageHead>
      {error && <ErrorPanel error={error} retry={reload} />}
      {tried && <ErrorPanel error={tried} title={texts.resources.down} />}
      {resource.fault && (
        <div class="panel bad" role="alert">
          <Name text={resource.fault} max={400} />
        </div>
      )}
      {resource.description && (
        <p>
          <Name text={resource.description} />
        </p>
      )}
      <Section title={texts.resources.status}>
        <Statuses rows={typeof resource.status === "boolean" ? [] : resource.status} />
      </Section>
      <div class="grid">
        <Section title={texts.resources.config}>
          <Facts
            rows={Object.entries(resource.config).map(([name, value]) => [
              textOf(type?.params[name]?.title) || name,
              <Name text={paramText(value)} />,
            ])}
          />
        </Section>
        <Section title={texts.resources.usedBy}>
          {users.length === 0 ? (
            <Empty title={texts.resources.unused} />
          ) : (
            <ul>
              {users.map((rule) => (
                <li key={rule.id}>
                  <a href={link(["rules", "rule", rule.id])}>
                    <Name text={rule.id} />
                  </a>{" "}
                  <State rule={rule} />
                </li>
              ))}
            </ul>
          )}
        </Section>
      </div>
      <Letters id={id} />
    </>
  );
}
