import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { nodeNow } from "../../clock";
import { Badge, Change, Empty } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toast } from "../../components/toast";
import { useData } from "../../hooks";
import { useKey } from "../../keys";
import { texts } from "../../texts/access";
import { Secret } from "./secret";

interface App {
  app_id: string;
  name: string;
  desc: string;
  status: boolean;
  /** Unix seconds, or `undefined`. */
  expired: number | string;
  scopes: string[];
  /** Unix milliseconds. */
  last_used_at: number | null;
  last_used_from: string;
}

const DAY = 86_400;

function fieldsOf(app: App | undefined): Field[] {
  const { fields } = texts.apps;
  return [
    ...(app ? [] : [{ name: "app_id", type: "text", title: fields.id, description: fields.idAbout, required: true } satisfies Field]),
    { name: "name", type: "text", title: fields.name, required: true },
    { name: "desc", type: "text", title: fields.desc },
    {
      name: "scopes",
      type: "choice",
      title: fields.scopes,
      description: fields.scopesAbout,
      required: true,
      otherwise: "all",
      options: Object.entries(texts.apps.scopes).map(([value, title]) => ({ value, title })),
    },
    { name: "status", type: "switch", title: fields.status, otherwise: true },
    { name: "days", type: "number", title: fields.days, description: fields.daysAbout, min: 0 },
  ];
}

/** The scopes as the choice of the form has them. */
function scopesOf(app: App): string {
  return app.scopes.includes("all") ? "all" : ["read", "publish"].filter((one) => app.scopes.includes(one)).join(",");
}

function daysLeft(app: App): number | undefined {
  if (typeof app.expired !== "number") return undefined;
  return Math.max(0, Math.ceil((app.expired - nodeNow() / 1000) / DAY));
}

export function Apps() {
  const { data, error, reload } = useData((signal) => api.get<App[]>("/apps", {}, signal), []);
  const [editing, setEditing] = useState<{ app: App | undefined } | undefined>(undefined);
  const [made, setMade] = useState<{ name: string; secret: string } | undefined>(undefined);
  const begin = (): void => setEditing({ app: undefined });
  useKey("n", texts.apps.new, begin);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const close = (): void => {
    setEditing(undefined);
    reload();
  };
  const submit = async ({ days, scopes, ...values }: Values): Promise<void> => {
    const app = editing?.app;
    const expired = days === undefined ? "undefined" : Math.ceil(nodeNow() / 1000 + Number(days) * DAY);
    const body = { ...values, desc: values["desc"] ?? "", scopes: String(scopes).split(","), expired };
    if (app) {
      // Days that were not touched leave the moment as it is.
      const same = Number(days) === daysLeft(app) || (days === undefined && typeof app.expired !== "number");
      await api.put(`/apps/${part(app.app_id)}`, same ? { ...body, expired: app.expired } : body);
      toast(texts.apps.saved);
    } else {
      const { secret } = await api.post<{ secret: string }>("/apps", body);
      setMade({ name: String(values["app_id"]), secret });
    }
    close();
  };
  const remove = async (app: App): Promise<void> => {
    const done = await confirm({
      title: texts.apps.removeTitle,
      hits: [app.app_id],
      text: texts.apps.removeText,
      action: texts.common.remove,
      work: () => api.del(`/apps/${part(app.app_id)}`),
    });
    if (done) toast(texts.apps.removed);
    reload();
  };
  const app = editing?.app;
  const values: Values = app ? { name: app.name, desc: app.desc, status: app.status, scopes: scopesOf(app), days: daysLeft(app) } : {};
  return (
    <>
      {editing && (
        <Dialog title={app ? texts.apps.changeTitle(nameText(app.app_id, 40)) : texts.apps.new} onClose={close}>
          <Form fields={fieldsOf(app)} values={values} onSubmit={submit} onCancel={close} />
        </Dialog>
      )}
      {made && <Secret title={texts.apps.secretTitle(nameText(made.name, 40))} secret={made.secret} onClose={() => setMade(undefined)} />}
      <p class="faint">{texts.apps.about}</p>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="apps"
        label={texts.tabs.apps}
        rows={data}
        rowKey={(one) => one.app_id}
        tools={
          <Change kind="primary" onClick={begin} title="n">
            {texts.apps.new}
          </Change>
        }
        columns={[
          { key: "id", title: texts.apps.columns.id, fixed: true, sort: (one) => one.app_id, render: (one) => <Name text={one.app_id} /> },
          { key: "name", room: "medium", title: texts.apps.columns.name, sort: (one) => one.name, render: (one) => <Name text={one.name} /> },
          { key: "desc", room: "wide", title: texts.apps.columns.desc, render: (one) => <Name text={one.desc || null} /> },
          {
            key: "status",
            title: texts.apps.columns.status,
            sort: (one) => one.status,
            render: (one) => <Badge tone={one.status ? "good" : "plain"}>{one.status ? texts.apps.on : texts.apps.off}</Badge>,
          },
          { key: "scopes", room: "medium", title: texts.apps.columns.scopes, sort: scopesOf, render: (one) => texts.apps.scopes[scopesOf(one)] ?? one.scopes.join(", ") },
          {
            key: "used",
            room: "wide",
            title: texts.apps.columns.used,
            sort: (one) => one.last_used_at,
            render: (one) =>
              one.last_used_at === null ? <span class="faint">{texts.apps.never}</span> : <><TimeAgo at={one.last_used_at} /> <span class="faint small"><Name text={one.last_used_from} /></span></>,
          },
          {
            key: "expired",
            title: texts.apps.columns.expired,
            sort: (one) => one.expired,
            render: (one) => (typeof one.expired === "number" ? <TimeAgo at={one.expired} /> : texts.apps.never),
          },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <span class="actions">
                <Change onClick={() => setEditing({ app: one })}>{texts.common.change}</Change>
                <Change kind="danger" onClick={() => void remove(one)}>
                  {texts.common.remove}
                </Change>
              </span>
            ),
          },
        ]}
        empty={<Empty title={texts.apps.none} />}
      />
    </>
  );
}
