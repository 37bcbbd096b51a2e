import { describe, expect, it } from "vitest";
import { ofAlarm } from "../src/pages/overview/behind";
import { copiesOf, hostedOf, toneOf } from "../src/replicas";

const copy = { follower: "b@h", state: "in_sync", behind_batches: 0, behind_bytes: 0, since: "2026-11-29 21:00:00" };

describe("copies", () => {
  it("have a row for each follower, and one for a node that has none", () => {
    expect(copiesOf([{ node: "a@h", replicas: [copy] }, { node: "b@h", replicas: [] }, { node: "c@h" }])).toEqual([
      { ...copy, node: "a@h" },
      { node: "b@h", follower: undefined, state: "none", behind_batches: 0, behind_bytes: 0, since: null },
    ]);
  });

  it("are not missed of a node that runs from one", () => {
    expect(copiesOf([{ node: "a@h", replicas: [], hosted_by: "b@h" }])).toEqual([]);
  });

  it("have a colour by their state", () => {
    expect(["in_sync", "joining", "catching_up", "filling", "absent", "none"].map(toneOf)).toEqual(["good", "warn", "warn", "warn", "bad", "bad"]);
  });
});

describe("hosted nodes", () => {
  it("are listed with their host", () => {
    const lost = { node: "c@h", since: "2026-11-29 21:00:00", owed: { delayed: 1 } };
    expect(hostedOf([{ node: "a@h", hosts: [lost] }, { node: "b@h" }])).toEqual([{ ...lost, host: "a@h" }]);
  });
});

describe("alarms", () => {
  it.each(["replica_missing", "replicas_trouble", "replica_unusable/c@h", "node_hosted/c@h"])("%s leads to the copies", (name) => {
    expect(ofAlarm(name)).toBe("#/node/copies");
  });
});
