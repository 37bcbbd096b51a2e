/** Rules: what they take, do and failed at; the editor with its test; resources and what waits for them; schemas. */

import { PageHead, Tabs } from "../components/basic";
import { link, place } from "../router";
import { texts as common } from "../texts/common";
import { texts } from "../texts/rules";
import { Editing } from "./rules/editor";
import { RuleList } from "./rules/list";
import { OneRule } from "./rules/one";
import { ResourceList } from "./rules/resources";
import { OneResource } from "./rules/resource";
import { SchemaList } from "./rules/schemas";

const LISTS = { rules: RuleList, resources: ResourceList, schemas: SchemaList };

export default function Page() {
  const [, kind, id, what] = place.value.path;
  if (kind === "new") return <Editing key="" id={undefined} />;
  if (kind === "rule" && id !== undefined) return what === "edit" ? <Editing key={id} id={id} /> : <OneRule key={id} id={id} />;
  if (kind === "resources" && id !== undefined) return <OneResource key={id} id={id} />;
  const current = kind === "resources" || kind === "schemas" ? kind : "rules";
  const List = LISTS[current];
  return (
    <>
      <PageHead title={common.pages.rules} />
      <Tabs
        label={texts.tabs.label}
        current={current}
        tabs={[
          { key: "rules", title: texts.tabs.rules, href: link(["rules"]) },
          { key: "resources", title: texts.tabs.resources, href: link(["rules", "resources"]) },
          { key: "schemas", title: texts.tabs.schemas, href: link(["rules", "schemas"]) },
        ]}
      />
      <List />
    </>
  );
}
