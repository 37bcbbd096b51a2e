import { useState } from "preact/hooks";
import { type Page, type Query, api } from "../../api";
import { Change, Empty } from "../../components/basic";
import { ChosenFilter, TypedFilter } from "../../components/filters";
import { Menu } from "../../components/menu";
import { Name, nameText } from "../../components/name";
import { PagedTable } from "../../components/table";
import { FirstClient } from "../../components/first";
import { useKey } from "../../keys";
import { link, place, setQuery } from "../../router";
import { texts as client } from "../../texts/clients";
import { texts } from "../../texts/subscriptions";
import { SubscribeDialog, unsubscribe } from "../clients/orders";
import type { Subscription } from "../clients/subscriptions";
import { shareOf } from "./share";

const FILTERS = ["_match_topic", "topic", "clientid", "share", "qos"] as const;
const EVERY = 5_000;

export function SubscriptionList() {
  const [changed, setChanged] = useState(0);
  const [open, setOpen] = useState(false);
  useKey("n", texts.subscribe, () => setOpen(true));
  const { query } = place.value;
  const filters: Query = {};
  for (const name of FILTERS) if (query[name]) filters[name] = query[name];
  const set = Object.keys(filters).length > 0;
  const load = (page: number, limit: number, signal: AbortSignal): Promise<Page<Subscription>> =>
    api.page<Subscription>("/subscriptions", { ...filters, _page: page, _limit: limit }, signal);
  const done = (made: boolean): void => {
    setOpen(false);
    if (made) setChanged(changed + 1);
  };
  const end = async (one: Subscription): Promise<void> => {
    if (await unsubscribe(one.clientid, one.topic)) setChanged(changed + 1);
  };
  return (
    <>
      {open && <SubscribeDialog onClose={done} />}
      <div class="filters" role="search" aria-label={texts.list}>
        <TypedFilter name="_match_topic" title={texts.filters._match_topic} search placeholder={texts.hint} />
        <TypedFilter name="topic" title={texts.filters.topic} />
        <TypedFilter name="clientid" title={texts.filters.clientid} />
        <TypedFilter name="share" title={texts.filters.share} />
        <ChosenFilter name="qos" title={texts.filters.qos} any={texts.filters.any} options={["0", "1", "2"]} />
        {set && (
          <button type="button" onClick={() => setQuery(Object.fromEntries([...FILTERS, "page"].map((name) => [name, undefined])), true)}>
            {texts.filters.clear}
          </button>
        )}
      </div>
      <PagedTable
        id="subscriptions"
        label={texts.list}
        rowKey={(one) => `${one.clientid} ${one.topic}`}
        load={load}
        deps={[JSON.stringify(filters), changed]}
        every={EVERY}
        tools={
          <Change onClick={() => setOpen(true)} title="n">
            {texts.subscribe}
          </Change>
        }
        columns={[
          {
            key: "client",
            title: texts.columns.client,
            fixed: true,
            sort: (one) => one.clientid,
            copy: (one) => one.clientid,
            render: (one) => (
              <a href={link(["clients", one.clientid])}>
                <Name text={one.clientid} />
              </a>
            ),
          },
          { key: "topic", title: texts.columns.topic, fixed: true, sort: (one) => one.topic, copy: (one) => one.topic, render: (one) => <Name text={one.topic} /> },
          { key: "qos", title: texts.columns.qos, right: true, sort: (one) => one.qos, render: (one) => one.qos },
          {
            key: "share",
            title: texts.columns.share,
            sort: (one) => shareOf(one.topic)?.share,
            render: (one) => {
              const found = shareOf(one.topic);
              return found ? (
                <a href={link(["subscriptions", "groups", one.topic])}>
                  <Name text={found.share} />
                </a>
              ) : (
                "–"
              );
            },
          },
          { key: "node", title: texts.columns.node, off: true, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
          {
            key: "act",
            title: "",
            fixed: true,
            render: (one) => (
              <Menu
                label={client.kick.menu(nameText(`${one.clientid} ${one.topic}`, 60))}
                items={[{ title: `${client.subscriptions.unsubscribe}…`, act: () => void end(one), danger: true }]}
              />
            ),
          },
        ]}
        empty={
          <Empty title={set ? texts.noneFound : texts.none}>
            <p>{set ? texts.noneFoundText : texts.noneText}</p>
            {!set && <FirstClient />}
          </Empty>
        }
      />
    </>
  );
}
