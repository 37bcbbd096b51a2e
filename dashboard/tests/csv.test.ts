import { describe, expect, it } from "vitest";
import { csv } from "../src/csv";

describe("a file of rows", () => {
  it("has quotes where they are needed, and no formula", () => {
    expect(csv(["a", "b,c"], [[1, 'x "y"'], [null, "two\nlines"], [true, { k: [1] }]])).toBe(
      'a,"b,c"\r\n1,"x ""y"""\r\n,"two\nlines"\r\ntrue,"{""k"":[1]}"\r\n',
    );
    expect(csv(["a"], [["=1+1"], ["+1"], ["-x"], ["@sum"], [-1]])).toBe("a\r\n'=1+1\r\n'+1\r\n'-x\r\n'@sum\r\n-1\r\n");
  });

  it("has no formula behind a separator of other programs, nor in wide letters", () => {
    expect(csv(["a"], [["x;=1+1"], ["x\t+1"], [" =1"], ["＝1+1"], ["a-b;c=d"]])).toBe("a\r\nx;'=1+1\r\nx\t'+1\r\n' =1\r\n'＝1+1\r\na-b;c=d\r\n");
  });
});
