/** Filters, order and page size of a list under a name, in this browser. */

import { useState } from "preact/hooks";
import { link, place } from "../router";
import { remember, remembered } from "../storage";
import { texts } from "../texts/common";
import { Name } from "./name";

interface View {
  name: string;
  query: Record<string, string>;
}

const MOST = 50;
const LONGEST = 60;

function read(id: string): View[] {
  try {
    const found: unknown = JSON.parse(remembered(`taipan.views.${id}`) ?? "[]");
    if (!Array.isArray(found)) return [];
    return found.filter((one): one is View => typeof one?.name === "string" && typeof one?.query === "object" && one.query !== null);
  } catch {
    return [];
  }
}

export function Views({ id }: { id: string }) {
  const [views, setViews] = useState(() => read(id));
  const { path, query } = place.value;
  const keep = (next: View[]): void => {
    remember(`taipan.views.${id}`, next.length === 0 ? null : JSON.stringify(next));
    setViews(next);
  };
  const save = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const name = String(new FormData(form).get("name") ?? "").trim().slice(0, LONGEST);
    if (name === "") return;
    const { page, ...kept } = query;
    keep([...views.filter((one) => one.name !== name), { name, query: kept }].slice(-MOST));
    form.reset();
  };
  return (
    <details class="drop views">
      <summary>{views.length > 0 ? texts.views.some(views.length) : texts.views.title}</summary>
      <div class="popup">
        {views.map((one) => (
          <div key={one.name} class="view">
            <a href={link(path, one.query)}>
              <Name text={one.name} />
            </a>
            <button type="button" class="icon" aria-label={texts.views.remove(one.name)} onClick={() => keep(views.filter((other) => other !== one))}>
              ×
            </button>
          </div>
        ))}
        <form onSubmit={save} class="with-button">
          <input name="name" aria-label={texts.views.name} placeholder={texts.views.name} maxLength={LONGEST} autocomplete="off" required />
          <button type="submit">{texts.views.save}</button>
        </form>
      </div>
    </details>
  );
}
