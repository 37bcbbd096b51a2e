/** Filters of a list, each in the address under its name. */

import { useQuery, useTyped } from "../hooks";
import { toField } from "../range";

export function TypedFilter(props: { name: string; title: string; numeric?: boolean; search?: boolean; placeholder?: string }) {
  const { value, onInput } = useTyped(props.name);
  return (
    <label>
      {props.title}
      <input
        type="search"
        data-search={props.search ? "" : undefined}
        class={props.search ? "search" : ""}
        inputMode={props.numeric ? ("numeric" as const) : ("search" as const)}
        placeholder={props.placeholder}
        value={value}
        onInput={onInput}
        autocomplete="off"
        spellcheck={false}
      />
    </label>
  );
}

export function ChosenFilter(props: { name: string; title: string; any: string; options: readonly string[]; titles?: Record<string, string> }) {
  const [value, set] = useQuery(props.name);
  return (
    <label>
      {props.title}
      <select aria-label={props.title} value={value} onChange={(event) => set(event.currentTarget.value)}>
        <option value="">{props.any}</option>
        {props.options.map((one) => (
          <option key={one} value={one}>
            {props.titles?.[one] ?? one}
          </option>
        ))}
      </select>
    </label>
  );
}

/** In the address in Unix seconds. */
export function TimeFilter({ name, title }: { name: string; title: string }) {
  const [value, set] = useQuery(name);
  return (
    <label>
      {title}
      <input
        type="datetime-local"
        step="1"
        value={/^\d+$/.test(value) ? toField(Number(value) * 1_000) : ""}
        onChange={(event) => {
          const at = Date.parse(event.currentTarget.value);
          set(Number.isNaN(at) ? "" : String(Math.floor(at / 1_000)));
        }}
      />
    </label>
  );
}
