import { useEffect, useMemo, useState } from "preact/hooks";
import { bytes as size } from "../format";
import { texts } from "../texts/common";
import { pieces } from "../visible";
import { copyText } from "./copy";
import { toast, toastError } from "./toast";

export type Form = "text" | "json" | "hex" | "cbor";
const FORMS: Form[] = ["text", "json", "hex", "cbor"];
const PART = 16_384;

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Sixteen bytes a line: place, bytes, and what of them is ASCII. */
export function hex(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    const numbers = Array.from(row, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = Array.from(row, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

export function text(bytes: Uint8Array): { text: string; valid: boolean } {
  try {
    return { text: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes), valid: true };
  } catch {
    return { text: new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes), valid: false };
  }
}

export function json(bytes: Uint8Array): string | undefined {
  try {
    return JSON.stringify(JSON.parse(text(bytes).text), null, 2);
  } catch {
    return undefined;
  }
}

/** What JSON has no way to write, written so that it can be read. */
export function readable(value: unknown): unknown {
  if (value instanceof Uint8Array) return `h'${Array.from(value, (byte) => byte.toString(16).padStart(2, "0")).join("")}'`;
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  if (value === undefined) return "undefined";
  if (Array.isArray(value)) return value.map(readable);
  if (value instanceof Map) return Object.fromEntries(Array.from(value, ([key, one]) => [keyText(key), readable(one)]));
  return value;
}

function keyText(key: unknown): string {
  return typeof key === "string" ? key : JSON.stringify(readable(key));
}

export async function cbor(bytes: Uint8Array): Promise<string> {
  const { decode } = await import("cborg");
  return JSON.stringify(readable(decode(bytes, { useMaps: true, allowUndefined: true, allowNaN: true, allowInfinity: true, tags: AS_THEY_ARE })), null, 2);
}

// Tags that are common: the content is shown, the tag is not lost.
const AS_THEY_ARE = Object.fromEntries(
  [0, 1, 2, 3, 21, 22, 23, 24, 32, 55799].map((tag) => [tag, (content: () => unknown) => (tag === 55799 ? content() : new Map([[`tag ${tag}`, content()]]))]),
);

/** What reads best at first: JSON where it is an object or an array, hex where it is no text. */
export function bestForm(bytes: Uint8Array): Form {
  const found = text(bytes.subarray(0, PART));
  if (!found.valid && bytes.length <= PART) return "hex";
  return /^\s*[[{]/.test(found.text) && bytes.length <= 1 << 20 && json(bytes) !== undefined ? "json" : "text";
}

function Visible({ text: shown }: { text: string }) {
  // Lines stay lines here; all else that cannot be seen is shown.
  return (
    <>
      {shown.split(/(\r?\n|\t)/).map((piece) =>
        /^(\r?\n|\t)$/.test(piece)
          ? piece
          : pieces(piece).map((one) => (one.hidden ? <span class="hidden-char">{one.text}</span> : one.text)),
      )}
    </>
  );
}

/** A payload as text, JSON, hex or CBOR. */
export function Payload({ bytes }: { bytes: Uint8Array }) {
  const best = useMemo(() => bestForm(bytes), [bytes]);
  const [chosen, setChosen] = useState<Form | undefined>(undefined);
  const [length, setLength] = useState(PART);
  const [decoded, setDecoded] = useState<{ text?: string; wrong?: string }>({});
  const form = chosen ?? best;

  useEffect(() => {
    if (form !== "cbor") return;
    let wanted = true;
    cbor(bytes).then(
      (found) => wanted && setDecoded({ text: found }),
      (error: unknown) => wanted && setDecoded({ wrong: `${texts.payload.notCbor}: ${error instanceof Error ? error.message : ""}` }),
    );
    return () => {
      wanted = false;
    };
  }, [form, bytes]);

  if (bytes.length === 0) return <p class="faint">{texts.payload.empty}</p>;
  const part = bytes.subarray(0, length);
  let shown = "";
  let note: string | undefined;
  let whole = bytes.length <= length;
  if (form === "hex") shown = hex(part);
  else if (form === "cbor") {
    shown = decoded.text ?? "";
    note = decoded.wrong;
    whole = true;
  } else if (form === "json") {
    const found = json(bytes);
    shown = found ?? "";
    whole = shown.length <= length;
    shown = shown.slice(0, length);
    if (found === undefined) note = texts.payload.notJson;
  } else {
    const found = text(part);
    shown = found.text;
    if (!found.valid && whole) note = texts.payload.notText;
  }
  const copy = (): void => void copyText(shown).then(() => toast(texts.payload.copied), toastError);
  return (
    <div class="payload">
      <div class="payload-tools">
        <span class="segmented" role="group" aria-label={texts.payload.label}>
          {FORMS.map((one) => (
            <button key={one} type="button" aria-pressed={one === form} onClick={() => setChosen(one)}>
              {texts.payload[one]}
            </button>
          ))}
        </span>
        <span class="faint small">{size(bytes.length)}</span>
        <button type="button" class="small" onClick={copy}>
          {texts.payload.copy}
        </button>
      </div>
      {note && <p class="wrong">{note}</p>}
      {shown && (
        <pre class="payload-text" tabIndex={0} dir="ltr">
          {form === "hex" ? shown : <Visible text={shown} />}
        </pre>
      )}
      {!whole && (
        <button type="button" class="small" onClick={() => setLength(length * 4)}>
          {texts.payload.cut(size(length), size(bytes.length))} {texts.payload.more}
        </button>
      )}
    </div>
  );
}
