import { Badge } from "../../components/basic";
import { Name, nameText } from "../../components/name";
import { compact } from "../../format";
import { link } from "../../router";
import { texts } from "../../texts/rules";
import { type Action, type Resource, type Rule, alive, resourceOf, total, underWay } from "./records";

function ResourceBox({ id, resources }: { id: string; resources: Resource[] | undefined }) {
  const resource = resources?.find((one) => one.id === id);
  return (
    <span class="flow-box flow-resource">
      <a href={link(["rules", "resources", id])}>
        <Name text={id} max={60} />
      </a>{" "}
      {resource ? (
        <Badge tone={alive(resource) ? "good" : "bad"}>{alive(resource) ? texts.flow.up : texts.flow.down}</Badge>
      ) : (
        <Badge>{texts.flow.unknown}</Badge>
      )}
    </span>
  );
}

function ActionRow({ action, resources }: { action: Action; resources: Resource[] | undefined }) {
  const resource = resourceOf(action);
  const failed = total(action.metrics, (one) => one.failed);
  const waiting = underWay(action);
  return (
    <li>
      <span class="flow-pair">
        <span class="flow-box">
          <strong>
            <Name text={action.name} />
          </strong>
          <span class="small">
            {texts.flow.success(compact(total(action.metrics, (one) => one.success)))}
            {failed > 0 && <span class="flow-bad">{texts.flow.failed(compact(failed))}</span>}
            {waiting > 0 && <span class="flow-wait">{texts.flow.waiting(compact(waiting))}</span>}
          </span>
        </span>
        {resource !== undefined && (
          <>
            <span class="faint" aria-hidden="true">
              →
            </span>
            <ResourceBox id={resource} resources={resources} />
          </>
        )}
      </span>
      {action.fallbacks.length > 0 && (
        <div class="flow-fallbacks">
          <span class="faint small">{texts.flow.fallbacks}</span>
          <ul>
            {action.fallbacks.map((one) => (
              <ActionRow key={one.id} action={one} resources={resources} />
            ))}
          </ul>
        </div>
      )}
    </li>
  );
}

/** Sources, the rule, its actions with their resources: lists that stand beside each other. */
export function Flow({ rule, resources, linked }: { rule: Rule; resources: Resource[] | undefined; linked?: boolean }) {
  return (
    <div class="flow" role="group" aria-label={texts.flow.label(nameText(rule.id, 60))}>
      <div>
        <ul aria-label={texts.flow.sources}>
          {rule.for.map((one) => (
            <li key={one}>
              <span class="flow-box">
                <Name text={one} max={60} />
              </span>
            </li>
          ))}
        </ul>
      </div>
      <div>
        <ul aria-label={texts.flow.rule}>
          <li>
            <span class="flow-box flow-rule">
              <strong>
                {linked ? (
                  <a href={link(["rules", "rule", rule.id])}>
                    <Name text={rule.id} max={60} />
                  </a>
                ) : (
                  <Name text={rule.id} max={60} />
                )}
              </strong>
              {rule.description && <Name text={rule.description} max={80} />}
              <span class="small">{texts.flow.matched(compact(total(rule.metrics, (one) => one.matched)))}</span>
            </span>
          </li>
        </ul>
      </div>
      <div>
        <ul aria-label={texts.flow.actions}>
          {rule.actions.map((one) => (
            <ActionRow key={one.id} action={one} resources={resources} />
          ))}
          {rule.actions.length === 0 && (
            <li>
              <span class="faint">{texts.flow.noAction}</span>
            </li>
          )}
        </ul>
      </div>
    </div>
  );
}
