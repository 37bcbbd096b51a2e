import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { Badge, Change, Empty } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { toast } from "../../components/toast";
import { useData } from "../../hooks";
import { useKey } from "../../keys";
import { login } from "../../session";
import { texts } from "../../texts/access";
import { texts as common } from "../../texts/common";

interface Admin {
  username: string;
  tags: string;
  role: string;
}

const { fields: words } = texts.admins;

function fieldsOf(admin: Admin | undefined): Field[] {
  const role: Field = {
    name: "role",
    type: "choice",
    title: words.role,
    required: true,
    otherwise: "viewer",
    options: Object.entries(texts.admins.roles).map(([value, title]) => ({ value, title })),
  };
  const tags: Field = { name: "tags", type: "text", title: words.tags, rare: true };
  if (admin) return [role, { name: "password", type: "password", title: words.newPassword, description: words.newPasswordAbout }, tags];
  return [
    { name: "username", type: "text", title: words.name, required: true },
    { name: "password", type: "password", title: words.password, description: words.passwordAbout, required: true },
    role,
    tags,
  ];
}

const OWN: Field[] = [
  { name: "old_pwd", type: "password", title: texts.admins.old, required: true },
  { name: "new_pwd", type: "password", title: texts.admins.new_, description: words.passwordAbout, required: true },
  {
    name: "again",
    type: "password",
    title: texts.admins.again,
    required: true,
    check: (value, values) => (value !== undefined && value !== values["new_pwd"] ? texts.admins.differ : undefined),
  },
];

export function Admins() {
  const { data, error, reload } = useData((signal) => api.get<Admin[]>("/users", {}, signal), []);
  const [editing, setEditing] = useState<{ admin: Admin | undefined } | undefined>(undefined);
  const [own, setOwn] = useState(false);
  const begin = (): void => setEditing({ admin: undefined });
  useKey("n", texts.admins.new, begin);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const close = (): void => {
    setEditing(undefined);
    reload();
  };
  const admin = editing?.admin;
  const submit = async (values: Values): Promise<void> => {
    if (admin) {
      await api.put(`/users/${part(admin.username)}`, { tags: values["tags"] ?? "", role: values["role"], password: values["password"] ?? "" });
      toast(texts.admins.saved);
    } else {
      await api.post("/users", { ...values, tags: values["tags"] ?? "" });
      toast(texts.admins.added);
    }
    close();
  };
  const changeOwn = async (values: Values): Promise<void> => {
    await api.put(`/change_pwd/${part(login.value?.username ?? "")}`, { old_pwd: values["old_pwd"], new_pwd: values["new_pwd"] });
    toast(texts.admins.ownDone);
    setOwn(false);
    reload();
  };
  const remove = async (one: Admin): Promise<void> => {
    const done = await confirm({
      title: texts.admins.removeTitle,
      hits: [one.username],
      text: texts.admins.removeText,
      action: texts.common.remove,
      work: () => api.del(`/users/${part(one.username)}`),
    });
    if (done) toast(texts.admins.removed);
    reload();
  };
  return (
    <>
      {editing && (
        <Dialog title={admin ? texts.admins.changeTitle(nameText(admin.username, 40)) : texts.admins.new} onClose={close}>
          <Form fields={fieldsOf(admin)} values={admin ? { role: admin.role, tags: admin.tags } : {}} onSubmit={submit} onCancel={close} />
        </Dialog>
      )}
      {own && (
        <Dialog title={texts.admins.own} onClose={() => setOwn(false)}>
          <Form fields={OWN} onSubmit={changeOwn} onCancel={() => setOwn(false)} readOnlyUse />
        </Dialog>
      )}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="admins"
        label={texts.tabs.admins}
        rows={data}
        rowKey={(one) => one.username}
        tools={
          <>
            <Change kind="primary" onClick={begin} title="n">
              {texts.admins.new}
            </Change>
            {!login.value?.openid && (
              <button type="button" onClick={() => setOwn(true)}>
                {texts.admins.own}
              </button>
            )}
          </>
        }
        columns={[
          { key: "name", title: texts.admins.columns.name, fixed: true, sort: (one) => one.username, render: (one) => <Name text={one.username} /> },
          {
            key: "role",
            title: texts.admins.columns.role,
            sort: (one) => one.role,
            render: (one) => <Badge tone={one.role === "administrator" ? "warn" : "plain"}>{common.user.roles[one.role] ?? one.role}</Badge>,
          },
          { key: "tags", room: "medium", title: texts.admins.columns.tags, render: (one) => <Name text={one.tags || null} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <span class="actions">
                <Change onClick={() => setEditing({ admin: one })}>{texts.common.change}</Change>
                <Change kind="danger" onClick={() => void remove(one)}>
                  {texts.common.remove}
                </Change>
              </span>
            ),
          },
        ]}
        empty={<Empty title={texts.admins.none} />}
      />
    </>
  );
}
