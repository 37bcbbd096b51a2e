import { useState } from "preact/hooks";
import { type Json, api } from "../../api";
import { Change, Empty, Facts, Section } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { type Column, Table } from "../../components/table";
import { Since, TimeAgo } from "../../components/time";
import { toast } from "../../components/toast";
import { duration } from "../../format";
import { useData, useLive } from "../../hooks";
import { go } from "../../router";
import { texts } from "../../texts/trouble";
import { ofAlarm } from "../overview/behind";

interface Alarm {
  node: string;
  activated: boolean;
  name: string;
  message: string;
  details: Record<string, Json>;
  /** Microseconds; "infinity" while it is active. */
  activate_at: number;
  deactivate_at: number | string;
  duration: number;
}

async function load(signal: AbortSignal): Promise<Alarm[]> {
  const nodes = await api.get<{ node: string; alarms: Omit<Alarm, "node">[] }[]>("/alarms", {}, signal);
  return nodes.flatMap(({ node, alarms }) => alarms.map((alarm) => ({ ...alarm, node })));
}

function rowKey(alarm: Alarm): string {
  return `${alarm.node} ${alarm.name} ${alarm.activate_at}`;
}

function details(alarm: Alarm): [string, string][] {
  return Object.entries(alarm.details).map(([name, value]) => [
    name,
    typeof value === "string" ? value : JSON.stringify(value),
  ]);
}

/** Leads to the cause of the alarm, if a page shows it. */
function AlarmName({ name }: { name: string }) {
  const href = ofAlarm(name);
  return href === undefined ? (
    <Name text={name} />
  ) : (
    <a href={href}>
      <Name text={name} />
    </a>
  );
}

export function Alarms() {
  const { data, error, reload } = useData(load, [], 10_000);
  // This node tells at once; the others are asked every ten seconds.
  const [heard, setHeard] = useState(false);
  useLive({ alarms: 1 }, {
    alarms: () => {
      if (heard) reload();
      setHeard(true);
    },
  });
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const active = data.filter((alarm) => alarm.activated);
  const over = data.filter((alarm) => !alarm.activated);
  const several = new Set(data.map((alarm) => alarm.node)).size > 1;

  const end = async (alarm: Alarm): Promise<void> => {
    const done = await confirm({
      title: texts.alarms.endTitle,
      hits: [alarm.name],
      text: texts.alarms.endText,
      action: texts.alarms.end,
      work: () => api.post("/alarms/deactivated", { node: alarm.node, name: alarm.name }),
    });
    if (done) toast(texts.alarms.ended);
    reload();
  };
  const forget = async (): Promise<void> => {
    const done = await confirm({
      title: texts.alarms.forgetTitle,
      text: texts.alarms.forgetText(over.length),
      action: texts.alarms.forget,
      work: () => api.del("/alarms/deactivated"),
    });
    if (done) toast(texts.alarms.forgotten);
    reload();
  };

  const columns: Column<Alarm>[] = [
    { key: "name", title: texts.alarms.columns.name, render: (one) => <AlarmName name={one.name} />, sort: (one) => one.name, fixed: true },
    { key: "message", title: texts.alarms.columns.message, render: (one) => <Name text={one.message} max={300} /> },
    {
      key: "node",
      title: texts.alarms.columns.node,
      render: (one) => <Name text={one.node} />,
      sort: (one) => one.node,
      off: !several,
    },
    {
      key: "details",
      title: texts.alarms.columns.details,
      off: true,
      render: (one) => <Facts rows={details(one).map(([name, value]) => [name, <Name text={value} />])} />,
    },
    {
      key: "since",
      title: texts.alarms.columns.since,
      render: (one) => <TimeAgo at={one.activate_at} />,
      sort: (one) => one.activate_at,
    },
  ];
  return (
    <>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Section title={`${texts.alarms.active} (${active.length})`}>
        <Table
          id="alarms"
          label={texts.alarms.active}
          rows={active}
          rowKey={rowKey}
          columns={[
            ...columns,
            {
              key: "lasted",
              title: texts.alarms.columns.lasted,
              right: true,
              off: true,
              render: (one) => <Since at={one.activate_at} />,
            },
            {
              key: "act",
              title: "",
              fixed: true,
              render: (one) => (
                <span class="actions">
                  <Change operates onClick={() => go(["trouble", "targets"], { silence: one.name })}>{texts.alarms.silence}</Change>
                  <Change onClick={() => void end(one)}>{texts.alarms.end}</Change>
                </span>
              ),
            },
          ]}
          empty={
            <Empty title={texts.alarms.none}>
              <p>{texts.alarms.noneText}</p>
            </Empty>
          }
        />
      </Section>
      <Section
        title={`${texts.alarms.over} (${over.length})`}
        actions={
          <Change disabled={over.length === 0} onClick={() => void forget()}>
            {texts.alarms.forget}
          </Change>
        }
      >
        <Table
          id="alarms-over"
          label={texts.alarms.over}
          rows={over}
          rowKey={rowKey}
          columns={[
            ...columns,
            {
              key: "ended",
              title: texts.alarms.columns.ended,
              render: (one) => <TimeAgo at={one.deactivate_at} />,
              sort: (one) => one.deactivate_at,
            },
            {
              key: "lasted",
              title: texts.alarms.columns.lasted,
              right: true,
              render: (one) => duration(one.duration / 1e6),
              sort: (one) => one.duration,
            },
          ]}
          empty={<Empty title={texts.alarms.noneOver} />}
        />
      </Section>
    </>
  );
}
