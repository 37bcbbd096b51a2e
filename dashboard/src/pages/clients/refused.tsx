import type { ComponentChildren } from "preact";
import { api } from "../../api";
import { Empty } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { type Column, Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { exact, moment, number } from "../../format";
import { type Loaded, useData } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/clients";
import { detailText } from "./story";

/** A row of `GET /refused_clients`. */
export interface Refused {
  /** Empty where no CONNECT could be read. */
  clientid: string;
  /** The client id is longer than what is known of it. */
  clientid_cut: boolean;
  username: string | null;
  peerhost: string;
  listener: string;
  reason: string;
  setting: string;
  text: string;
  advice: string;
  detail: string;
  count: number;
  at: string;
  last_at: string;
  node: string;
}

const EVERY = 5_000;

/** Those whose client id, user name or address has this in it, whatever its case. */
export function matching(rows: Refused[], text: string): Refused[] {
  const wanted = text.toLowerCase();
  return rows.filter((row) => [row.clientid, row.username ?? "", row.peerhost].some((name) => name.toLowerCase().includes(wanted)));
}

export function useRefused(): Loaded<Refused[]> {
  return useData((signal) => api.get<Refused[]>("/refused_clients", {}, signal), [], EVERY);
}

const { columns } = texts.refused;

function shown(many: boolean): Column<Refused>[] {
  return [
    {
      key: "client",
      title: columns.client,
      fixed: true,
      sort: (row) => row.clientid,
      copy: (row) => row.clientid,
      render: (row) => {
        if (row.clientid === "") return <Name text={null} />;
        if (row.clientid_cut) return <Name text={`${row.clientid}…`} />;
        return (
          <a href={link(["clients", row.clientid])}>
            <Name text={row.clientid} />
          </a>
        );
      },
    },
    {
      key: "last",
      title: columns.last,
      fixed: true,
      nowrap: true,
      sort: (row) => row.last_at,
      render: (row) => <TimeAgo at={row.last_at} />,
    },
    {
      key: "count",
      room: "medium",
      title: columns.count,
      right: true,
      sort: (row) => row.count,
      render: (row) => <span title={texts.story.first(exact(moment(row.at) ?? 0))}>{number(row.count)}</span>,
    },
    {
      key: "reason",
      title: columns.reason,
      sort: (row) => row.reason,
      render: (row) => (
        <>
          <code>{row.reason}</code>
          {row.detail && row.detail !== row.reason && (
            <div class="small">
              <Name text={detailText(row.reason, row.detail)} />
            </div>
          )}
        </>
      ),
    },
    { key: "user", room: "medium", title: columns.user, sort: (row) => row.username, render: (row) => <Name text={row.username} /> },
    { key: "address", room: "wide", title: columns.address, nowrap: true, sort: (row) => row.peerhost, render: (row) => row.peerhost },
    {
      key: "meaning", room: "medium", prose: true,
      title: columns.meaning,
      render: (row) => (
        <>
          {row.text} {row.advice && <p>{row.advice}</p>}
          {row.setting !== "-" && (
            <div class="small faint">
              {columns.setting}: <code><Name text={row.setting} max={400} /></code>
            </div>
          )}
        </>
      ),
    },
    { key: "listener", title: columns.listener, off: true, render: (row) => <Name text={row.listener} /> },
    { key: "node", title: columns.node, off: !many, render: (row) => <Name text={row.node} /> },
  ];
}

export function RefusedTable({ rows, tools, search }: { rows: Refused[]; tools?: ComponentChildren; search: string }) {
  const found = matching(rows, search);
  const many = rows.some((row) => row.node !== rows[0]?.node);
  return (
    <Table
      id="refused"
      label={texts.refused.title}
      rows={found}
      tools={tools}
      rowKey={(row) => [row.node, row.clientid, row.username ?? "\0", row.peerhost, row.reason, row.setting].join(" ")}
      columns={shown(many)}
      empty={
        search ? (
          <Empty title={texts.refused.noneFound} />
        ) : (
          <Empty title={texts.refused.none}>
            <p>{texts.refused.noneText}</p>
          </Empty>
        )
      }
    />
  );
}

/** What a search for a client that is not here says: its story, and who was refused by such a name. */
export function NotHere({ search, clientid }: { search: string; clientid: string | undefined }) {
  const { data, error } = useRefused();
  const found = data && search ? matching(data, search) : [];
  return (
    <>
      <Empty title={texts.noneFound}>
        <p>{texts.noneFoundText}</p>
        {clientid && (
          <p>
            <a href={link(["clients", clientid])}>
              {texts.refused.story} <Name text={clientid} />
            </a>
          </p>
        )}
        <p>
          <a href={link(["trouble", "refused"], { client: search })}>{texts.refused.link}</a>
        </p>
      </Empty>
      {error && <ErrorPanel error={error} />}
      {found.length > 0 && (
        <section class="refused-here">
          <h2>{texts.refused.matching}</h2>
          <RefusedTable rows={found} search="" />
        </section>
      )}
    </>
  );
}
