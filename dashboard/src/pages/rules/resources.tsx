import { useRef, useState } from "preact/hooks";
import { api, part } from "../../api";
import { Badge, Change, Empty, Search } from "../../components/basic";
import { fieldsOf, paramsOf, textOf, valuesOf } from "../../components/catalogue";
import { Dialog, confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { toast } from "../../components/toast";
import { number } from "../../format";
import { useData, useQuery, useTyped } from "../../hooks";
import { useKey } from "../../keys";
import { link, place, setQuery } from "../../router";
import { texts } from "../../texts/rules";
import { type Resource, type ResourceStatus, type ResourceType, alive, buffered } from "./records";

const EVERY = 5_000;
// Of so many the buffers are asked for, too.
const LOOKED_AT = 50;

/** A new resource, perhaps of certain types alone, or a change of one. Its fields are those of the catalogue. */
export function ResourceDialog(props: { resource?: Resource; only?: string[]; onClose: (made?: string) => void }) {
  const { resource, onClose } = props;
  const types = useData((signal) => api.get<ResourceType[]>("/resource_types", {}, signal), []);
  const [kind, setKind] = useState(resource?.type ?? (props.only?.length === 1 ? props.only[0] : undefined));
  const [test, setTest] = useState<{ busy?: boolean; error?: Error; done?: boolean }>({});
  const values = useRef<Values>({});
  const title = resource ? texts.resources.changeTitle(nameText(resource.id, 40)) : texts.resources.new;
  if (!types.data) {
    return (
      <Dialog title={title} onClose={() => onClose()}>
        {types.error && <ErrorPanel error={types.error} retry={types.reload} />}
      </Dialog>
    );
  }
  const offered = types.data.filter(({ name }) => !props.only || props.only.includes(name));
  const type = types.data.find(({ name }) => name === kind);
  // A parameter may be named as a field of ours is: ours have a sign that no parameter has.
  const own: Field[] = resource
    ? []
    : [
        {
          name: "@type",
          type: "choice",
          title: texts.resources.chooseType,
          required: true,
          description: type && textOf(type.description),
          options: offered.map(({ name, title: of }) => ({ value: name, title: textOf(of) || name })),
        },
        { name: "@id", type: "text", title: texts.resources.id, description: texts.resources.idAbout },
      ];
  const fields: Field[] = [
    ...own,
    { name: "@description", type: "text", title: texts.resources.description },
    ...(type ? fieldsOf(type.params, resource?.config) : []),
  ];
  const config = (given: Values) => (type ? paramsOf(type.params, given) : {});
  const submit = async (given: Values): Promise<void> => {
    const description = given["@description"] ?? "";
    if (resource) {
      await api.put(`/resources/${part(resource.id)}`, { config: config(given), description });
      toast(texts.resources.changed);
      onClose(resource.id);
    } else {
      const made = await api.post<Resource>("/resources", {
        type: kind,
        config: config(given),
        description,
        ...(given["@id"] ? { id: given["@id"] } : {}),
      });
      toast(texts.resources.created);
      onClose(made.id);
    }
  };
  const tryIt = async (): Promise<void> => {
    setTest({ busy: true });
    try {
      await api.post("/resources", { type: kind, config: config(values.current), test: true, ...(resource ? { id: resource.id } : {}) });
      setTest({ done: true });
    } catch (failure) {
      setTest({ error: failure instanceof Error ? failure : new Error(String(failure)) });
    }
  };
  return (
    <Dialog title={title} onClose={() => onClose()} wide>
      {resource && <p class="faint">{texts.resources.usedNote}</p>}
      <Form
        fields={fields}
        values={{
          "@type": kind,
          ...(resource ? { "@description": resource.description, ...(type ? valuesOf(type.params, resource.config) : {}) } : {}),
        }}
        onChange={(now) => {
          values.current = now;
          const chosen = now["@type"];
          if (!resource && typeof chosen === "string" && chosen !== kind) {
            setKind(chosen);
            setTest({});
          }
        }}
        onSubmit={submit}
        onCancel={() => onClose()}
      >
        <div class="actions">
          <Change onClick={() => void tryIt()} disabled={!type || test.busy === true}>
            {test.busy ? texts.resources.testing : texts.resources.test}
          </Change>
          <span role="status">{test.done && <Badge tone="good">{texts.resources.reached}</Badge>}</span>
        </div>
        {test.error && <ErrorPanel error={test.error} title={texts.resources.down} />}
      </Form>
    </Dialog>
  );
}

export async function removeResource(resource: Resource): Promise<boolean> {
  const done = await confirm({
    title: texts.resources.removeTitle,
    hits: [resource.id, ...(resource.description ? [resource.description] : [])],
    text: texts.resources.removeText,
    action: texts.common.remove,
    work: () => api.del(`/resources/${part(resource.id)}`),
  });
  if (done) toast(texts.resources.removed);
  return done;
}

/** Tries at once whether it answers; says what came of it. */
export async function tryAgain(resource: Resource, done: () => void): Promise<Error | undefined> {
  try {
    await api.post(`/resources/${part(resource.id)}`, {});
    toast(texts.resources.againDone);
    return undefined;
  } catch (failure) {
    return failure instanceof Error ? failure : new Error(String(failure));
  } finally {
    done();
  }
}

export function reasonOf(resource: Resource): string | undefined {
  if (resource.fault) return resource.fault;
  return typeof resource.status === "boolean" ? undefined : resource.status.find((one) => !one.is_alive && one.reason)?.reason;
}

export function ResourceList() {
  const search = useTyped("search");
  const [text] = useQuery("search");
  const [type, setType] = useQuery("type");
  const adding = place.value.query["new"] !== undefined;
  const begin = (): void => setQuery({ new: "1" }, true);
  useKey("n", texts.resources.new, begin);
  const { data, error, slow, reload } = useData(
    async (signal) => {
      const [types, rows] = await Promise.all([
        api.get<ResourceType[]>("/resource_types", {}, signal),
        api.get<Resource[]>("/resources", {}, signal),
      ]);
      const looked = await Promise.all(
        rows.slice(0, LOOKED_AT).map(async (row): Promise<Resource> => {
          const { status } = await api.get<{ status: ResourceStatus[] }>(`/resources/${part(row.id)}`, {}, signal).catch(() => ({ status: row.status }));
          return { ...row, status };
        }),
      );
      return { types, rows: [...looked, ...rows.slice(LOOKED_AT)] };
    },
    [],
    EVERY,
  );
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const wanted = text.toLowerCase();
  const rows = data.rows.filter(
    (one) => (type === "" || one.type === type) && (one.id.toLowerCase().includes(wanted) || one.description.toLowerCase().includes(wanted)),
  );
  const titleOf = (name: string): string => textOf(data.types.find((one) => one.name === name)?.title) || name;
  const { columns } = texts.resources;
  const close = (): void => {
    setQuery({ new: undefined }, true);
    reload();
  };
  return (
    <>
      {adding && <ResourceDialog onClose={close} />}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table<Resource>
        id="resources"
        label={texts.tabs.resources}
        rows={rows}
        busy={slow && data === undefined}
        rowKey={(one) => one.id}
        tools={
          <>
            <Search label={texts.resources.search} {...search} />
            <label>
              {texts.resources.type}{" "}
              <select value={type} onChange={(event) => setType(event.currentTarget.value)}>
                <option value="">{texts.resources.types}</option>
                {data.types.map((one) => (
                  <option key={one.name} value={one.name}>
                    {titleOf(one.name)}
                  </option>
                ))}
              </select>
            </label>
            <Change kind="primary" onClick={begin} title="n">
              {texts.resources.new}
            </Change>
          </>
        }
        columns={[
          {
            key: "id",
            title: columns.id,
            fixed: true,
            sort: (one) => one.description || one.id,
            copy: (one) => one.id,
            render: (one) => (
              <>
                <a href={link(["rules", "resources", one.id])}>
                  <Name text={one.description || one.id} max={80} />
                </a>
                {one.description && (
                  <div class="faint small">
                    <Name text={one.id} />
                  </div>
                )}
              </>
            ),
          },
          { key: "type", room: "medium", title: columns.type, sort: (one) => one.type, render: (one) => titleOf(one.type) },
          {
            key: "status",
            title: columns.status,
            sort: alive,
            render: (one) => <Badge tone={alive(one) ? "good" : "bad"}>{alive(one) ? texts.resources.up : texts.resources.down}</Badge>,
          },
          { key: "waiting", title: columns.waiting, right: true, sort: (one) => buffered(one)?.waiting, render: (one) => number(buffered(one)?.waiting) },
          { key: "letters", room: "medium", title: columns.letters, right: true, sort: (one) => buffered(one)?.dead_letters, render: (one) => number(buffered(one)?.dead_letters) },
          { key: "fault", room: "medium", title: columns.fault, render: (one) => <Name text={reasonOf(one)} /> },
        ]}
        empty={
          <Empty title={texts.resources.none}>
            <p>{texts.resources.noneText}</p>
          </Empty>
        }
      />
    </>
  );
}
