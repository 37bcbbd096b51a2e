import { api, part } from "../../api";
import { nodeNow } from "../../clock";
import { Badge, Change, Empty, Section } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { number } from "../../format";
import { useData } from "../../hooks";
import { texts } from "../../texts/node";

interface Listener {
  node: string;
  protocol: string;
  listen_on: string;
  identifier: string;
  max_conns: number;
  current_conns: number;
  shutdown_count: Record<string, number>[] | Record<string, number>;
  running?: boolean;
}

interface Certificate {
  node: string;
  setting: string;
  file: string;
  /** Unix milliseconds, both. */
  begins_at: number;
  ends_at: number;
  fault: string | null;
}

const SOON = 30 * 86_400_000;

async function readListeners(signal: AbortSignal): Promise<Listener[]> {
  const nodes = await api.get<{ node: string; listeners: Omit<Listener, "node">[] }[]>("/listeners", {}, signal);
  return nodes.flatMap(({ node, listeners }) => listeners.map((one) => ({ ...one, node })));
}

async function readCertificates(signal: AbortSignal): Promise<Certificate[]> {
  const nodes = await api.get<{ node: string; certificates: Omit<Certificate, "node">[] }[]>("/certificates", {}, signal);
  return nodes.flatMap(({ node, certificates }) => certificates.map((one) => ({ ...one, node })));
}

function ended(listener: Listener): string {
  const counts = Array.isArray(listener.shutdown_count) ? Object.assign({}, ...listener.shutdown_count) : listener.shutdown_count;
  return Object.entries(counts as Record<string, number>)
    .map(([reason, count]) => `${reason} ${number(count)}`)
    .join(", ");
}

export function Listeners() {
  const { data, error, reload } = useData(readListeners, [], 5_000);
  const certificates = useData(readCertificates, [], 60_000);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const several = new Set(data.map((one) => one.node)).size > 1;
  const { columns, certificateColumns } = texts.listeners;
  const path = (one: Listener): string => `/nodes/${part(one.node)}/listeners/${part(one.identifier)}`;
  const name = (one: Listener): string => (several ? `${one.identifier}, ${one.node}` : `${one.identifier}, ${one.listen_on}`);

  const restart = async (one: Listener): Promise<void> => {
    const done = await confirm({
      title: texts.listeners.restartTitle,
      hits: [name(one)],
      text: texts.listeners.restartText,
      action: texts.listeners.restart,
      work: () => api.put(`${path(one)}/restart`),
    });
    if (done) toast(texts.listeners.restarted);
    reload();
    certificates.reload();
  };
  const start = async (one: Listener): Promise<void> => {
    await attempt(() => api.put(`${path(one)}/restart`), texts.listeners.started);
    reload();
  };
  const stop = async (one: Listener): Promise<void> => {
    const done = await confirm({
      title: texts.listeners.stopTitle,
      hits: [name(one)],
      text: texts.listeners.stopText,
      action: texts.listeners.stop,
      work: () => api.put(`${path(one)}/stop`),
    });
    if (done) toast(texts.listeners.stopped_);
    reload();
  };

  return (
    <>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="listeners"
        label={texts.tabs.listeners}
        rows={data}
        rowKey={(one) => `${one.node} ${one.identifier}`}
        columns={[
          { key: "identifier", title: columns.identifier, fixed: true, sort: (one) => one.identifier, render: (one) => <Name text={one.identifier} /> },
          { key: "address", room: "medium", title: columns.address, sort: (one) => one.listen_on, render: (one) => <Name text={one.listen_on} /> },
          {
            key: "status",
            title: columns.status,
            render: (one) =>
              one.running === false ? (
                <Badge tone="bad">{texts.listeners.stopped}</Badge>
              ) : (
                <Badge tone="good">{texts.listeners.running}</Badge>
              ),
          },
          { key: "now", title: columns.now, right: true, sort: (one) => one.current_conns, render: (one) => number(one.current_conns) },
          { key: "most", room: "wide", title: columns.most, right: true, sort: (one) => one.max_conns, render: (one) => number(one.max_conns) },
          { key: "ends", room: "wide", title: columns.ends, render: (one) => <Name text={ended(one) || null} /> },
          { key: "node", title: columns.node, off: !several, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) =>
              one.identifier.startsWith("http") ? (
                <span class="faint small">{texts.listeners.http}</span>
              ) : one.running === false ? (
                <Change kind="primary" onClick={() => void start(one)}>
                  {texts.listeners.start}
                </Change>
              ) : (
                <span class="actions">
                  <Change onClick={() => void restart(one)}>{texts.listeners.restart}</Change>
                  <Change kind="danger" onClick={() => void stop(one)}>
                    {texts.listeners.stop}
                  </Change>
                </span>
              ),
          },
        ]}
      />
      <Section title={texts.listeners.certificates}>
        {certificates.error && <ErrorPanel error={certificates.error} retry={certificates.reload} />}
        <Table
          id="certificates"
          label={texts.listeners.certificates}
          rows={certificates.data ?? []}
          rowKey={(one) => `${one.node} ${one.setting}`}
          columns={[
            { key: "setting", title: certificateColumns.setting, fixed: true, render: (one) => <Name text={one.setting} /> },
            { key: "file", title: certificateColumns.file, render: (one) => <Name text={one.file} /> },
            { key: "begins", title: certificateColumns.begins, off: true, render: (one) => <TimeAgo at={one.begins_at} /> },
            { key: "ends", title: certificateColumns.ends, render: (one) => <TimeAgo at={one.ends_at} /> },
            { key: "node", title: certificateColumns.node, off: !several, render: (one) => <Name text={one.node} /> },
            {
              key: "state",
              title: certificateColumns.state,
              render: (one) =>
                one.fault !== null ? (
                  <>
                    <Badge tone="bad">
                      <Name text={one.fault} />
                    </Badge>{" "}
                    {texts.listeners.reload}
                  </>
                ) : one.ends_at - nodeNow() < SOON ? (
                  <>
                    <Badge tone="warn">{texts.listeners.soon}</Badge> {texts.listeners.reload}
                  </>
                ) : (
                  <Badge tone="good">{texts.listeners.valid}</Badge>
                ),
            },
          ]}
          empty={<Empty title={texts.listeners.noCertificates} />}
        />
      </Section>
    </>
  );
}
