import { useState } from "preact/hooks";
import { type Json, api, part } from "../../api";
import { nodeNow } from "../../clock";
import { Change, Empty } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { PagedTable } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { toast } from "../../components/toast";
import { useKey } from "../../keys";
import { place, setQuery } from "../../router";
import { texts } from "../../texts/access";
import { type Ban, isForEver } from "../clients/bans";


const FIELDS: Field[] = [
  {
    name: "as",
    type: "choice",
    title: texts.bans.columns.as,
    required: true,
    otherwise: "clientid",
    options: Object.entries(texts.bans.kinds).map(([value, title]) => ({ value, title })),
  },
  { name: "who", type: "text", title: texts.bans.columns.who, required: true },
  { name: "reason", type: "text", title: texts.bans.columns.reason },
  { name: "minutes", type: "number", title: texts.bans.fields.minutes, description: texts.bans.fields.minutesAbout, required: true, otherwise: 5, min: 0.1, max: 5_256_000 },
  { name: "kick", type: "switch", title: texts.bans.fields.kick, description: texts.bans.fields.kickAbout, otherwise: true },
];

/** The form opens with `?new=1`; another page sends here with `as` and `who`. */
export function Bans() {
  const { query } = place.value;
  const [count, setCount] = useState(0);
  const begin = (): void => setQuery({ new: "1" }, true);
  useKey("n", texts.bans.new, begin);
  const close = (): void => {
    setQuery({ new: undefined, as: undefined, who: undefined }, true);
    setCount(count + 1);
  };
  const given: Values = {};
  for (const name of ["as", "who"]) if (query[name] !== undefined) given[name] = query[name] as Json;
  const add = async ({ minutes, kick, ...rest }: Values): Promise<void> => {
    await api.post("/banned", { ...rest, kick: kick === true, until: Math.ceil(nodeNow() / 1000 + Number(minutes) * 60) });
    toast(texts.bans.added);
    close();
  };
  const end = async (ban: Ban): Promise<void> => {
    const done = await confirm({
      title: texts.bans.removeTitle,
      hits: [ban.who],
      action: texts.bans.end,
      work: () => api.del(`/banned/${part(ban.as)}/${part(ban.who)}`),
    });
    if (done) toast(texts.bans.ended);
    setCount(count + 1);
  };
  return (
    <>
      {query["new"] === "1" && (
        <Dialog title={texts.bans.new} onClose={close}>
          <Form operates fields={FIELDS} values={given} onSubmit={add} onCancel={close} />
        </Dialog>
      )}
      <PagedTable<Ban>
        id="bans"
        label={texts.tabs.bans}
        deps={[count]}
        every={10_000}
        load={(page, limit, signal) => api.page<Ban>("/banned", { _page: page, _limit: limit }, signal)}
        rowKey={(ban) => `${ban.as} ${ban.who}`}
        tools={
          <Change operates kind="primary" onClick={begin} title="n">
            {texts.bans.new}
          </Change>
        }
        columns={[
          { key: "who", title: texts.bans.columns.who, fixed: true, sort: (ban) => ban.who, render: (ban) => <Name text={ban.who} /> },
          { key: "as", title: texts.bans.columns.as, sort: (ban) => ban.as, render: (ban) => texts.bans.kinds[ban.as] ?? ban.as },
          { key: "reason", room: "medium", title: texts.bans.columns.reason, render: (ban) => <Name text={ban.reason || null} /> },
          { key: "by", room: "wide", title: texts.bans.columns.by, sort: (ban) => ban.by, render: (ban) => <Name text={ban.by} /> },
          { key: "at", room: "wide", title: texts.bans.columns.at, sort: (ban) => ban.at, render: (ban) => <TimeAgo at={ban.at} /> },
          { key: "until", title: texts.bans.columns.until, sort: (ban) => ban.until, render: (ban) => (isForEver(ban) ? texts.bans.forEver : <TimeAgo at={ban.until} />) },
          { key: "act", title: "", fixed: true, render: (ban) => <Change operates onClick={() => void end(ban)}>{texts.bans.end}</Change> },
        ]}
        empty={<Empty title={texts.bans.none} />}
      />
    </>
  );
}
