/** Messages between the nodes of a cluster: each direction with its rate, and what waits. */

import { api } from "../../api";
import { Badge, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { bytes, compact, number, rate } from "../../format";
import { useData } from "../../hooks";
import { type NodeLink, ageOf, stateOf, toneOf } from "../../links";
import { texts } from "../../texts/node";

const EVERY = 2_000;
const T = texts.links;

export function Links() {
  const { data, error, reload } = useData((signal) => api.get<NodeLink[]>("/cluster_links", {}, signal), [], EVERY);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  return (
    <Section title={T.title}>
      <p class="faint">{T.about}</p>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="links"
        label={T.title}
        rows={data}
        rowKey={(one) => `${one.node} ${one.to}`}
        columns={[
          {
            key: "link",
            title: T.columns.link,
            fixed: true,
            sort: (one) => `${one.node} ${one.to}`,
            render: (one) => (
              <>
                <Name text={one.node} /> → <Name text={one.to} />
              </>
            ),
          },
          {
            key: "state",
            title: T.columns.state,
            sort: (one) => one.state,
            render: (one) => (
              <span title={T.states[one.state] ?? ""}>
                <Badge tone={toneOf(one)}>{stateOf(one)}</Badge>
              </span>
            ),
          },
          { key: "rate", title: T.columns.rate, right: true, sort: (one) => one.rate, render: (one) => rate(one.rate) },
          { key: "waiting", title: T.columns.waiting, right: true, sort: (one) => one.waiting, render: (one) => number(one.waiting) },
          { key: "bytes", room: "medium", title: T.columns.bytes, right: true, sort: (one) => one.waiting_bytes, render: (one) => bytes(one.waiting_bytes) },
          { key: "oldest", title: T.columns.oldest, right: true, sort: (one) => one.oldest, render: ageOf },
          { key: "sent", room: "medium", title: T.columns.sent, right: true, sort: (one) => one.sent, render: (one) => compact(one.sent) },
          { key: "dropped", title: T.columns.dropped, right: true, sort: (one) => one.dropped, render: (one) => number(one.dropped) },
        ]}
      />
    </Section>
  );
}
