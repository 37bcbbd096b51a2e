/** Messages that wait until they are published: their list, and one of them with its payload. */

import { useState } from "preact/hooks";
import { type Page, api, part } from "../../api";
import { Change, Empty } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { TypedFilter } from "../../components/filters";
import { Name, nameText } from "../../components/name";
import { Payload, fromBase64 } from "../../components/payload";
import { PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toast, toastError } from "../../components/toast";
import { FirstClient } from "../../components/first";
import { bytes } from "../../format";
import { useQuery } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/retained";

interface Delayed {
  id: string;
  node: string;
  topic: string;
  qos: number;
  retain: boolean;
  payload_size: number;
  publish_at: string;
  expected_at: string;
  remaining: number;
  from_clientid: string | null;
  from_username: string | null;
}

interface Content extends Delayed {
  payload: string;
  encoding: "plain" | "base64";
}

const T = texts.delayed;

function pathOf(one: Delayed): string {
  return `/nodes/${part(one.node)}/delayed/${part(one.id)}`;
}

export function DelayedList() {
  const [match] = useQuery("_match_topic");
  const [clientid] = useQuery("clientid");
  const [removed, setRemoved] = useState(0);
  const [shown, setShown] = useState<Content | undefined>(undefined);
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Delayed>> =>
    api.page<Delayed>("/delayed", { _match_topic: match, clientid, _page: page, _limit: limit }, signal);
  const show = async (one: Delayed): Promise<void> => {
    try {
      setShown(await api.get<Content>(pathOf(one)));
    } catch (error) {
      toastError(error);
      setRemoved((count) => count + 1);
    }
  };
  const remove = async (one: Delayed): Promise<void> => {
    const done = await confirm({
      title: T.removeTitle,
      hits: [one.topic],
      text: T.removeText,
      action: texts.remove.one,
      work: () => api.del(pathOf(one)),
    });
    if (done) toast(T.removed);
    setRemoved((count) => count + 1);
  };
  const { columns } = T;
  return (
    <>
      {shown && (
        <Dialog title={T.title(nameText(shown.topic, 60))} wide onClose={() => setShown(undefined)}>
          <Payload bytes={shown.encoding === "base64" ? fromBase64(shown.payload) : new TextEncoder().encode(shown.payload)} />
        </Dialog>
      )}
      <div class="filters" role="search" aria-label={T.label}>
        <TypedFilter name="_match_topic" title={texts.list.match} search placeholder={texts.list.hint} />
        <TypedFilter name="clientid" title={T.publisher} />
      </div>
      <PagedTable
        id="delayed"
        label={T.label}
        rowKey={(one) => `${one.node} ${one.id}`}
        load={load}
        deps={[match, clientid, removed]}
        every={5_000}
        columns={[
          { key: "topic", title: columns.topic, fixed: true, render: (one) => <Name text={one.topic} /> },
          { key: "due", title: columns.due, nowrap: true, render: (one) => <TimeAgo at={one.expected_at} /> },
          { key: "since", room: "wide", title: columns.since, nowrap: true, render: (one) => <TimeAgo at={one.publish_at} /> },
          { key: "size", room: "medium", title: columns.size, right: true, render: (one) => bytes(one.payload_size) },
          { key: "qos", room: "wide", title: columns.qos, right: true, render: (one) => one.qos },
          {
            key: "from",
            room: "medium",
            title: columns.from,
            render: (one) =>
              one.from_clientid === null ? (
                <span class="faint">{texts.list.node}</span>
              ) : (
                <a href={link(["clients", one.from_clientid])}>
                  <Name text={one.from_clientid} />
                </a>
              ),
          },
          { key: "node", off: true, title: columns.node, render: (one) => <Name text={one.node} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <span class="actions">
                <button type="button" onClick={() => void show(one)}>
                  {T.payload}
                </button>
                <Change kind="danger" onClick={() => void remove(one)}>
                  {texts.remove.one}
                </Change>
              </span>
            ),
          },
        ]}
        empty={
          match || clientid ? (
            <Empty title={T.none} />
          ) : (
            <Empty title={T.none}>
              <p>{T.noneText}</p>
              <FirstClient />
            </Empty>
          )
        }
      />
    </>
  );
}
