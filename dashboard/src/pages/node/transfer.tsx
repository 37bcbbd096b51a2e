import { useState } from "preact/hooks";
import { ApiError, type Json, api, open, part, send } from "../../api";
import { Badge, Change, Empty, Facts, Section } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Form } from "../../components/form";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt, toast, toastError } from "../../components/toast";
import { bytes, number } from "../../format";
import { useData, useQuery } from "../../hooks";
import { go, link } from "../../router";
import { login, mayChange } from "../../session";
import { texts } from "../../texts/node";

interface ExportFile {
  filename: string;
  size: number;
  created_at: string;
  node: string;
}

export function Transfer() {
  const { data, error, reload } = useData((signal) => api.get<ExportFile[]>("/data/export", {}, signal), []);
  const [uploading, setUploading] = useState(0);
  const make = async (): Promise<void> => {
    await attempt(async () => {
      const made = await api.post<ExportFile>("/data/export", {});
      toast(texts.transfer.made(made.filename));
    });
    reload();
  };
  const remove = async (file: ExportFile): Promise<void> => {
    const done = await confirm({
      title: texts.transfer.removeTitle,
      hits: [file.filename],
      action: texts.transfer.remove,
      work: () => api.del(`/data/file/${part(file.filename)}`),
    });
    if (done) toast(texts.transfer.removed);
    reload();
  };
  const upload = async (file: File): Promise<void> => {
    const kept = await api.post<ExportFile>("/data/file", { file: await file.text() });
    toast(texts.transfer.uploaded(kept.filename));
    setUploading(uploading + 1);
    reload();
  };
  const { columns } = texts.transfer;
  return (
    <>
      <p class="faint">{texts.transfer.about}</p>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="files"
        label={texts.transfer.files}
        rows={data ?? []}
        rowKey={(one) => `${one.node} ${one.filename}`}
        busy={!data}
        tools={
          <Change kind="primary" onClick={() => void make()}>
            {texts.transfer.make}
          </Change>
        }
        columns={[
          {
            key: "name",
            title: columns.name,
            fixed: true,
            sort: (one) => one.filename,
            render: (one) => <Name text={one.filename} />,
          },
          { key: "size", title: columns.size, right: true, sort: (one) => one.size, render: (one) => bytes(one.size) },
          { key: "at", title: columns.at, sort: (one) => one.created_at, render: (one) => <TimeAgo at={one.created_at} /> },
          { key: "node", title: columns.node, off: true, render: (one) => <Name text={one.node} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <span class="actions">
                {mayChange.value && <a href={link(["node", "transfer", one.filename])}>{texts.transfer.look}</a>}
                <Change onClick={() => void api.download(`/data/file/${part(one.filename)}`, one.filename).catch(toastError)}>
                  {texts.transfer.download}
                </Change>
                <Change kind="danger" onClick={() => void remove(one)}>
                  {texts.transfer.remove}
                </Change>
              </span>
            ),
          },
        ]}
        empty={
          <Empty title={texts.transfer.none}>
            <p>{texts.transfer.noneText}</p>
          </Empty>
        }
      />
      <Section title={texts.transfer.upload}>
        <Form
          key={uploading}
          fields={[{ name: "file", type: "file", title: texts.transfer.columns.name, required: true }]}
          submit={texts.transfer.upload}
          onSubmit={async ({ file }) => upload(file as File)}
        />
      </Section>
    </>
  );
}

interface ChangeRecord {
  kind: string;
  key: string;
  action: string;
  detail: string;
}

interface WrongRecord {
  section: string;
  index: number;
  key: string;
  what: string;
}

interface DryRunAnswer {
  records: ChangeRecord[];
  totals: Record<string, Record<string, number>>;
  replaced_apps: string[];
  replaced_users?: string[];
  left_out?: { section: string; id: string; reason: string; what: string }[];
  without_effect?: { section: string; id: string; what: string }[];
  disabled?: { section: string; index: number; id: string; what: string }[];
}

/** The import was refused: which records are wrong. */
class FileWrong extends Error {
  constructor(
    message: string,
    readonly rows: WrongRecord[],
  ) {
    super(message);
  }
}

const SHOWN = 1_000;
const PATH = "/data/import";

async function dryRun(filename: string, own: boolean, signal: AbortSignal): Promise<DryRunAnswer> {
  const body = { filename, dry_run: true, replace_own_login: own };
  const response = await send("POST", PATH, { body, query: { _limit: SHOWN }, signal });
  const copy = response.clone();
  try {
    return (await open(response, "POST", PATH)).data as DryRunAnswer;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const { data } = (await copy.json()) as { data?: Json };
    if (!Array.isArray(data)) throw error;
    throw new FileWrong(error.message, data as unknown as WrongRecord[]);
  }
}

/** Records, and what becomes of each. */
function Told({ title, rows }: { title: string; rows: { section: string; id: string; what: string }[] | undefined }) {
  if (!rows || rows.length === 0) return null;
  return (
    <div class="panel warn">
      <strong>{title}</strong>
      <ul class="hits">
        {rows.map((one) => (
          <li key={`${one.section} ${one.id}`}>
            {one.section} <Name text={one.id} />: <Name text={one.what} max={300} />
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What an import of a file would do, and the button that does it. */
export function DryRun({ name }: { name: string }) {
  const [own, setOwn] = useState(false);
  const { data, error, slow, reload } = useData((signal) => dryRun(name, own, signal), [name, own]);
  const [same, setSame] = useQuery("same");
  const back = <a href={link(["node", "transfer"])}>{texts.transfer.back}</a>;
  if (error instanceof FileWrong) {
    const columns = texts.transfer.wrongColumns;
    return (
      <Section title={texts.transfer.dry(name)} actions={back}>
        <div class="panel bad" role="alert">
          <strong>{texts.transfer.wrong}</strong>
          <p>
            <Name text={error.message} max={400} />
          </p>
        </div>
        <Table
          id="import-wrong"
          label={texts.transfer.wrong}
          rows={error.rows}
          rowKey={(one) => `${one.section} ${one.index} ${one.key} ${one.what}`}
          columns={[
            { key: "section", title: columns.section, fixed: true, sort: (one) => one.section, render: (one) => <Name text={one.section} /> },
            { key: "index", title: columns.index, right: true, sort: (one) => one.index, render: (one) => number(one.index) },
            { key: "key", title: columns.key, render: (one) => <Name text={one.key || null} /> },
            { key: "what", title: columns.what, render: (one) => <Name text={one.what} max={300} /> },
          ]}
        />
      </Section>
    );
  }
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return <Section title={texts.transfer.dry(name)}>{slow ? <p class="empty">…</p> : null}</Section>;

  let changes = 0;
  const summed: Record<string, number> = {};
  for (const actions of Object.values(data.totals)) {
    for (const [action, count] of Object.entries(actions)) {
      summed[action] = (summed[action] ?? 0) + count;
      if (action !== "same") changes += count;
    }
  }
  const all = Object.values(summed).reduce((sum, count) => sum + count, 0);
  const rows = same === "1" ? data.records : data.records.filter((one) => one.action !== "same");
  const users = data.replaced_users ?? [];
  const me = login.value?.username ?? "";
  const ownLogin = own || data.left_out?.some((one) => one.reason === "own_login");
  const doImport = async (): Promise<void> => {
    const text = [texts.transfer.importText(number(changes))];
    if (users.length > 0) text.push(texts.transfer.usersText(number(users.length)));
    if (users.includes(me)) text.push(texts.transfer.ownText(me));
    const done = await confirm({
      title: texts.transfer.importTitle,
      hits: [name, ...data.replaced_apps, ...users],
      text: text.join(" "),
      action: texts.transfer.doImport,
      work: () => api.post(PATH, { filename: name, replace_own_login: own }),
    });
    if (!done) return;
    toast(texts.transfer.imported);
    go(["node", "transfer"]);
  };
  const columns = texts.transfer.recordColumns;
  return (
    <Section
      title={texts.transfer.dry(name)}
      actions={
        <>
          {back}
          <Change kind="primary" disabled={changes === 0} onClick={() => void doImport()}>
            {texts.transfer.doImport}
          </Change>
        </>
      }
    >
      <Facts
        rows={Object.entries(data.totals).map(([kind, actions]) => [
          kind,
          Object.entries(actions)
            .filter(([, count]) => count > 0)
            .map(([action, count]) => texts.transfer.totals(texts.transfer.actions[action] ?? action, number(count)))
            .join(", "),
        ])}
      />
      {data.replaced_apps.length > 0 && (
        <div class="panel warn">
          <strong>{texts.transfer.replaced}</strong>
          <ul class="hits">
            {data.replaced_apps.map((app) => (
              <li key={app}>
                <Name text={app} />
              </li>
            ))}
          </ul>
        </div>
      )}
      {users.length > 0 && (
        <div class="panel warn">
          <strong>{texts.transfer.replacedUsers}</strong>
          <ul class="hits">
            {users.map((user) => (
              <li key={user}>
                <Name text={user} />
              </li>
            ))}
          </ul>
        </div>
      )}
      <Told title={texts.transfer.leftOut} rows={data.left_out} />
      {ownLogin && (
        <label>
          <input type="checkbox" checked={own} onChange={(event) => setOwn(event.currentTarget.checked)} /> {texts.transfer.own(me)}
        </label>
      )}
      <Told title={texts.transfer.withoutEffect} rows={data.without_effect} />
      {(data.disabled?.length ?? 0) > 0 && (
        <div class="panel warn">
          <strong>{texts.transfer.disabled}</strong>
          <ul class="hits">
            {data.disabled?.map((one) => (
              <li key={one.id}>
                <Name text={one.id} />: <Name text={one.what} max={300} />
              </li>
            ))}
          </ul>
        </div>
      )}
      <Table
        id="import"
        label={texts.transfer.dry(name)}
        rows={rows}
        rowKey={(one) => `${one.kind} ${one.key}`}
        tools={
          <label>
            <input type="checkbox" checked={same === "1"} onChange={(event) => setSame(event.currentTarget.checked ? "1" : "")} />{" "}
            {texts.transfer.sameToo}
          </label>
        }
        columns={[
          { key: "kind", title: columns.kind, fixed: true, sort: (one) => one.kind, render: (one) => <Name text={one.kind} /> },
          { key: "key", title: columns.key, fixed: true, sort: (one) => one.key, render: (one) => <Name text={one.key} /> },
          {
            key: "action",
            title: columns.action,
            sort: (one) => one.action,
            render: (one) => (
              <Badge tone={one.action === "create" ? "good" : one.action === "same" ? "plain" : "warn"}>
                {texts.transfer.actions[one.action] ?? one.action}
              </Badge>
            ),
          },
          { key: "detail", title: columns.detail, render: (one) => <Name text={one.detail || null} max={300} /> },
        ]}
        empty={<Empty title={texts.transfer.nothing} />}
        foot={all > data.records.length ? <p class="faint">{texts.transfer.first(number(data.records.length))}</p> : undefined}
      />
    </Section>
  );
}
