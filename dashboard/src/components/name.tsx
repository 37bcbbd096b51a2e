import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { number } from "../format";
import { texts } from "../texts/common";
import { cut, pieces, visible } from "../visible";

const SHOWN = 120;
/** Up to so many characters a name stands in one line. */
const SHORT = 24;

/** A long topic or name is broken behind a level or a part, where it can be; sentences are, between words. */
function broken(text: string): ComponentChildren {
  if (text.length <= SHORT) return text;
  return text.split(text.includes(" ") ? /(?<=\/)/ : /(?<=[/._])/).map((part, index) => (index === 0 ? part : [<wbr />, part]));
}

/**
 * Text that comes from strangers: client ids, topics, user names. Control characters and marks of direction are made
 * visible, its direction ends with it, and what is very long is cut with the whole on demand.
 */
export function Name({ text, max = SHOWN }: { text: string | null | undefined; max?: number }) {
  // Which text is shown whole: this may become the name of something else.
  const [opened, setOpened] = useState<string | undefined>(undefined);
  const whole = opened === text;
  if (text === null || text === undefined) return <span class="faint">–</span>;
  if (text === "") return <span class="faint">{texts.name.empty}</span>;
  const long = text.length > max;
  const part = long && !whole ? cut(text, max) : text;
  return (
    <span class={part.length > SHORT ? "name" : "name short"}>
      <bdi>
        {pieces(part).map((piece) => (piece.hidden ? <span class="hidden-char">{piece.text}</span> : broken(piece.text)))}
      </bdi>
      {long && (
        <button
          type="button"
          class="name-more"
          aria-expanded={whole}
          title={texts.name.more(number(text.length))}
          onClick={(event) => {
            event.preventDefault();
            event.stopPropagation();
            setOpened(whole ? undefined : text);
          }}
        >
          {whole ? texts.name.less : `… ${number(text.length)}`}
        </button>
      )}
    </span>
  );
}

/** The same for a place that takes plain text only: a title, an option, an aria-label. */
export function nameText(text: string, max = SHOWN): string {
  return visible(text.length > max ? `${cut(text, max)}…` : text);
}
