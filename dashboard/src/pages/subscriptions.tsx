/** Subscriptions: who has subscribed to what; shared groups with their members and what each got. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/subscriptions";
import { Group, Groups } from "./subscriptions/groups";
import { SubscriptionList } from "./subscriptions/list";

export default function Page() {
  const [, asked, topic] = place.value.path;
  const groups = asked === "groups";
  return (
    <>
      <PageHead title={common.pages.subscriptions} />
      <Tabs
        label={texts.tabs.label}
        current={groups ? "groups" : "all"}
        tabs={[
          { key: "all", title: texts.tabs.all, href: link(["subscriptions"]) },
          { key: "groups", title: texts.tabs.groups, href: link(["subscriptions", "groups"]) },
        ]}
      />
      {!groups ? <SubscriptionList /> : topic === undefined ? <Groups /> : <Group key={topic} topic={topic} />}
    </>
  );
}
