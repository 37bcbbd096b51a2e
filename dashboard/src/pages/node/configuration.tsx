import { useState } from "preact/hooks";
import { type Json, api, part } from "../../api";
import { Badge, Change, Empty, Search } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { number } from "../../format";
import { useData, useQuery, useTyped } from "../../hooks";
import { texts } from "../../texts/node";
import { type ConfigurationFile, reasonAgainst } from "./change";
import { EditSetting } from "./edit";
import { type Setting, filtered } from "./settings";

/** A value as it would stand in the file. */
function Value({ value }: { value: Json }) {
  if (value === null) return <span class="faint">{texts.configuration.unset}</span>;
  return <Name text={JSON.stringify(value)} max={80} />;
}

export function Configuration() {
  const [node, setNode] = useQuery("node");
  const [origin, setOrigin] = useQuery("origin");
  const search = useTyped("search");
  const nodes = useData((signal) => api.get<{ node: string }[]>("/nodes", {}, signal), []);
  const { data, error, slow, reload } = useData(
    (signal) => api.get<Setting[]>("/configuration", { node, _limit: 10_000 }, signal),
    [node],
  );
  // Its name is a setting.
  const own = data?.find((one) => one.key === "node.name")?.value;
  const name = node || (typeof own === "string" ? own : "");
  const file = useData(
    (signal) => (name ? api.get<ConfigurationFile>(`/nodes/${part(name)}/configuration/file`, {}, signal) : Promise.resolve(undefined)),
    [name],
  );
  const [editing, setEditing] = useState<Setting | undefined>(undefined);
  const several = (nodes.data?.length ?? 0) > 1;
  const { columns, edit, origins } = texts.configuration;
  const rows = filtered(data ?? [], search.value, origin);
  return (
    <>
      <div class="table-tools">
        <Search label={texts.configuration.search} {...search} />
        <label>
          {texts.configuration.origin}{" "}
          <select value={origin} onChange={(event) => setOrigin(event.currentTarget.value)}>
            <option value="">{texts.configuration.any}</option>
            <option value="changed">{texts.configuration.changed}</option>
            {Object.entries(origins).map(([value, title]) => (
              <option key={value} value={value}>
                {title}
              </option>
            ))}
          </select>
        </label>
        {several && (
          <label>
            {texts.configuration.node}{" "}
            <select value={node} onChange={(event) => setNode(event.currentTarget.value)}>
              <option value="">–</option>
              {nodes.data?.map((one) => (
                <option key={one.node} value={one.node}>
                  {nameText(one.node)}
                </option>
              ))}
            </select>
          </label>
        )}
        {data && <span class="faint">{texts.configuration.count(number(rows.length), number(data.length))}</span>}
      </div>
      {file.data && (
        <p class="faint">
          {several ? edit.ofNode(nameText(file.data.node)) : edit.of}{" "}
          {file.data.file && <code><Name text={file.data.file} /></code>} {file.data.editable ? edit.about : edit.not(file.data.reason)}
        </p>
      )}
      {editing && file.data && (
        <EditSetting
          setting={editing}
          file={file.data}
          several={several}
          onClose={() => setEditing(undefined)}
          onDone={() => {
            setEditing(undefined);
            reload();
            file.reload();
          }}
        />
      )}
      {error && <ErrorPanel error={error} retry={reload} />}
      {file.error && <ErrorPanel error={file.error} retry={file.reload} />}
      {data && (
        <Table
          id="configuration"
          label={texts.tabs.configuration}
          rows={rows}
          busy={slow}
          rowKey={(one) => one.key}
          columns={[
            { key: "key", title: columns.key, fixed: true, sort: (one) => one.key, copy: (one) => one.key, render: (one) => <code><Name text={one.key} /></code> },
            { key: "value", title: columns.value, value: (one) => JSON.stringify(one.value), render: (one) => <Value value={one.value} /> },
            {
              key: "origin",
              title: columns.origin,
              sort: (one) => one.origin,
              render: (one) => (
                <span title={one.place}>
                  <Badge tone={one.origin === "default" ? "plain" : "good"}>{origins[one.origin] ?? one.origin}</Badge>
                </span>
              ),
            },
            { key: "place", title: columns.place, off: true, render: (one) => <Name text={one.place || null} /> },
            { key: "default", title: columns.default, off: true, render: (one) => <Value value={one.default} /> },
            {
              key: "reload",
              title: columns.reload,
              sort: (one) => one.reloadable,
              render: (one) => (one.reloadable ? texts.configuration.reloadable : <span class="faint">{texts.configuration.restart}</span>),
            },
            {
              key: "act",
              title: "",
              fixed: true,
              render: (one) => {
                if (!one.reloadable) return null;
                const reason = reasonAgainst(one, file.data);
                return (
                  <Change disabled={reason !== ""} title={reason} aria-label={edit.title(one.key)} onClick={() => setEditing(one)}>
                    {edit.button}
                  </Change>
                );
              },
            },
            { key: "description", title: columns.description, render: (one) => <Name text={one.description} max={300} /> },
          ]}
          empty={<Empty title={texts.configuration.none} />}
        />
      )}
    </>
  );
}
