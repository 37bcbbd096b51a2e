import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { Badge, Change, Empty, Facts, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt } from "../../components/toast";
import { useData } from "../../hooks";
import { go, link } from "../../router";
import { mayChange } from "../../session";
import { texts } from "../../texts/access";
import type { Client } from "../clients/record";
import { Branch } from "./branch";
import { Order } from "./order";
import { Secret, type Shown } from "./secret";
import { SubjectRules } from "./subject_rules";
import type { UserKind } from "./user_requests";
import { EditUser, isSuperuser, removeUser } from "./users";

const words = texts.user;
/** Milliseconds between two looks at who is connected. */
const EVERY = 5_000;
const MOST_CLIENTS = 50;

interface Stored {
  created_at?: number;
  superuser: boolean | undefined;
}

/** One user, by username or by client ID: who is connected as it, and its rules. */
export function OneUser({ kind, name }: { kind: UserKind; name: string }) {
  const [editing, setEditing] = useState<{ superuser: boolean } | undefined>(undefined);
  const [branch, setBranch] = useState(false);
  const [shown, setShown] = useState<Shown | undefined>(undefined);
  const [count, setCount] = useState(0);
  const allowed = mayChange.value;
  const { data, error, reload } = useData<Stored>(
    async (signal) => {
      const user = await api.get<{ created_at?: number }>(`/auth_${kind}/${part(name)}`, {}, signal);
      return { ...user, superuser: allowed ? await isSuperuser(kind, name) : undefined };
    },
    [kind, name, count, allowed],
  );
  const asked = kind === "username" ? { username: name } : { clientid: name };
  const clients = useData((signal) => api.page<Client>("/clients", { ...asked, _page: 1, _limit: MOST_CLIENTS }, signal), [kind, name, count], EVERY);
  const changed = (): void => {
    setEditing(undefined);
    setBranch(false);
    setCount(count + 1);
  };
  const exists = data?.created_at !== undefined;
  const begin = (): Promise<boolean> => attempt(async () => setEditing({ superuser: await isSuperuser(kind, name) }));
  const remove = async (): Promise<void> => {
    if (await removeUser(kind, name)) go(["access", "users"], { kind: kind === "username" ? undefined : kind });
  };
  const all = clients.data?.meta.count ?? 0;
  return (
    <>
      {editing && <EditUser kind={kind} name={name} superuser={editing.superuser} onClose={changed} onSecret={setShown} />}
      {branch && <Branch kind={kind} name={name} onClose={changed} onSecret={setShown} />}
      {shown && <Secret title={`${texts.users.secretTitle}: ${nameText(shown.name, 40)}`} secret={shown.secret} onClose={() => setShown(undefined)} />}
      <header class="subject-head">
        <a href={link(["access", "users"], { kind: kind === "username" ? undefined : kind })}>{words.back}</a>
        <h2>
          {texts.users.name[kind]}: <Name text={name} />
        </h2>
        {data?.superuser && <Badge tone="warn">{texts.users.superuser}</Badge>}
      </header>
      {error && <ErrorPanel error={error} retry={reload} />}
      {data && (
        <Section
          title={words.account}
          actions={
            <>
              <Change onClick={() => setBranch(true)}>{texts.branch.open}</Change>
              {exists && <Change onClick={() => void begin()}>{texts.common.change}</Change>}
              {exists && (
                <Change kind="danger" onClick={() => void remove()}>
                  {texts.common.remove}
                </Change>
              )}
            </>
          }
        >
          {exists ? (
            <Facts
              rows={[
                [texts.users.columns.created, <TimeAgo at={data.created_at} />],
                [words.check, <a href={link(["topics", "who"], asked)}>{texts.rules.who}</a>],
              ]}
            />
          ) : (
            <p>{words.notStored}</p>
          )}
          {data.superuser && <p>{texts.branch.superuser}</p>}
        </Section>
      )}
      <Section title={words.clients}>
        {clients.error && <ErrorPanel error={clients.error} retry={clients.reload} />}
        {clients.data && (
          <Table<Client>
            id="user-clients"
            label={words.clients}
            rows={clients.data.rows}
            rowKey={(one) => one.clientid}
            columns={[
              {
                key: "clientid",
                title: words.columns.clientid,
                fixed: true,
                sort: (one) => one.clientid,
                render: (one) => (
                  <a href={link(["clients", one.clientid])}>
                    <Name text={one.clientid} />
                  </a>
                ),
              },
              {
                key: "state",
                title: words.columns.state,
                sort: (one) => one.connected,
                render: (one) => <Badge tone={one.connected ? "good" : "plain"}>{one.connected ? words.connected : words.offline}</Badge>,
              },
              { key: "address", title: words.columns.address, sort: (one) => one.ip_address, nowrap: true, render: (one) => `${one.ip_address}:${one.port}` },
              { key: "node", title: words.columns.node, room: "medium", sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
              { key: "subscriptions", title: words.columns.subscriptions, right: true, room: "medium", sort: (one) => one.subscriptions_cnt, render: (one) => one.subscriptions_cnt },
            ]}
            empty={<Empty title={words.noClients} />}
            foot={
              all > clients.data.rows.length ? (
                <p class="pager">
                  <a href={link(["clients"], asked)}>{words.allClients}</a>
                </p>
              ) : undefined
            }
          />
        )}
      </Section>
      <Section title={texts.tabs.rules}>
        <Order here={kind} />
        <SubjectRules kind={kind} name={name} version={count} />
      </Section>
    </>
  );
}
