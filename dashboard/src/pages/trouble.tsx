/** Trouble: alarms, who was refused, what was refused and dropped and why, slow subscriptions, traces. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/trouble";
import { Alarms } from "./trouble/alarms";
import { Audit } from "./trouble/audit";
import { Reasons } from "./trouble/reasons";
import { RefusedClients } from "./trouble/refused";
import { Slow } from "./trouble/slow";
import { Targets } from "./trouble/targets";
import { TraceLog, Traces } from "./trouble/traces";

const KEYS = ["alarms", "targets", "refused", "reasons", "slow", "traces", "audit"] as const;

export default function Page() {
  const [, asked, name] = place.value.path;
  const current = KEYS.find((key) => key === asked) ?? "alarms";
  const tabs = KEYS.map((key) => ({ key, title: texts.tabs[key], href: link(["trouble", key]) }));
  return (
    <>
      <PageHead title={common.pages.trouble} />
      <Tabs label={texts.tabs.label} tabs={tabs} current={current} />
      {current === "alarms" && <Alarms />}
      {current === "targets" && <Targets />}
      {current === "refused" && <RefusedClients />}
      {current === "reasons" && <Reasons />}
      {current === "audit" && <Audit />}
      {current === "slow" && <Slow />}
      {current === "traces" && (name === undefined ? <Traces /> : <TraceLog key={name} name={name} />)}
    </>
  );
}
