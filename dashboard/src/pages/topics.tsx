/** Topics: the tree of levels as it lives, who receives what, and who may. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/topics";
import { OneTopic } from "./topics/one";
import { Tree } from "./topics/tree";
import { WhoMay } from "./topics/who";
import { WhyNot } from "./topics/why";

const KEYS = ["tree", "topic", "why", "who"] as const;

export default function Page() {
  const current = KEYS.find((key) => key === place.value.path[1]) ?? "tree";
  const tabs = KEYS.map((key) => ({ key, title: texts.tabs[key], href: link(["topics", key]) }));
  return (
    <>
      <PageHead title={common.pages.topics} />
      <Tabs label={texts.tabs.label} tabs={tabs} current={current} />
      {current === "tree" && <Tree />}
      {current === "topic" && <OneTopic />}
      {current === "why" && <WhyNot />}
      {current === "who" && <WhoMay />}
    </>
  );
}
