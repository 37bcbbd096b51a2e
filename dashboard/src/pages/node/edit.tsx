import { useState } from "preact/hooks";
import { api, part } from "../../api";
import { Dialog } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { toast } from "../../components/toast";
import { texts as common } from "../../texts/common";
import { texts } from "../../texts/node";
import { type ConfigurationFile, type Difference, MASK, fieldsOf, valueFor } from "./change";
import type { Setting } from "./settings";

/** Change a setting: first its value, then what that does to the file. `several`: the cluster has other nodes. */
export function EditSetting(props: { setting: Setting; file: ConfigurationFile; several: boolean; onClose: () => void; onDone: () => void }) {
  const { setting, file, several, onClose, onDone } = props;
  const { edit } = texts.configuration;
  const [seen, setSeen] = useState<Difference | undefined>(undefined);
  const [typed, setTyped] = useState<Values>({ value: setting.value === MASK ? undefined : (setting.value ?? undefined) });
  const put = (version: string, dryRun: boolean, values: Values): Promise<Difference> =>
    api.put<Difference>(`/nodes/${part(file.node)}/configuration`, {
      changes: [{ key: setting.key, value: valueFor(setting, values) }],
      version,
      dry_run: dryRun,
    });
  const preview = async (values: Values): Promise<void> => {
    setTyped(values);
    setSeen(await put("", true, values));
  };
  return (
    <Dialog title={edit.title(setting.key)} onClose={onClose} wide>
      <p class="faint">
        {several ? edit.ofNode(nameText(file.node)) : edit.of} <code><Name text={file.file} /></code>
      </p>
      {seen === undefined ? (
        <Form fields={fieldsOf(setting)} values={typed} submit={edit.preview} onSubmit={preview} onCancel={onClose} />
      ) : (
        <Preview
          setting={setting}
          seen={seen}
          save={async () => {
            await put(seen.version, false, typed);
            toast(edit.saved);
            onDone();
          }}
          again={() => preview(typed)}
          back={() => setSeen(undefined)}
        />
      )}
    </Dialog>
  );
}

function Preview(props: { setting: Setting; seen: Difference; save: () => Promise<void>; again: () => Promise<void>; back: () => void }) {
  const { setting, seen, save, again, back } = props;
  const { edit } = texts.configuration;
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | undefined>(undefined);
  const attempt = async (work: () => Promise<void>): Promise<void> => {
    setBusy(true);
    setError(undefined);
    try {
      await work();
    } catch (failure) {
      setError(failure instanceof Error ? failure : new Error(String(failure)));
    } finally {
      setBusy(false);
    }
  };
  const others = seen.changed.filter((one) => one.key !== setting.key);
  return (
    <>
      {seen.diff === "" ? (
        <p>{edit.same}</p>
      ) : (
        <pre class="log diff" tabIndex={0} aria-label={edit.difference}>
          {seen.diff.split("\n").map((line, index) => (
            <span key={index} class={line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : ""}>
              {line}
              {"\n"}
            </span>
          ))}
        </pre>
      )}
      {others.length > 0 && (
        <>
          <p>{edit.others}</p>
          <ul class="hits" tabIndex={0} aria-label={edit.others}>
            {others.map((one) => (
              <li key={one.key}>
                <code>
                  <Name text={`${one.key}: ${JSON.stringify(one.before)} → ${JSON.stringify(one.after)}`} max={200} />
                </code>
              </li>
            ))}
          </ul>
        </>
      )}
      {error && <ErrorPanel error={error} title={common.errors.title} retry={() => void attempt(again)} />}
      <footer>
        <button type="button" onClick={back} disabled={busy}>
          {edit.back}
        </button>
        <button type="button" class="primary" onClick={() => void attempt(save)} disabled={busy || (seen.diff === "" && seen.changed.length === 0)}>
          {busy ? common.form.busy : edit.save}
        </button>
      </footer>
    </>
  );
}
