/** All texts in simplified Chinese, in one chunk that is read only where they are shown. Words as in the console of EMQX 4. */

import type { TextsName } from "../../language";
import { texts as access } from "./access";
import { texts as clients } from "./clients";
import { texts as common } from "./common";
import { texts as node } from "./node";
import { texts as overview } from "./overview";
import { texts as publish } from "./publish";
import { texts as retained } from "./retained";
import { texts as rules } from "./rules";
import { texts as subscriptions } from "./subscriptions";
import { texts as tool } from "./tool";
import { texts as top } from "./top";
import { texts as topics } from "./topics";
import { texts as trouble } from "./trouble";

export const tables: Record<TextsName, object> = { access, clients, common, node, overview, publish, retained, rules, subscriptions, tool, top, topics, trouble };
