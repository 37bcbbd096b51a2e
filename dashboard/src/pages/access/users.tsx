import { useState } from "preact/hooks";
import { type Json, api, part } from "../../api";
import { Change, Empty, Search } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { type Field, Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { useQuery, useTyped } from "../../hooks";
import { useKey } from "../../keys";
import { link } from "../../router";
import { texts } from "../../texts/access";
import { Branch } from "./branch";
import { Secret, type Shown } from "./secret";
import { type UserKind, createUser, updateUser } from "./user_requests";

interface User {
  username?: string;
  clientid?: string;
  created_at: number;
}

function fieldsOf(kind: UserKind, existing: boolean): Field[] {
  const fields: Field[] = [];
  if (!existing) fields.push({ name: "name", type: "text", title: texts.users.name[kind] ?? kind, required: true });
  fields.push(
    { name: "generate", type: "switch", title: texts.users.generate, description: texts.users.generateAbout },
    { name: "password", type: "password", title: texts.users.password, required: true, when: (values) => values["generate"] !== true },
  );
  if (kind === "username") {
    fields.push({ name: "is_superuser", type: "switch", title: texts.users.superuser, description: texts.users.superuserAbout });
  }
  return fields;
}

/** What the API takes: one of `generate` and `password`. */
export function credentials(values: Values): Record<string, Json> {
  return values["generate"] === true ? { generate: true } : { password: String(values["password"]) };
}

/** `name`: undefined for a new user. */
export function EditUser(props: { kind: UserKind; name: string | undefined; superuser: boolean; onClose: () => void; onSecret: (shown: Shown) => void }) {
  const { kind, name } = props;
  const submit = async (values: Values): Promise<void> => {
    const given = { ...credentials(values), ...(kind === "username" ? { is_superuser: values["is_superuser"] === true } : {}) };
    const named = name ?? String(values["name"]);
    const { secret, warning } = await (name === undefined ? createUser : updateUser)(kind, named, given);
    if (warning) toast(warning);
    props.onClose();
    if (secret !== undefined) props.onSecret({ name: named, secret });
    else toast(name === undefined ? texts.users.added : texts.users.saved);
  };
  return (
    <Dialog title={name === undefined ? texts.users.new : texts.users.changeTitle(nameText(name, 40))} onClose={props.onClose}>
      <Form fields={fieldsOf(kind, name !== undefined)} values={{ is_superuser: props.superuser }} onSubmit={submit} onCancel={props.onClose} />
    </Dialog>
  );
}

/** For who may change it. */
export async function isSuperuser(kind: UserKind, name: string): Promise<boolean> {
  return kind === "username" && (await api.get<{ is_superuser?: boolean }>(`/auth_user/${part(name)}`)).is_superuser === true;
}

export async function removeUser(kind: UserKind, name: string): Promise<boolean> {
  const done = await confirm({
    title: texts.users.removeTitle,
    hits: [name],
    text: texts.users.removeText,
    action: texts.common.remove,
    work: () => api.del(`/auth_${kind}/${part(name)}`),
  });
  if (done) toast(texts.users.removed);
  return done;
}

export function Users() {
  const [asked, setKind] = useQuery("kind", "username");
  const kind: UserKind = asked === "clientid" ? "clientid" : "username";
  const search = useTyped("search");
  const [like] = useQuery("search");
  const [editing, setEditing] = useState<{ name: string | undefined; superuser: boolean } | undefined>(undefined);
  const [shown, setShown] = useState<Shown | undefined>(undefined);
  const [branch, setBranch] = useState(false);
  const [count, setCount] = useState(0);
  const begin = (): void => setEditing({ name: undefined, superuser: false });
  useKey("n", texts.users.new, begin);
  const nameOf = (user: User): string => user[kind] ?? "";

  const change = (name: string): Promise<boolean> => attempt(async () => setEditing({ name, superuser: await isSuperuser(kind, name) }));
  const remove = async (name: string): Promise<void> => {
    await removeUser(kind, name);
    setCount(count + 1);
  };
  const close = (): void => {
    setEditing(undefined);
    setCount(count + 1);
  };
  const closeBranch = (): void => {
    setBranch(false);
    setCount(count + 1);
  };
  return (
    <>
      {editing && <EditUser kind={kind} name={editing.name} superuser={editing.superuser} onClose={close} onSecret={setShown} />}
      {branch && <Branch kind={kind} onClose={closeBranch} onSecret={setShown} />}
      {shown && <Secret title={`${texts.users.secretTitle}: ${nameText(shown.name, 40)}`} secret={shown.secret} onClose={() => setShown(undefined)} />}
      <PagedTable<User>
        id={`users-${kind}`}
        label={texts.tabs.users}
        deps={[kind, like, count]}
        load={(page, limit, signal) => api.page<User>(`/auth_${kind}`, { [`_like_${kind}`]: like, _page: page, _limit: limit }, signal)}
        rowKey={nameOf}
        tools={
          <>
            <Search label={texts.common.search} {...search} />
            <label>
              {texts.users.kind}{" "}
              <select value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
                {Object.entries(texts.users.kinds).map(([value, title]) => (
                  <option key={value} value={value}>
                    {title}
                  </option>
                ))}
              </select>
            </label>
            <Change kind="primary" onClick={begin} title="n">
              {texts.users.new}
            </Change>
            <Change onClick={() => setBranch(true)}>{texts.branch.open}</Change>
          </>
        }
        columns={[
          {
            key: "name",
            title: texts.users.columns.name,
            fixed: true,
            sort: nameOf,
            render: (user) => (
              <a href={link(["access", "users", kind, nameOf(user)])}>
                <Name text={nameOf(user)} />
              </a>
            ),
          },
          { key: "created", title: texts.users.columns.created, sort: (user) => user.created_at, render: (user) => <TimeAgo at={user.created_at} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (user) => (
              <span class="actions">
                <Change onClick={() => void change(nameOf(user))}>{texts.common.change}</Change>
                <Change kind="danger" onClick={() => void remove(nameOf(user))}>
                  {texts.common.remove}
                </Change>
              </span>
            ),
          },
        ]}
        empty={
          <Empty title={texts.users.none}>
            <p>{texts.users.noneText}</p>
          </Empty>
        }
      />
    </>
  );
}
