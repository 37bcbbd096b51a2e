import { api, part } from "../../api";
import { Badge, Change, Empty } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { attempt, toast } from "../../components/toast";
import { useData } from "../../hooks";
import { texts } from "../../texts/node";

interface Module {
  node: string;
  name: string;
  description: string;
  active: boolean;
}

async function load(signal: AbortSignal): Promise<Module[]> {
  const nodes = await api.get<{ node: string; modules: Omit<Module, "node">[] }[]>("/modules", {}, signal);
  return nodes.flatMap(({ node, modules }) => modules.map((one) => ({ ...one, node })));
}

export function Modules() {
  const { data, error, reload } = useData(load, [], 10_000);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const several = new Set(data.map((one) => one.node)).size > 1;
  const { columns } = texts.modules;
  const path = (one: Module): string => `/nodes/${part(one.node)}/modules/${part(one.name)}`;
  const on = async (one: Module): Promise<void> => {
    await attempt(() => api.put(`${path(one)}/load`), texts.modules.loaded);
    reload();
  };
  const off = async (one: Module): Promise<void> => {
    const done = await confirm({
      title: texts.modules.unloadTitle,
      hits: [one.name],
      text: one.description,
      action: texts.modules.unload,
      work: () => api.put(`${path(one)}/unload`),
    });
    if (done) toast(texts.modules.unloaded);
    reload();
  };
  return (
    <>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="modules"
        label={texts.tabs.modules}
        rows={data}
        rowKey={(one) => `${one.node} ${one.name}`}
        columns={[
          { key: "name", title: columns.name, fixed: true, sort: (one) => one.name, render: (one) => <Name text={one.name} /> },
          { key: "description", title: columns.description, render: (one) => <Name text={one.description} max={200} /> },
          {
            key: "active",
            title: columns.active,
            sort: (one) => one.active,
            render: (one) => <Badge tone={one.active ? "good" : "plain"}>{one.active ? texts.modules.on : texts.modules.off}</Badge>,
          },
          { key: "node", title: columns.node, off: !several, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) =>
              one.active ? (
                <Change onClick={() => void off(one)}>{texts.modules.unload}</Change>
              ) : (
                <Change onClick={() => void on(one)}>{texts.modules.load}</Change>
              ),
          },
        ]}
        empty={<Empty title={texts.modules.none} />}
      />
    </>
  );
}
