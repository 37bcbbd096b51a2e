/** Top lists: who is behind the figures, as the nodes keep them. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/top";
import { LoudClients, LoudGroups, LoudTopics } from "./top/rates";
import { Troubles } from "./top/troubles";

const KEYS = ["clients", "topics", "groups", "dropped", "refused"] as const;

export default function Page() {
  const [, asked] = place.value.path;
  const current = KEYS.find((key) => key === asked) ?? "clients";
  const tabs = KEYS.map((key) => ({ key, title: texts.tabs[key], href: link(["top", key]) }));
  return (
    <>
      <PageHead title={common.pages.top} />
      <Tabs label={texts.tabs.label} tabs={tabs} current={current} />
      {current === "clients" && <LoudClients />}
      {current === "topics" && <LoudTopics />}
      {current === "groups" && <LoudGroups />}
      {(current === "dropped" || current === "refused") && <Troubles key={current} list={current} />}
    </>
  );
}
