import { useState } from "preact/hooks";
import { api } from "../../api";
import { Badge, Facts, Section } from "../../components/basic";
import { type Field, Form, type Values } from "../../components/form";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { useData } from "../../hooks";
import { texts } from "../../texts/access";
import { texts as common } from "../../texts/common";

interface Answer {
  allowed: boolean;
  clientid: string;
  username: string | null;
  proved_by: string;
  reason: string;
  reason_code: number;
  setting: string;
  is_superuser: boolean;
  anonymous: boolean;
  steps: { authenticator: string; outcome: "allow" | "deny" | "pass"; detail: string; setting: string }[];
}

const { fields: words, kinds } = texts.login;
const SCRAM = "SCRAM-SHA-256";

/** What the API is asked. */
export function loginBody({ kind, ...values }: Values): Values {
  return kind === "scram" ? { ...values, authentication_method: SCRAM } : values;
}

const byScram = (values: Values): boolean => values["kind"] === "scram";
const wantedByScram = (value: unknown, values: Values): string | undefined =>
  byScram(values) && value === undefined ? common.form.required : undefined;

export function TryLogin() {
  const [answer, setAnswer] = useState<Answer | undefined>(undefined);
  const listeners = useData(
    async (signal) => {
      const nodes = await api.get<{ listeners: { identifier: string }[] }[]>("/listeners", {}, signal);
      return [...new Set(nodes.flatMap((node) => node.listeners.map((one) => one.identifier)))].filter((name) => name.startsWith("mqtt"));
    },
    [],
  );
  const fields: Field[] = [
    {
      name: "kind",
      type: "choice",
      title: words.kind,
      required: true,
      otherwise: "password",
      options: Object.entries(kinds).map(([value, title]) => ({ value, title })),
    },
    { name: "clientid", type: "text", title: words.clientid },
    {
      name: "certificate",
      type: "multiline",
      title: words.certificate,
      description: words.certificateAbout,
      placeholder: "-----BEGIN CERTIFICATE-----",
      required: true,
      when: (values) => values["kind"] === "certificate",
    },
    {
      name: "cert_common_name",
      type: "text",
      title: words.commonName,
      description: words.namesAbout,
      when: (values) => values["kind"] === "names",
      check: (value, values) => (value === undefined && values["cert_subject"] === undefined ? words.oneName : undefined),
    },
    { name: "cert_subject", type: "text", title: words.subject, placeholder: "CN=pump-7,O=Example", when: (values) => values["kind"] === "names" },
    { name: "username", type: "text", title: words.username, check: wantedByScram },
    { name: "password", type: "password", title: words.password, check: wantedByScram },
    {
      name: "listener",
      type: "choice",
      title: words.listener,
      description: words.listenerAbout,
      options: (listeners.data ?? []).map((value) => ({ value, title: value })),
      rare: true,
    },
    { name: "address", type: "text", title: words.address, rare: true },
    {
      name: "protocol",
      type: "choice",
      title: words.protocol,
      required: true,
      otherwise: "5.0",
      options: ["3.1", "3.1.1", "5.0"].map((value) => ({ value, title: value })),
      rare: true,
      when: (values) => !byScram(values),
    },
  ];
  const yes = (value: boolean): string => (value ? texts.login.yes : texts.login.no);
  return (
    <>
      <p class="faint">{texts.login.about}</p>
      <Form
        fields={fields}
        submit={texts.login.try}
        onSubmit={async (values) => {
          setAnswer(undefined);
          setAnswer(await api.post<Answer>("/access/try_login", loginBody(values)));
        }}
      />
      {answer && (
        <>
          <div class={`panel ${answer.allowed ? "good" : "bad"}`} role="status">
            <strong>{answer.allowed ? texts.login.allowed : texts.login.denied}</strong>
            <p>
              <Name text={answer.reason} max={400} />
            </p>
          </div>
          <Section title={texts.login.steps}>
            <Facts
              rows={[
                [texts.login.clientid, <Name text={answer.clientid} />],
                [texts.login.username, <Name text={answer.username} />],
                [texts.login.provedBy, <Name text={answer.proved_by || null} />],
                [texts.login.setting, <Name text={answer.setting || null} />],
                [texts.login.code, `0x${answer.reason_code.toString(16).padStart(2, "0")}`],
                [texts.login.superuser, yes(answer.is_superuser)],
                [texts.login.anonymous, yes(answer.anonymous)],
              ]}
            />
            <Table
              id="login-steps"
              label={texts.login.steps}
              rows={answer.steps.map((step, index) => ({ ...step, index }))}
              rowKey={(step) => String(step.index)}
              columns={[
                { key: "authenticator", title: texts.login.columns.authenticator, fixed: true, render: (step) => <Name text={step.authenticator} /> },
                {
                  key: "outcome",
                  title: texts.login.columns.outcome,
                  render: (step) => (
                    <Badge tone={step.outcome === "allow" ? "good" : step.outcome === "deny" ? "bad" : "plain"}>{texts.login.outcomes[step.outcome]}</Badge>
                  ),
                },
                { key: "detail", title: texts.login.columns.detail, render: (step) => <Name text={step.detail} max={400} /> },
                { key: "setting", title: texts.login.columns.setting, render: (step) => <Name text={step.setting || null} /> },
              ]}
            />
          </Section>
        </>
      )}
    </>
  );
}
