/** Node: what it is, where it listens, how it is set, what it can do, what goes out and comes in as a file. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/node";
import { Configuration } from "./node/configuration";
import { Connect } from "./node/connect";
import { Copies } from "./node/copies";
import { Listeners } from "./node/listeners";
import { Log } from "./node/log";
import { Modules } from "./node/modules";
import { Nodes } from "./node/nodes";
import { DryRun, Transfer } from "./node/transfer";

const KEYS = ["nodes", "copies", "listeners", "configuration", "log", "connect", "modules", "transfer"] as const;

export default function Page() {
  const [, asked, file] = place.value.path;
  const current = KEYS.find((key) => key === asked) ?? "nodes";
  const tabs = KEYS.map((key) => ({ key, title: texts.tabs[key], href: link(["node", key]) }));
  return (
    <>
      <PageHead title={common.pages.node} />
      <Tabs label={texts.tabs.label} tabs={tabs} current={current} />
      {current === "nodes" && <Nodes />}
      {current === "copies" && <Copies />}
      {current === "listeners" && <Listeners />}
      {current === "configuration" && <Configuration />}
      {current === "log" && <Log />}
      {current === "connect" && <Connect />}
      {current === "modules" && <Modules />}
      {current === "transfer" && (file === undefined ? <Transfer /> : <DryRun key={file} name={file} />)}
    </>
  );
}
