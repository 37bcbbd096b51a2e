import { ApiError, api } from "../../api";
import { Change, Empty } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toast } from "../../components/toast";
import { milliseconds } from "../../format";
import { useData } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/trouble";

interface SlowSubscription {
  clientid: string;
  topic: string;
  node: string;
  /** Milliseconds, both. */
  timespan: number;
  last_update_time: number;
}

export function Slow() {
  const { data, error, reload } = useData(
    (signal) => api.get<SlowSubscription[]>("/slow_subscriptions", {}, signal),
    [],
    5_000,
  );
  if (error instanceof ApiError && error.code === 102) {
    return (
      <Empty title={texts.slow.off}>
        <p>{texts.slow.offText}</p>
        <p>
          <a href={link(["node", "modules"])}>{texts.slow.modules}</a>
        </p>
      </Empty>
    );
  }
  if (error) return <ErrorPanel error={error} retry={reload} />;
  if (!data) return null;
  const forget = async (): Promise<void> => {
    const done = await confirm({
      title: texts.slow.forgetTitle,
      text: texts.slow.forgetText,
      action: texts.slow.forget,
      work: () => api.del("/slow_subscriptions"),
    });
    if (done) toast(texts.slow.forgotten);
    reload();
  };
  return (
    <Table
      id="slow"
      label={texts.tabs.slow}
      rows={data}
      rowKey={(one) => `${one.node} ${one.clientid} ${one.topic}`}
      tools={
        <Change disabled={data.length === 0} onClick={() => void forget()}>
          {texts.slow.forget}
        </Change>
      }
      columns={[
        {
          key: "client",
          title: texts.slow.columns.client,
          fixed: true,
          render: (one) => (
            <a href={link(["clients", one.clientid])}>
              <Name text={one.clientid} />
            </a>
          ),
          sort: (one) => one.clientid,
        },
        { key: "topic", title: texts.slow.columns.topic, render: (one) => <Name text={one.topic} />, sort: (one) => one.topic },
        {
          key: "took",
          title: texts.slow.columns.took,
          right: true,
          render: (one) => milliseconds(one.timespan),
          sort: (one) => one.timespan,
        },
        {
          key: "last",
          title: texts.slow.columns.last,
          render: (one) => <TimeAgo at={one.last_update_time} />,
          sort: (one) => one.last_update_time,
        },
        { key: "node", title: texts.slow.columns.node, off: true, render: (one) => <Name text={one.node} />, sort: (one) => one.node },
      ]}
      empty={
        <Empty title={texts.slow.none}>
          <p>{texts.slow.noneText}</p>
        </Empty>
      }
    />
  );
}
