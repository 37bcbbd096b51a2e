/** Lines of a file that is read in pieces. `rest` is the end of the last piece, which had no end of line yet. */
export function joinLines(rest: string, piece: string): { lines: string[]; rest: string; read: number } {
  const lines = (rest + piece).split("\n");
  const left = lines.pop() ?? "";
  return { lines, rest: left, read: new TextEncoder().encode(piece).length };
}
