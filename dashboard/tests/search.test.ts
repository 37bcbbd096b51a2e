import { describe, expect, it } from "vitest";
import { type Asked, type Known, branch, found } from "../src/search/found";

const none: Asked = { clients: [], users: [], topics: [] };
const known: Known = {
  pages: [{ kind: "page", text: "Listeners", about: "Node", href: "#/node/listeners" }, { kind: "page", text: "Clients", href: "#/clients" }],
  rules: [{ id: "rule:erp", description: "to ERP", rawsql: 'SELECT * FROM "press/#"' }],
  resources: [{ id: "resource:erp", type: "web_hook" }],
  settings: [{ key: "limits.memory", description: "Memory of the node" }, { key: "log.level", description: "Least level" }],
};
const said = (text: string, asked = none): string[] => found(text, known, asked).map(({ kind, text: name }) => `${kind} ${name}`);

describe("the search over everything", () => {
  it("shows pages where nothing is typed", () => {
    expect(said("  ")).toEqual(["page Listeners", "page Clients"]);
  });

  it("finds by all the words, whatever their case", () => {
    expect(said("ERP press")).toEqual(["rule rule:erp", "history ERP press", "lookup ERP press"]);
    expect(said("node list")).toContain("page Listeners");
    expect(said("memory")).toEqual(["setting limits.memory", "history memory", "lookup memory"]);
  });

  it("shows a client once, and its username beside it", () => {
    const client = { clientid: "press-1", username: "press" };
    const asked = { clients: [client], users: [client, { clientid: "other", username: "press" }], topics: [{ topic: "press/1" }] };
    expect(said("press", asked)).toEqual(["client press-1", "username other", "topic press/1", "rule rule:erp", "history press", "lookup press"]);
  });

  it("leads to what a client never let in has as its history, and looks up no filter", () => {
    const rows = found("a/+", known, none);
    expect(rows.map(({ kind, href }) => [kind, href])).toEqual([["history", "#/clients/a%2F%2B"]]);
  });

  it("asks for topics by their level", () => {
    expect(branch("plant")).toEqual({ level: "plant" });
    expect(branch("plant/oslo/pr")).toEqual({ prefix: "plant/oslo", level: "pr" });
    expect(branch("/a")).toEqual({ below: "/", level: "a" });
  });
});
