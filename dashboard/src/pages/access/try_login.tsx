import { useState } from "preact/hooks";
import { api } from "../../api";
import { Badge, Facts, Section } from "../../components/basic";
import { type Field, Form } from "../../components/form";
import { Name } from "../../components/name";
import { Table } from "../../components/table";
import { useData } from "../../hooks";
import { texts } from "../../texts/access";

interface Answer {
  allowed: boolean;
  reason: string;
  reason_code: number;
  setting: string;
  is_superuser: boolean;
  anonymous: boolean;
  steps: { authenticator: string; outcome: "allow" | "deny" | "pass"; detail: string; setting: string }[];
}

const { fields: words } = texts.login;

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
    { name: "clientid", type: "text", title: words.clientid },
    { name: "username", type: "text", title: words.username },
    { name: "password", type: "password", title: words.password },
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
          setAnswer(await api.post<Answer>("/access/try_login", values));
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
                    <Badge tone={step.outcome === "allow" ? "good" : step.outcome === "deny" ? "bad" : "plain"}>{step.outcome}</Badge>
                  ),
                },
                { key: "detail", title: texts.login.columns.detail, render: (step) => <Name text={step.detail} max={300} /> },
                { key: "setting", title: texts.login.columns.setting, render: (step) => <Name text={step.setting || null} /> },
              ]}
            />
          </Section>
        </>
      )}
    </>
  );
}
