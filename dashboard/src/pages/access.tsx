/** Access: users, rules, bans, applications, dashboard users, and a login that is only tried. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts } from "../texts/access";
import { texts as common } from "../texts/common";
import { Admins } from "./access/admins";
import { Apps } from "./access/apps";
import { Bans } from "./access/bans";
import { Rules } from "./access/rules";
import { TryLogin } from "./access/try_login";
import { OneUser } from "./access/user";
import { Users } from "./access/users";

const KEYS = ["users", "rules", "bans", "apps", "admins", "login"] as const;

/** All users, or one: `/access/users/username/ann`. */
function AnyUsers() {
  const [, , kind, name] = place.value.path;
  if ((kind === "username" || kind === "clientid") && name) return <OneUser key={`${kind} ${name}`} kind={kind} name={name} />;
  return <Users />;
}

export default function Page() {
  const current = KEYS.find((key) => key === place.value.path[1]) ?? "users";
  const tabs = KEYS.map((key) => ({ key, title: texts.tabs[key], href: link(["access", key]) }));
  return (
    <>
      <PageHead title={common.pages.access} />
      <Tabs label={texts.tabs.label} tabs={tabs} current={current} />
      {current === "users" && <AnyUsers />}
      {current === "rules" && <Rules />}
      {current === "bans" && <Bans />}
      {current === "apps" && <Apps />}
      {current === "admins" && <Admins />}
      {current === "login" && <TryLogin />}
    </>
  );
}
