import { Change, Empty } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import type { Loaded } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/clients";
import { unsubscribe } from "./orders";

export interface Subscription {
  node: string;
  clientid: string;
  topic: string;
  qos: number;
}

export function Subscriptions(props: {
  id: string;
  found: Loaded<Subscription[]>;
  onSubscribe: () => void;
}) {
  const { data, error, reload } = props.found;
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const end = async (one: Subscription): Promise<void> => {
    if (await unsubscribe(props.id, one.topic)) reload();
  };
  return (
    <Table
      id="client-subscriptions"
      label={texts.tabs.subscriptions}
      rows={data}
      rowKey={(one) => one.topic}
      tools={
        <>
          <Change onClick={props.onSubscribe}>{texts.subscriptions.subscribe}</Change>
          <a href={link(["topics", "why"], { clientid: props.id })}>{texts.subscriptions.whyNot}</a>
        </>
      }
      columns={[
        {
          key: "topic",
          title: texts.subscriptions.topic,
          fixed: true,
          sort: (one) => one.topic,
          copy: (one) => one.topic,
          render: (one) => (
            <a href={link(["subscriptions"], { topic: one.topic.replace(/^\$share\/[^/]*\//, "") })}>
              <Name text={one.topic} />
            </a>
          ),
        },
        { key: "qos", title: texts.subscriptions.qos, right: true, fixed: true, sort: (one) => one.qos, render: (one) => one.qos },
        {
          key: "act",
          title: "",
          fixed: true,
          render: (one) => <Change onClick={() => void end(one)}>{texts.subscriptions.unsubscribe}</Change>,
        },
      ]}
      empty={
        <Empty title={texts.subscriptions.none}>
          <p>{texts.subscriptions.noneText}</p>
        </Empty>
      }
    />
  );
}
