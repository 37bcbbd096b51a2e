import { useState } from "preact/hooks";
import { api } from "../../api";
import { Change } from "../../components/basic";
import { fieldsOf, paramsOf, textOf, valuesOf } from "../../components/catalogue";
import { Dialog } from "../../components/dialog";
import { type Field, Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { useData } from "../../hooks";
import { texts } from "../../texts/rules";
import { paramText } from "./one";
import { type ActionType, type GivenAction, RESOURCE, type Resource } from "./records";
import { ResourceDialog } from "./resources";

function fieldsFor(type: ActionType, given: GivenAction | undefined, resources: Resource[]): Field[] {
  const offered = resources.filter((one) => type.types.includes(one.type));
  return fieldsOf(type.params, given?.params).map((field) =>
    field.name !== RESOURCE
      ? field
      : {
          ...field,
          type: "choice",
          options: offered.map(({ id, description }) => ({
            value: id,
            title: nameText(description ? `${id}: ${description}` : id),
          })),
          description: offered.length === 0 ? texts.action.noResource : field.description,
        },
  );
}

/** An action and its parameters, with a resource to choose or to make. */
function ActionDialog(props: { types: ActionType[]; action: GivenAction | undefined; onClose: (action?: GivenAction) => void }) {
  const { types, action, onClose } = props;
  const [name, setName] = useState(action?.name);
  const [made, setMade] = useState<string | undefined>(undefined);
  const [making, setMaking] = useState(false);
  // What is typed is kept while a new resource is made, which begins the form anew.
  const [typed, setTyped] = useState<Values>({});
  const resources = useData((signal) => api.get<Resource[]>("/resources", {}, signal), [made]);
  const type = types.find((one) => one.name === name);
  const choice: Field = {
    name: "@name",
    type: "choice",
    title: texts.action.name,
    required: true,
    description: type && textOf(type.description),
    options: types.map((one) => ({ value: one.name, title: textOf(one.title) || one.name })),
  };
  const submit = async (values: Values): Promise<void> => {
    if (!type) return;
    const known = paramsOf(type.params, values);
    // Parameters that the catalogue does not know stay as they are.
    const others = action?.name === type.name ? Object.entries(action.params).filter(([key]) => !(key in type.params)) : [];
    onClose({ name: type.name, params: { ...Object.fromEntries(others), ...known }, fallbacks: action?.fallbacks ?? [] });
  };
  if (!resources.data) return null;
  const known = made === undefined || resources.data.some((one) => one.id === made);
  return (
    <Dialog title={action ? texts.action.change : texts.action.new} onClose={() => onClose()} wide>
      {making && type && (
        <ResourceDialog
          only={type.types}
          onClose={(id) => {
            setMaking(false);
            if (id !== undefined) setMade(id);
          }}
        />
      )}
      <Form
        key={known ? made : undefined}
        fields={[choice, ...(type ? fieldsFor(type, action, resources.data) : [])]}
        values={{
          ...(type && action?.name === type.name ? valuesOf(type.params, action.params) : {}),
          ...(made === undefined ? {} : typed),
          ...(made !== undefined && known ? { [RESOURCE]: made } : {}),
          "@name": name,
        }}
        onChange={(values) => {
          setTyped(values);
          const chosen = values["@name"];
          if (typeof chosen === "string") setName(chosen);
        }}
        submit={texts.action.take}
        onSubmit={submit}
        onCancel={() => onClose()}
      >
        {type && type.types.length > 0 && (
          <div>
            <Change onClick={() => setMaking(true)}>{texts.action.newResource}</Change>
          </div>
        )}
      </Form>
    </Dialog>
  );
}

interface ListProps {
  types: ActionType[];
  actions: GivenAction[];
  onActions: (actions: GivenAction[]) => void;
  /** The words on the button that adds one. */
  add: string;
}

/** The actions of a rule, or the fallbacks of an action, in their order. */
export function ActionList({ types, actions, onActions, add }: ListProps) {
  const [editing, setEditing] = useState<number | undefined>(undefined);
  const titleOf = (name: string): string => textOf(types.find((one) => one.name === name)?.title) || name;
  const put = (at: number, action: GivenAction): void => onActions([...actions.slice(0, at), action, ...actions.slice(at + 1)]);
  const move = (at: number): void => {
    const next = [...actions];
    const [one] = next.splice(at, 1);
    if (one) next.splice(at - 1, 0, one);
    onActions(next);
  };
  return (
    <>
      {editing !== undefined && (
        <ActionDialog
          types={types}
          action={actions[editing]}
          onClose={(action) => {
            if (action) put(editing, action);
            setEditing(undefined);
          }}
        />
      )}
      <ol class="action-list">
        {actions.map((action, at) => {
          const of = types.find((one) => one.name === action.name);
          return (
            <li key={at}>
              <div class="row">
                <strong>
                  <Name text={titleOf(action.name)} />
                </strong>
                <span class="actions">
                  {at > 0 && <Change onClick={() => move(at)}>{texts.editor.up}</Change>}
                  <Change aria-label={texts.editor.changeAction(titleOf(action.name))} onClick={() => setEditing(at)}>
                    {texts.common.change}
                  </Change>
                  <Change
                    aria-label={texts.editor.removeAction(titleOf(action.name))}
                    onClick={() => onActions(actions.filter((_, index) => index !== at))}
                  >
                    ×
                  </Change>
                </span>
              </div>
              <dl>
                {Object.entries(action.params)
                  .filter(([, value]) => value !== "")
                  .map(([name, value]) => (
                    <>
                      <dt>{textOf(of?.params[name]?.title) || name}</dt>
                      <dd>
                        <Name text={paramText(value)} />
                      </dd>
                    </>
                  ))}
              </dl>
              {action.fallbacks.length > 0 && <p class="faint small">{texts.editor.fallbacks}</p>}
              <ActionList
                types={types}
                actions={action.fallbacks}
                onActions={(fallbacks) => put(at, { ...action, fallbacks })}
                add={texts.editor.addFallback}
              />
            </li>
          );
        })}
      </ol>
      <Change onClick={() => setEditing(actions.length)}>{add}</Change>
    </>
  );
}
