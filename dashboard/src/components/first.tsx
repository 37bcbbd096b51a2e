/** What an empty list leads to: the first step towards something in it. */

import { link } from "../router";
import { texts } from "../texts/common";

export function FirstClient() {
  return (
    <p>
      <a href={link(["node", "connect"])}>{texts.first.client}</a>
    </p>
  );
}

export function FirstRule() {
  return (
    <p>
      <a href={link(["rules", "new"])}>{texts.first.rule}</a>
    </p>
  );
}
