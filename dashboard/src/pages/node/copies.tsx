/** Copies of the nodes' data: who has them, how complete they are, and the lost nodes that run from one. */

import { api } from "../../api";
import { Badge, Empty, Section } from "../../components/basic";
import { ErrorPanel } from "../../components/error";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { Since } from "../../components/time";
import { bytes, number } from "../../format";
import { useData } from "../../hooks";
import { texts as common } from "../../texts/common";
import { texts } from "../../texts/node";
import { type NodeWithCopies, copiesOf, hostedOf, toneOf } from "../../replicas";

const EVERY = 2_000;
const T = texts.copies;

export function Copies() {
  const { data, error, reload } = useData((signal) => api.get<NodeWithCopies[]>("/nodes", {}, signal), [], EVERY);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const copies = copiesOf(data);
  const hosted = hostedOf(data);
  return (
    <>
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="copies"
        label={texts.tabs.copies}
        rows={copies}
        rowKey={(one) => `${one.node} ${one.follower ?? ""}`}
        columns={[
          { key: "node", title: T.columns.node, fixed: true, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
          { key: "follower", title: T.columns.follower, fixed: true, sort: (one) => one.follower, render: (one) => <Name text={one.follower ?? null} /> },
          {
            key: "state",
            title: T.columns.state,
            sort: (one) => one.state,
            render: (one) => (
              <span title={T.about[one.state] ?? ""}>
                <Badge tone={toneOf(one.state)}>{common.copyStates[one.state] ?? one.state}</Badge>
              </span>
            ),
          },
          { key: "batches", title: T.columns.batches, right: true, sort: (one) => one.behind_batches, render: (one) => number(one.behind_batches) },
          { key: "bytes", room: "medium", title: T.columns.bytes, right: true, sort: (one) => one.behind_bytes, render: (one) => bytes(one.behind_bytes) },
          { key: "since", title: T.columns.since, nowrap: true, sort: (one) => one.since, render: (one) => <Since at={one.since} /> },
        ]}
        empty={
          <Empty title={T.none}>
            <p>{T.noneText}</p>
          </Empty>
        }
      />
      {copies.some((one) => one.since === null && one.follower !== undefined) && <p class="faint small">{T.stopped}</p>}
      {hosted.length > 0 && (
        <Section title={T.hosted}>
          <p class="faint">{T.hostedText}</p>
          <Table
            id="hosted"
            label={T.hosted}
            rows={hosted}
            rowKey={(one) => one.node}
            columns={[
              { key: "node", title: T.columns.node, fixed: true, sort: (one) => one.node, render: (one) => <Name text={one.node} /> },
              { key: "host", title: T.columns.host, fixed: true, sort: (one) => one.host, render: (one) => <Name text={one.host} /> },
              { key: "since", title: T.columns.since, nowrap: true, sort: (one) => one.since, render: (one) => <Since at={one.since} /> },
              {
                key: "owed",
                title: T.columns.owed,
                value: (one) => JSON.stringify(one.owed),
                render: (one) =>
                  Object.entries(one.owed)
                    .map(([kind, count]) => `${T.kinds[kind] ?? kind}: ${number(count)}`)
                    .join(", ") || T.nothing,
              },
            ]}
          />
        </Section>
      )}
    </>
  );
}
