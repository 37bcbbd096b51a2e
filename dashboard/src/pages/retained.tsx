/** Retained messages: by level with counts, by filter, one of them with its payload; published and deleted. */

import { useState } from "preact/hooks";
import { Change, PageHead, Tabs } from "../components/basic";
import { PublishDialog } from "../components/publish";
import { useKey } from "../keys";
import { asked as topicOf } from "../levels";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/retained";
import { DelayedList } from "./retained/delayed";
import { RetainedList } from "./retained/list";
import { Message } from "./retained/message";
import { DeleteDialog } from "./retained/remove";
import { Tree } from "./retained/tree";

export default function Page() {
  const { path, query } = place.value;
  const [, asked, topic] = path;
  const [open, setOpen] = useState<"publish" | "delete" | undefined>(undefined);
  const [changed, setChanged] = useState(0);
  useKey("n", texts.publish, () => setOpen("publish"));
  const close = (done: boolean): void => {
    setOpen(undefined);
    if (done) setChanged((count) => count + 1);
  };
  const prefix = topicOf(query);
  const beginning = prefix === undefined ? "" : `${prefix}/`;
  const filter = asked === "list" ? (query["_match_topic"] ?? query["topic"] ?? "") : beginning && `${beginning}#`;
  const current = asked === "delayed" ? "delayed" : asked === "list" || asked === "message" ? "list" : "tree";
  return (
    <>
      <PageHead title={common.pages.retained}>
        <Change operates kind="primary" onClick={() => setOpen("publish")} title="n">
          {texts.publish}
        </Change>
        <Change onClick={() => setOpen("delete")}>{texts.remove.many}</Change>
      </PageHead>
      <Tabs
        label={texts.tabs.label}
        current={current}
        tabs={[
          { key: "tree", title: texts.tabs.tree, href: link(["retained"]) },
          { key: "list", title: texts.tabs.list, href: link(["retained", "list"]) },
          { key: "delayed", title: texts.tabs.delayed, href: link(["retained", "delayed"]) },
        ]}
      />
      {open === "publish" && <PublishDialog values={{ retain: true, topic: beginning }} onClose={close} />}
      {open === "delete" && <DeleteDialog filter={filter} onClose={close} />}
      {asked === "message" && topic !== undefined ? (
        <Message key={topic} topic={topic} changed={changed} />
      ) : current === "delayed" ? (
        <DelayedList />
      ) : current === "list" ? (
        <RetainedList changed={changed} />
      ) : (
        <Tree prefix={prefix} changed={changed} />
      )}
    </>
  );
}
