/** What an operator may order about a client. */


import { useState } from "preact/hooks";
import { ApiError, api, part } from "../../api";
import { nodeNow } from "../../clock";
import { Change } from "../../components/basic";
import { Dialog, confirm } from "../../components/dialog";
import { type Field, Form } from "../../components/form";
import { Menu } from "../../components/menu";
import { nameText } from "../../components/name";
import { toast } from "../../components/toast";
import { go } from "../../router";
import { login } from "../../session";
import { texts } from "../../texts/clients";
import { type Client, userOf, withoutMountpoint } from "./record";

async function kick(id: string, onDone: () => void): Promise<void> {
  const done = await confirm({
    title: texts.kick.title,
    hits: [id],
    text: texts.kick.text,
    action: texts.kick.action,
    work: () => api.del(`/clients/${part(id)}`),
  });
  if (!done) return;
  toast(texts.kick.done);
  onDone();
}

/** What can be done with a client of the list. */
export function ClientMenu({ id, onDone }: { id: string; onDone: () => void }) {
  return (
    <Menu
      label={texts.kick.menu(nameText(id, 60))}
      items={[
        { title: texts.kick.open, act: () => go(["clients", id]), reads: true },
        { title: texts.kick.trace, act: () => go(["trouble", "traces"], { new: 1, type: "clientid", clientid: id }) },
        { title: `${texts.kick.action}…`, act: () => void kick(id, onDone), danger: true, operates: true },
      ]}
    />
  );
}

/** So many requests beside each other. */
const BESIDE = 4;
/** The code of the API for a client that is neither connected nor has a session. */
const GONE = 112;

/** End these clients; returns those that could not be ended. */
export async function kickEach(ids: string[]): Promise<string[]> {
  const waiting = [...ids];
  const failed: string[] = [];
  const worker = async (): Promise<void> => {
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      try {
        await api.del(`/clients/${part(id)}`);
      } catch (error) {
        // It has gone meanwhile.
        if (!(error instanceof ApiError && error.code === GONE)) failed.push(id);
      }
    }
  };
  await Promise.all(Array.from({ length: BESIDE }, worker));
  return failed;
}

/** End all these clients: they are counted and named first. */
export async function kickAll(read: () => Promise<string[]>, onDone: () => void): Promise<void> {
  const ids = await read();
  if (ids.length === 0) {
    toast(texts.kick.noneLeft);
    return;
  }
  // Another attempt is about those that failed: of the others, some may have connected again.
  let left = ids;
  const done = await confirm({
    title: texts.kick.allTitle(ids.length),
    hits: ids,
    text: texts.kick.text,
    action: texts.kick.allAction(ids.length),
    work: async () => {
      left = await kickEach(left);
      if (left.length > 0) throw new Error(texts.kick.someFailed(left.length, ids.length));
    },
  });
  if (done) toast(texts.kick.allDone(ids.length));
  onDone();
}

export function KickButton({ id, onDone }: { id: string; onDone: () => void }) {
  return (
    <Change operates kind="danger" onClick={() => void kick(id, onDone)} aria-label={`${texts.kick.action} ${nameText(id)}`}>
      {texts.kick.action}
    </Change>
  );
}

/** Without `id` the client is asked for. */
export function SubscribeDialog({ id, onClose }: { id?: string; onClose: (done: boolean) => void }) {
  const fields: Field[] = [
    ...(id === undefined ? [{ name: "clientid", type: "text", title: texts.columns.clientid, required: true } as const] : []),
    { name: "topic", type: "text", title: texts.subscriptions.topic, description: texts.subscriptions.topicAbout, required: true },
    {
      name: "qos",
      type: "choice",
      title: texts.subscriptions.qos,
      required: true,
      otherwise: "0",
      options: ["0", "1", "2"].map((value) => ({ value, title: value })),
    },
  ];
  return (
    <Dialog title={id === undefined ? texts.subscriptions.subscribeOne : texts.subscriptions.subscribeTitle} onClose={() => onClose(false)}>
      <Form
        fields={fields}
        submit={texts.subscriptions.subscribe}
        onCancel={() => onClose(false)}
        onSubmit={async ({ clientid, topic, qos }) => {
          await api.post("/mqtt/subscribe", { clientid: id ?? clientid, topic, qos: Number(qos) });
          toast(texts.subscriptions.done);
          onClose(true);
        }}
      />
    </Dialog>
  );
}

/** `topic` as the API lists it. */
export async function unsubscribe(id: string, topic: string): Promise<boolean> {
  const done = await confirm({
    title: texts.subscriptions.unsubscribeTitle,
    hits: [topic],
    text: texts.subscriptions.unsubscribeText(nameText(id)),
    action: texts.subscriptions.unsubscribe,
    work: async () => {
      const [client] = await api.get<Client[]>(`/clients/${part(id)}`);
      await api.post("/mqtt/unsubscribe", { clientid: id, topic: withoutMountpoint(topic, client?.mountpoint) });
    },
  });
  if (done) toast(texts.subscriptions.unsubscribed);
  return done;
}

/**
 * `client`: undefined for one that is not there, of whom only the identifier can be banned. What may be banned is what
 * it was when the dialog opened: the client may go meanwhile.
 */
export function BanDialog({ id, client: now, onClose }: { id: string; client: Client | undefined; onClose: (done: boolean, ban?: { as: string; who: string }) => void }) {
  const [client] = useState(now);
  const name = client && userOf(client);
  const who: Record<string, string> = { clientid: id };
  if (name) who["username"] = name;
  if (client) who["peerhost"] = client.ip_address;
  const titles: Record<string, string> = texts.ban.who;
  const fields: Field[] = [
    {
      name: "as",
      type: "choice",
      title: texts.ban.as,
      required: true,
      otherwise: "clientid",
      options: Object.entries(who).map(([value, one]) => ({ value, title: `${titles[value] ?? value}: ${nameText(one)}` })),
    },
    { name: "minutes", type: "number", title: texts.ban.minutes, description: texts.ban.about, required: true, otherwise: 60, min: 1, max: 52_560_000 },
    { name: "reason", type: "text", title: texts.ban.reason },
    ...(client ? [{ name: "kick", type: "switch", title: texts.ban.kick, description: texts.ban.kickAbout, otherwise: true } as const] : []),
  ];
  return (
    <Dialog title={texts.ban.title} onClose={() => onClose(false)}>
      <Form
        operates
        fields={fields}
        submit={texts.ban.action}
        onCancel={() => onClose(false)}
        onSubmit={async ({ as, minutes, reason, kick }) => {
          const until = Math.round(nodeNow() / 1000 + Number(minutes) * 60);
          await api.post("/banned", { as, who: who[String(as)], until, by: login.value?.username ?? "", reason: reason ?? "", kick: kick === true });
          toast(texts.ban.done);
          onClose(true, { as: String(as), who: who[String(as)] ?? "" });
        }}
      />
    </Dialog>
  );
}
