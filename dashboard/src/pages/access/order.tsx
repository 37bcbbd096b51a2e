import { api } from "../../api";
import { useData } from "../../hooks";
import { link } from "../../router";
import { texts } from "../../texts/access";
import { KINDS, type Kind } from "./rule_lines";

interface Sources {
  sources: { source: string; authorizes: number | null }[];
}

/** What is asked about a message, in order: the first that has a matching rule decides. */
export function Order({ here }: { here: Kind }) {
  const { data } = useData((signal) => api.get<Sources[]>("/access/sources", {}, signal), []);
  const sources = (data?.[0]?.sources ?? []).filter((one) => one.authorizes !== null).sort((a, b) => (a.authorizes ?? 0) - (b.authorizes ?? 0));
  if (!data) return <p class="order" />;
  return (
    <>
      <ol class="order" aria-label={texts.rules.orderLabel}>
        {sources.map(({ source }) =>
          source === "stored" ? (
            KINDS.map((kind) => (
              <li key={kind}>
                <a href={link(["access", "rules"], { kind: kind === "username" ? undefined : kind })} aria-current={kind === here ? "true" : undefined}>
                  {texts.rules.kinds[kind]}
                </a>
              </li>
            ))
          ) : (
            <li key={source}>{source === "configuration" ? <code>{"[[access.rules]]"}</code> : <code>{source}</code>}</li>
          ),
        )}
        <li>
          <code>{"access.no_match"}</code>
        </li>
      </ol>
      {!sources.some(({ source }) => source === "stored") && <p class="panel warn">{texts.rules.notAsked}</p>}
    </>
  );
}
