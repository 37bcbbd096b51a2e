/** Where alarms are sent, and which are kept back for a time. */

import { useState } from "preact/hooks";
import { type Json, api, part } from "../../api";
import { nodeNow } from "../../clock";
import { Badge, Change, Empty, Section } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { type Field, Form, type Values } from "../../components/form";
import { Name, nameText } from "../../components/name";
import { Table } from "../../components/table";
import { TimeAgo } from "../../components/time";
import { attempt, toast } from "../../components/toast";
import { number } from "../../format";
import { useData } from "../../hooks";
import { useKey } from "../../keys";
import { place, setQuery } from "../../router";
import { texts } from "../../texts/trouble";
import { localInput, overall, type Silence, type Target, targetBody, type Threshold } from "./notices";

const T = texts.targets;
const EMAIL = (values: Values): boolean => values["type"] === "email";
const HOOK = (values: Values): boolean => values["type"] === "webhook";
const TOPIC = (values: Values): boolean => values["type"] === "mqtt";
const TLS = (values: Values): boolean => HOOK(values) || (EMAIL(values) && values["security"] !== "none");
const LOGIN = (values: Values): boolean => EMAIL(values) && values["security"] !== "none";

function fieldsOf(target: Target | undefined): Field[] {
  const options = (names: Record<string, string>): { value: string; title: string }[] =>
    Object.entries(names).map(([value, title]) => ({ value, title }));
  const type: Field = { name: "type", type: "choice", title: T.fields.type, required: true, otherwise: "webhook", options: options(T.types) };
  return [
    ...(target
      ? [{ ...type, options: options(T.types).filter((one) => one.value === target.type) }]
      : [{ name: "id", type: "text", title: T.fields.id, description: T.fields.idAbout, required: true } satisfies Field, type]),
    { name: "url", type: "text", title: T.fields.url, required: true, when: HOOK, placeholder: "https://" },
    { name: "headers", type: "map", title: T.fields.headers, when: HOOK },
    { name: "host", type: "text", title: T.fields.host, required: true, when: EMAIL, placeholder: "smtp.example.com" },
    { name: "security", type: "choice", title: T.fields.security, required: true, otherwise: "starttls", options: options(T.security), when: EMAIL },
    { name: "port", type: "number", title: T.fields.port, required: true, otherwise: 587, min: 1, max: 65_535, when: EMAIL },
    { name: "username", type: "text", title: T.fields.username, when: LOGIN },
    { name: "password", type: "password", title: T.fields.password, when: LOGIN },
    { name: "sender", type: "text", title: T.fields.sender, required: true, when: EMAIL, placeholder: "taipan@example.com" },
    { name: "recipients", type: "list", title: T.fields.recipients, required: true, when: EMAIL },
    { name: "topic", type: "text", title: T.fields.topic, required: true, when: TOPIC },
    { name: "qos", type: "choice", title: T.fields.qos, required: true, otherwise: "1", options: options({ "0": "0", "1": "1", "2": "2" }), when: TOPIC },
    { name: "retain", type: "switch", title: T.fields.retain, when: TOPIC },
    { name: "alarms", type: "list", title: T.fields.alarms, description: T.fields.alarmsAbout, otherwise: ["*"], required: true },
    { name: "enabled", type: "switch", title: T.fields.enabled, otherwise: true },
    { name: "verify", type: "switch", title: T.fields.verify, otherwise: true, rare: true, when: TLS },
    { name: "cacertfile", type: "text", title: T.fields.authorities, description: T.fields.authoritiesAbout, rare: true, when: TLS },
  ];
}

const TONES = { ready: "good", sending: "good", failing: "bad", disabled: "plain" } as const;

/** The form of a silence opens with `?silence=<pattern>`; the list of alarms sends here with it. */
export function Targets() {
  const { data, error, reload } = useData((signal) => api.get<Target[]>("/alarm_targets", {}, signal), [], 5_000);
  const [editing, setEditing] = useState<{ target: Target | undefined } | undefined>(undefined);
  const begin = (): void => setEditing({ target: undefined });
  useKey("n", T.new, begin);
  if (!data) return error ? <ErrorPanel error={error} retry={reload} /> : null;
  const close = (): void => {
    setEditing(undefined);
    reload();
  };
  const submit = async (values: Values): Promise<void> => {
    const target = editing?.target;
    if (target) await api.put(`/alarm_targets/${part(target.id)}`, targetBody(values));
    else await api.post("/alarm_targets", { id: String(values["id"]), type: String(values["type"]), ...targetBody(values) });
    toast(T.saved);
    close();
  };
  const test = async (target: Target): Promise<void> => {
    await attempt(async () => {
      const { warning } = await api.post<{ warning: string }>(`/alarm_targets/${part(target.id)}/test`, {});
      toast(warning === "" ? T.tested(nameText(target.id, 40)) : warning);
    });
    reload();
  };
  const remove = async (target: Target): Promise<void> => {
    const done = await confirm({
      title: T.removeTitle,
      hits: [target.id],
      text: T.removeText,
      action: T.remove,
      work: () => api.del(`/alarm_targets/${part(target.id)}`),
    });
    if (done) toast(T.removed);
    reload();
  };
  const target = editing?.target;
  const values: Values = target
    ? { type: target.type, alarms: target.alarms, enabled: target.enabled, ...(target.config as Record<string, Json>) }
    : {};
  return (
    <>
      {editing && (
        <Dialog title={target ? T.changeTitle(nameText(target.id, 40)) : T.new} onClose={close}>
          <Form fields={fieldsOf(target)} values={values} onSubmit={submit} onCancel={close} />
        </Dialog>
      )}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Section title={T.title}>
        <Table
          id="alarm-targets"
          label={T.title}
          rows={data}
          rowKey={(one) => one.id}
          tools={
            <Change kind="primary" onClick={begin} title="n">
              {T.new}
            </Change>
          }
          columns={[
            { key: "id", title: T.columns.id, fixed: true, sort: (one) => one.id, render: (one) => <Name text={one.id} /> },
            { key: "type", room: "medium", title: T.columns.type, sort: (one) => one.type, render: (one) => T.types[one.type] ?? one.type },
            { key: "alarms", room: "wide", title: T.columns.alarms, render: (one) => <Name text={one.alarms.join(", ")} /> },
            {
              key: "state",
              title: T.columns.state,
              sort: (one) => overall(one).state,
              render: (one) => <Badge tone={TONES[overall(one).state]}>{T.states[overall(one).state]}</Badge>,
            },
            { key: "sent", right: true, room: "wide", title: T.columns.sent, render: (one) => number(overall(one).sent) },
            { key: "waiting", right: true, room: "medium", title: T.columns.waiting, render: (one) => number(overall(one).waiting) },
            { key: "dropped", right: true, room: "wide", off: true, title: T.columns.dropped, render: (one) => number(overall(one).dropped) },
            {
              key: "error",
              room: "medium",
              title: T.columns.error,
              render: (one) => {
                const { error: why, errorAt } = overall(one);
                return why === "" ? <span class="faint">–</span> : <><Name text={why} max={200} /> <span class="faint small"><TimeAgo at={errorAt} /></span></>;
              },
            },
            {
              key: "act",
              title: "",
              fixed: true,
              render: (one) => (
                <span class="actions">
                  <Change onClick={() => void test(one)}>{T.test}</Change>
                  <Change onClick={() => setEditing({ target: one })}>{T.change}</Change>
                  <Change kind="danger" onClick={() => void remove(one)}>
                    {T.remove}
                  </Change>
                </span>
              ),
            },
          ]}
          empty={
            <Empty title={T.none}>
              <p>{T.noneText}</p>
            </Empty>
          }
        />
      </Section>
      <Silences />
      <Thresholds />
    </>
  );
}

const SILENCE: Field[] = [
  { name: "alarms", type: "text", title: T.silences.fields.alarms, description: T.silences.fields.alarmsAbout, required: true },
  {
    name: "until",
    type: "text",
    title: T.silences.fields.until,
    required: true,
    control: ({ id, value, onValue, invalid }) => (
      <input id={id} type="datetime-local" value={value} aria-invalid={invalid || undefined} aria-required onInput={(event) => onValue(event.currentTarget.value)} />
    ),
  },
  { name: "reason", type: "text", title: T.silences.fields.reason },
];

function Silences() {
  const { data, error, reload } = useData((signal) => api.get<Silence[]>("/alarm_silences", {}, signal), [], 10_000);
  const asked = place.value.query["silence"];
  const close = (): void => {
    setQuery({ silence: undefined }, true);
    reload();
  };
  const add = async ({ until, ...values }: Values): Promise<void> => {
    await api.post("/alarm_silences", { ...values, until: Math.ceil(new Date(String(until)).getTime() / 1000) });
    toast(T.silences.added);
    close();
  };
  const end = async (silence: Silence): Promise<void> => {
    await attempt(() => api.del(`/alarm_silences/${part(silence.id)}`), T.silences.ended);
    reload();
  };
  return (
    <Section title={T.silences.title}>
      {asked !== undefined && (
        <Dialog title={T.silences.new} onClose={close}>
          <Form
            operates
            fields={SILENCE}
            values={{ alarms: asked === "" ? "*" : asked, until: localInput(nodeNow() + 3_600_000) }}
            submit={T.silences.new}
            onSubmit={add}
            onCancel={close}
          />
        </Dialog>
      )}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="alarm-silences"
        label={T.silences.title}
        rows={data ?? []}
        rowKey={(one) => one.id}
        tools={<Change operates onClick={() => setQuery({ silence: "*" }, true)}>{T.silences.new}</Change>}
        columns={[
          { key: "alarms", title: T.silences.columns.alarms, fixed: true, render: (one) => <Name text={one.alarms} /> },
          { key: "until", title: T.silences.columns.until, render: (one) => <TimeAgo at={one.until} /> },
          { key: "reason", room: "medium", title: T.silences.columns.reason, render: (one) => <Name text={one.reason || null} /> },
          { key: "by", room: "medium", title: T.silences.columns.by, render: (one) => <Name text={one.created_by || null} /> },
          { key: "act", title: "", fixed: true, render: (one) => <Change operates onClick={() => void end(one)}>{T.silences.end}</Change> },
        ]}
        empty={<Empty title={T.silences.none} />}
      />
    </Section>
  );
}

function Thresholds() {
  const { data, error, reload } = useData((signal) => api.get<Threshold[]>("/alarm_thresholds", {}, signal), [], 10_000);
  const [editing, setEditing] = useState<Threshold | undefined>(undefined);
  const { thresholds } = T;
  const close = (): void => {
    setEditing(undefined);
    reload();
  };
  const submit = async ({ value }: Values): Promise<void> => {
    await api.put(`/alarm_thresholds/${part(editing?.name ?? "")}`, { value: value === undefined ? null : Number(value) });
    toast(thresholds.saved);
    close();
  };
  const amount = (one: Threshold, value: number | null): string =>
    value === null ? "–" : `${number(value)}${one.unit === "" ? "" : one.unit === "%" ? " %" : ` ${thresholds.units[one.unit] ?? one.unit}`}`;
  return (
    <Section title={thresholds.title}>
      {editing && (
        <Dialog title={thresholds.names[editing.name] ?? editing.name} onClose={close}>
          <Form
            fields={[{
              name: "value",
              type: "number",
              title: editing.below ? thresholds.below : thresholds.above,
              description: thresholds.about(thresholds.units[editing.unit] ?? editing.unit),
              min: 0,
            }]}
            values={editing.value === null ? {} : { value: editing.value }}
            onSubmit={submit}
            onCancel={close}
          />
        </Dialog>
      )}
      {error && <ErrorPanel error={error} retry={reload} />}
      <Table
        id="alarm-thresholds"
        label={thresholds.title}
        rows={data ?? []}
        rowKey={(one) => one.name}
        columns={[
          { key: "name", title: thresholds.columns.name, fixed: true, render: (one) => thresholds.names[one.name] ?? one.name },
          {
            key: "value",
            title: thresholds.columns.value,
            render: (one) =>
              one.value === null ? <span class="faint">{thresholds.off}</span> : `${one.below ? thresholds.below : thresholds.above} ${amount(one, one.value)}`,
          },
          { key: "current", right: true, title: thresholds.columns.current, render: (one) => amount(one, one.current) },
          { key: "act", title: "", fixed: true, render: (one) => <Change onClick={() => setEditing(one)}>{T.change}</Change> },
        ]}
      />
    </Section>
  );
}
