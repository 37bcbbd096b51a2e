/** Text of strangers: what cannot be seen is made visible, and nothing turns the direction of what stands beside it. */

export interface Piece {
  text: string;
  /** Stands for a character that cannot be seen. */
  hidden: boolean;
}

// C0, DEL, C1; soft hyphen, zero width, line and paragraph separators, marks, embeddings, overrides and isolates of
// direction, byte order mark, tags, unpaired surrogates.
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}\p{Cs}]/u;

const NAMES: Record<number, string> = {
  0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM", 0x061c: "ALM", 0x202a: "LRE",
  0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI",
  0x2069: "PDI", 0xfeff: "BOM", 0x00ad: "SHY",
};

function shown(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `[${NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`}]`;
}

export function pieces(text: string): Piece[] {
  if (text !== "" && !HIDDEN.test(text)) return [{ text, hidden: false }];
  const found: Piece[] = [];
  let plain = "";
  for (const character of text) {
    if (!HIDDEN.test(character)) {
      plain += character;
      continue;
    }
    if (plain) found.push({ text: plain, hidden: false });
    plain = "";
    found.push({ text: shown(character), hidden: true });
  }
  if (plain) found.push({ text: plain, hidden: false });
  return found;
}

/** The same as one string, for titles, labels and messages. */
export function visible(text: string): string {
  return pieces(text).map((piece) => piece.text).join("");
}

/** At most `length` characters, never half of one. */
export function cut(text: string, length: number): string {
  if (text.length <= length) return text;
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
}
