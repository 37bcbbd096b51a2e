import { useState } from "preact/hooks";
import { type Json, api, part } from "../../api";
import { Badge, Change, Empty, Search } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { Editor } from "../../components/editor";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Menu } from "../../components/menu";
import { Name, nameText } from "../../components/name";
import { Payload } from "../../components/payload";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toast } from "../../components/toast";
import { useData, useQuery, useTyped } from "../../hooks";
import { useKey } from "../../keys";
import { place, setQuery } from "../../router";
import { texts } from "../../texts/rules";
import { type Schema, TESTED, type Written, testOf, typeTitle } from "./schema";

const EVERY = 5_000;
const TYPES = ["avro", "protobuf", "json"];

/** A new schema, or a change of one: its name and type stay. */
function SchemaDialog({ schema, onClose }: { schema?: Schema | undefined; onClose: () => void }) {
  const own: Field[] = [
    { name: "name", type: "text", title: texts.schemas.name, required: true, description: texts.schemas.nameAbout },
    { name: "parser_type", type: "choice", title: texts.schemas.type, required: true, options: TYPES.map((one) => ({ value: one, title: typeTitle(one) })) },
  ];
  const fields: Field[] = [
    ...(schema ? [] : own),
    { name: "descr", type: "text", title: texts.schemas.description },
    {
      name: "schema",
      type: "multiline",
      title: texts.schemas.text,
      required: true,
      control: ({ id, value, onValue }) => <Editor id={id} language="text" label={texts.schemas.text} value={value} onValue={onValue} />,
    },
  ];
  const submit = async ({ name, parser_type, schema: text, descr }: Values): Promise<void> => {
    if (schema) {
      await api.put(`/schemas/${part(schema.name)}`, { schema: text, descr: descr ?? "" });
      toast(texts.schemas.changed);
    } else {
      await api.post("/schemas", { name, parser_type, schema: text, descr: descr ?? "" });
      toast(texts.schemas.created);
    }
    onClose();
  };
  return (
    <Dialog title={schema ? texts.schemas.changeTitle(nameText(schema.name, 40)) : texts.schemas.new} onClose={onClose} wide>
      {schema && <p class="faint">{texts.schemas.usedNote}</p>}
      <Form
        fields={fields}
        values={schema ? { descr: schema.descr, schema: schema.schema } : { parser_type: "json" }}
        onSubmit={submit}
        onCancel={onClose}
      />
    </Dialog>
  );
}

/** Decodes a payload with a schema, by a rule that is only tested. */
function TestDialog({ schema, onClose }: { schema: Schema; onClose: () => void }) {
  const [answer, setAnswer] = useState<Json | undefined>(undefined);
  const fields: Field[] = [
    {
      name: "written",
      type: "choice",
      title: texts.schemas.written,
      required: true,
      options: TESTED.map((one) => ({ value: one, title: texts.schemas.ways[one] })),
    },
    { name: "payload", type: "multiline", title: texts.schemas.payload, required: true },
    ...(schema.parser_type === "protobuf" ? [{ name: "message", type: "text", title: texts.schemas.message, required: true } satisfies Field] : []),
  ];
  const submit = async ({ written, payload, message }: Values): Promise<void> => {
    setAnswer(undefined);
    const row = await api.post<{ decoded: Json }>("/rules", testOf(schema.name, written as Written, String(payload), message as string | undefined));
    setAnswer(row.decoded);
  };
  return (
    <Dialog title={texts.schemas.testTitle(nameText(schema.name, 40))} onClose={onClose} wide>
      <Form fields={fields} values={{ written: schema.parser_type === "json" ? "text" : "base64" }} submit={texts.schemas.decode} onSubmit={submit} onCancel={onClose} />
      <div aria-live="polite" data-result>
        {answer !== undefined && <Payload bytes={new TextEncoder().encode(JSON.stringify(answer, null, 2))} />}
      </div>
    </Dialog>
  );
}

async function remove(schema: Schema, done: () => void): Promise<void> {
  const deleted = await confirm({
    title: texts.schemas.removeTitle,
    hits: [schema.name],
    text: texts.schemas.removeText,
    action: texts.common.remove,
    work: () => api.del(`/schemas/${part(schema.name)}`),
  });
  if (deleted) toast(texts.schemas.removed);
  done();
}

export function SchemaList() {
  const search = useTyped("search");
  const [text] = useQuery("search");
  const [changing, setChanging] = useState<Schema | undefined>(undefined);
  const [testing, setTesting] = useState<Schema | undefined>(undefined);
  const adding = place.value.query["new"] !== undefined;
  const begin = (): void => setQuery({ new: "1" }, true);
  useKey("n", texts.schemas.new, begin);
  const { data, error, slow, reload } = useData((signal) => api.get<Schema[]>("/schemas", {}, signal), [], EVERY);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const wanted = text.toLowerCase();
  const rows = data.filter((one) => one.name.toLowerCase().includes(wanted) || one.descr.toLowerCase().includes(wanted));
  const { columns } = texts.schemas;
  const close = (): void => {
    setChanging(undefined);
    setQuery({ new: undefined }, true);
    reload();
  };
  return (
    <>
      {(adding || changing) && <SchemaDialog schema={changing} onClose={close} />}
      {testing && <TestDialog schema={testing} onClose={() => setTesting(undefined)} />}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table<Schema>
        id="schemas"
        label={texts.tabs.schemas}
        rows={rows}
        busy={slow}
        rowKey={(one) => one.name}
        tools={
          <>
            <Search label={texts.schemas.search} {...search} />
            <Change kind="primary" onClick={begin} title="n">
              {texts.schemas.new}
            </Change>
          </>
        }
        columns={[
          {
            key: "name",
            title: columns.name,
            fixed: true,
            sort: (one) => one.name,
            copy: (one) => one.name,
            render: (one) => (
              <>
                <Name text={one.name} max={80} />
                {one.descr && (
                  <div class="faint small">
                    <Name text={one.descr} max={80} />
                  </div>
                )}
              </>
            ),
          },
          { key: "type", title: columns.type, sort: (one) => one.parser_type, render: (one) => typeTitle(one.parser_type) },
          {
            key: "state",
            title: columns.state,
            sort: (one) => one.fault ?? "",
            render: (one) => (one.fault ? <Badge tone="bad"><Name text={one.fault} max={120} /></Badge> : <Badge tone="good">{texts.schemas.usable}</Badge>),
          },
          { key: "created", room: "medium", title: columns.created, sort: (one) => one.created_at, render: (one) => <TimeAgo at={one.created_at} /> },
          {
            key: "menu",
            title: "",
            fixed: true,
            render: (one) => (
              <Menu
                label={texts.list.menu(nameText(one.name, 60))}
                items={[
                  { title: texts.schemas.test, act: () => setTesting(one) },
                  { title: texts.common.change, act: () => setChanging(one) },
                  { title: `${texts.common.remove}…`, act: () => void remove(one, reload), danger: true },
                ]}
              />
            ),
          },
        ]}
        empty={
          <Empty title={texts.schemas.none}>
            <p>{texts.schemas.noneText}</p>
          </Empty>
        }
      />
    </>
  );
}
