/** Filters of a list, each in the address under its name. */

import { useQuery, useTyped } from "../hooks";

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
