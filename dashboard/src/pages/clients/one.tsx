import { useState } from "preact/hooks";
import { ApiError, api, part } from "../../api";
import { Change, Empty, PageHead, Tabs, Tile } from "../../components/basic";
import { confirm } from "../../components/dialog";
import { ErrorPanel } from "../../components/error";
import { Name, nameText } from "../../components/name";
import { PublishDialog } from "../../components/publish";
import { toast } from "../../components/toast";
import { byteRate, exact, number, rate } from "../../format";
import { useData, useLive } from "../../hooks";
import { link } from "../../router";
import { mayChange } from "../../session";
import { texts } from "../../texts/clients";
import { texts as user } from "../../texts/common";
import { type Ban, findBan, isForEver } from "./bans";
import { Details } from "./details";
import { type Explained, type Limit, Limits, Story, limitText } from "./story";
import { StateBadge } from "./list";
import { BanDialog, KickButton, SubscribeDialog } from "./orders";
import { type Client, type LiveClient, type Rates } from "./record";
import { type Subscription, Subscriptions } from "./subscriptions";
import { Waiting } from "./waiting";

const TABS = ["story", "subscriptions", "queue", "inflight", "details"] as const;
const EVERY = 3_000;
const NOTHING_KNOWN = 112;

/** Undefined where nothing is known of it. */
async function readStory(id: string, signal: AbortSignal): Promise<Explained | undefined> {
  try {
    return await api.get<Explained>(`/clients/${part(id)}/explain`, {}, signal);
  } catch (error) {
    if (error instanceof ApiError && error.code === NOTHING_KNOWN) return undefined;
    throw error;
  }
}

/** The record as the live stream has it, and before that as it was read. `null`: there is no such client. */
function useClient(id: string): { client: Client | null | undefined; rates: Rates | undefined; error: Error | undefined; reload: () => void } {
  const { data, error, reload } = useData((signal) => api.get<Client[]>(`/clients/${part(id)}`, {}, signal), [id]);
  const [live, setLive] = useState<LiveClient | undefined>(undefined);
  useLive({ client: id }, { client: (told: LiveClient) => setLive(told) });
  if (live === undefined) return { client: data === undefined ? undefined : (data[0] ?? null), rates: undefined, error, reload };
  if (live.node === undefined) return { client: null, rates: undefined, error: undefined, reload };
  return { client: live, rates: live.rates, error: undefined, reload };
}

function bound(most: number): string {
  return most === 0 ? texts.tiles.unlimited : texts.tiles.of(number(most));
}

export function OneClient({ id, tab }: { id: string; tab: string | undefined }) {
  const current = TABS.find((key) => key === tab) ?? "story";
  const { client, rates, error, reload } = useClient(id);
  const story = useData((signal) => readStory(id, signal), [id], EVERY);
  const subscriptions = useData((signal) => api.get<Subscription[]>(`/subscriptions/${part(id)}`, {}, signal), [id], EVERY);
  const [open, setOpen] = useState<"publish" | "subscribe" | "ban" | undefined>(undefined);

  const [banned, setBanned] = useState<{ as: string; who: string } | undefined>(undefined);
  const close = (done: boolean, ban?: { as: string; who: string }): void => {
    setOpen(undefined);
    if (!done) return;
    if (ban) setBanned(ban);
    story.reload();
    subscriptions.reload();
  };
  const again = (): void => {
    reload();
    close(true);
  };
  const head = (
    <PageHead copy={id} title={<Name text={id} />} sub={<a href={link(["clients"])}>{texts.back}</a>}>
      {client && <StateBadge client={client} />}
      {client && <Change onClick={() => setOpen("subscribe")}>{texts.subscriptions.subscribe}</Change>}
      {client && <Change operates onClick={() => setOpen("publish")}>{texts.publish}</Change>}
      {mayChange.value ? (
        <a class="button" href={link(["trouble", "traces"], { new: 1, type: "clientid", clientid: id })}>
          {texts.trace}
        </a>
      ) : (
        <button type="button" disabled title={user.user.viewer}>
          {texts.trace}
        </button>
      )}
      <Change operates onClick={() => setOpen("ban")}>{texts.ban.action}</Change>
      {client && <KickButton id={id} onDone={again} />}
    </PageHead>
  );
  const dialogs = (
    <>
      {open === "publish" && <PublishDialog topics={plainTopics(subscriptions.data)} onClose={close} />}
      {open === "subscribe" && <SubscribeDialog id={id} onClose={close} />}
      {open === "ban" && <BanDialog id={id} client={client ?? undefined} onClose={close} />}
    </>
  );
  if (client === undefined) {
    return (
      <>
        <PageHead copy={id} title={<Name text={id} />} />
        {error && <ErrorPanel error={error} retry={reload} />}
      </>
    );
  }
  if (client === null) {
    return (
      <>
        {head}
        {dialogs}
        <Missing id={id} also={banned} onLifted={story.reload} />
        {story.error ? <ErrorPanel error={story.error} retry={story.reload} /> : <Story events={story.data?.events ?? []} />}
      </>
    );
  }
  const reached = (story.data?.limits ?? []).filter((limit) => limit.reached);
  return (
    <>
      {head}
      {dialogs}
      {reached.length > 0 && <Reached limits={reached} />}
      <div class="tiles">
        <Tile label={texts.tiles.received} value={rate(rates?.recv_msg)} sub={byteRate(rates?.recv_oct)} />
        <Tile label={texts.tiles.sent} value={rate(rates?.send_msg)} sub={byteRate(rates?.send_oct)} />
        <Tile label={texts.tiles.subscriptions} value={number(client.subscriptions_cnt)} sub={bound(client.max_subscriptions)} />
        <Tile label={texts.tiles.inflight} value={number(client.inflight)} sub={bound(client.max_inflight)} />
        <Tile label={texts.tiles.queued} value={number(client.mqueue_len)} sub={bound(client.max_mqueue)} />
        <Tile label={texts.tiles.dropped} value={number(client.mqueue_dropped)} {...(client.mqueue_dropped > 0 ? { tone: "warn" as const } : {})} />
      </div>
      <Tabs
        label={`${texts.tabs.label}: ${nameText(id)}`}
        current={current}
        tabs={TABS.map((key) => ({ key, title: texts.tabs[key], href: link(key === "story" ? ["clients", id] : ["clients", id, key]) }))}
      />
      {current === "story" && (story.error ? <ErrorPanel error={story.error} retry={story.reload} /> : story.data || !story.slow ? <StoryAndLimits story={story.data} /> : null)}
      {current === "subscriptions" && (
        <Subscriptions
          id={id}
          found={subscriptions}
          onSubscribe={() => setOpen("subscribe")}
        />
      )}
      {current === "queue" && <Waiting key="queue" id={id} kind="queue" />}
      {current === "inflight" && <Waiting key="inflight" id={id} kind="inflight" />}
      {current === "details" && <Details client={client} session={story.data?.session ?? undefined} />}
    </>
  );
}

/** Why it is not here: it is banned, or nobody knows. `also`: what was banned on this page. */
function Missing({ id, also, onLifted }: { id: string; also: { as: string; who: string } | undefined; onLifted: () => void }) {
  const { data: ban, reload } = useData((signal) => findBan(id, also, signal), [id, also], EVERY);
  const lift = async (found: Ban): Promise<void> => {
    const done = await confirm({
      title: texts.ban.liftTitle,
      hits: [found.who],
      action: texts.ban.lift,
      work: () => api.del(`/banned/${part(found.as)}/${part(found.who)}`),
    });
    if (done) toast(texts.ban.lifted);
    reload();
    onLifted();
  };
  if (ban === undefined) return null;
  return (
    <div class="panel warn" role="status">
      <strong>{ban ? texts.ban.banned(`${texts.ban.who[ban.as as keyof typeof texts.ban.who]}, ${nameText(ban.who, 60)}`) : texts.unknown}</strong>
      {ban ? (
        <>
          <p>
            {isForEver(ban) ? texts.ban.forEver(nameText(ban.by, 60)) : texts.ban.until(nameText(ban.by, 60), exact(ban.until * 1000))}{" "}
            {ban.reason && <Name text={ban.reason} max={400} />}
          </p>
          <Change operates onClick={() => void lift(ban)}>{texts.ban.lift}</Change>
        </>
      ) : (
        <p>{texts.unknownText}</p>
      )}
    </div>
  );
}

/** Topics that it would get: its filters without a wildcard. */
function plainTopics(subscriptions: Subscription[] | undefined): string[] {
  return (subscriptions ?? [])
    .map((one) => one.topic.replace(/^\$share\/[^/]*\//, ""))
    .filter((topic) => !/[+#]/.test(topic))
    .slice(0, 100);
}

function Reached({ limits }: { limits: Limit[] }) {
  return (
    <div class="panel warn" role="status">
      <strong>{texts.limits.reached}</strong>
      <ul>
        {limits.map((limit) => (
          <li key={limit.setting}>
            {limitText(limit)} {texts.limits.advice[limit.setting]}
          </li>
        ))}
      </ul>
    </div>
  );
}

function StoryAndLimits({ story }: { story: Explained | undefined }) {
  if (!story) return <Empty title={texts.story.none} />;
  return (
    <>
      <Story events={story.events} />
      <Limits limits={story.limits} />
    </>
  );
}
