import { beforeEach, describe, expect, it } from "vitest";
import { go, link, parse, place, setQuery } from "../src/router";

describe("addresses", () => {
  it.each([
    ["", [], {}],
    ["#/", [], {}],
    ["#/clients", ["clients"], {}],
    ["#/clients/a%2Fb%3Fc", ["clients", "a/b?c"], {}],
    ["#/clients?_like=a%26b&page=2", ["clients"], { _like: "a&b", page: "2" }],
    ["#/broken/%E0%A4%A", ["broken", "%E0%A4%A"], {}],
  ])("%s is read", (hash, path, query) => expect(parse(hash)).toEqual({ path, query }));

  it.each([[["clients", "a/b?c#d %"]], [["topics", "\u202e\u0000"]]])("%j comes back as it was", (path) => {
    expect(parse(link(path, { filter: path[1] })).path).toEqual(path);
    expect(parse(link(path, { filter: path[1] })).query).toEqual({ filter: path[1] });
  });

  it("leaves out what is empty", () => {
    expect(link(["clients"], { a: "", b: undefined, c: false, d: 0 })).toBe("#/clients?c=false&d=0");
  });
});

describe("the query", () => {
  beforeEach(() => {
    history.replaceState(null, "", "#/");
    go(["clients"], { a: "1" });
  });

  it("changes a part", () => {
    setQuery({ b: "2" });
    expect(place.value.query).toEqual({ a: "1", b: "2" });
    setQuery({ a: "" });
    expect(location.hash).toBe("#/clients?b=2");
  });

  it("makes a step of the history only where it is asked to", () => {
    const before = history.length;
    setQuery({ b: "2" });
    expect(history.length).toBe(before);
    setQuery({ b: "3" }, true);
    expect(history.length).toBe(before + 1);
  });
});
