"""Server: the MQTT side of a node, assembled. The code reads as a list of what is created and started, in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, cast

from .access.banned import Banned
from .access.control import AccessControl
from .access.flapping import Flapping
from .access.guesses import was_here
from .access.publisher_rights import PublisherRights
from .access.stored.rules import StoredAclRules
from .access.stored.source import StoredSource
from .access.stored.users import StoredUsers
from .channel import closing
from .channel.banned_clients import BannedClients
from .channel.channel import ListenerFacts
from .channel.closing import authorize_stored_will
from .channel.context import ChannelContext
from .channel.review import Reviews
from .channel.user_changes import UsersOfOthers
from .client_sweep import ClientSweep
from .config import BrokerSettings, ListenerSettings, ZoneSettings, listener_labels
from .core.broker import Broker
from .core.cluster import Cluster, SingleNode
from .core.hooks import Hooks
from .core.memory import Memory, parse_limit
from .extensions.auto_subscribe import AutoSubscribe
from .extensions.delayed import Delayed
from .extensions.presence import Presence
from .extensions.rewrite import TopicRewrite
from .extensions.slow_subscriptions import SlowSubscriptions
from .extensions.tracing import Tracing
from .loop.budget import DELIVERIES_PER_ITERATION
from .loop.clock import Clock, WallTime
from .loop.collector import without_collection
from .loop.ticker import Ticker
from .loop.timers import Timers
from .mqtt.constants import V5
from .mqtt.decoder import TopicNames
from .node_gauges import add_gauges
from .observability.alarms import RaisedAlarms
from .observability.lag import LagProbe
from .observability.metrics import Metrics
from .observability.stats import Stats
from .observability.sys_topics import SysTopics
from .persistence.durability import Durability
from .persistence.tables import Tables
from .session.limits import Limits
from .session.memory_account import SHEDDING, MemoryAccount
from .session.resend import retransmit_older
from .session.session import Session
from .store.store import Store
from .store_alarms import StoreAlarms
from .transport.connection import Connection
from .transport.connection_writer import Flusher
from .transport.descriptors import descriptors
from .transport.listener import FIXED_KEYS, Listener
from .transport.memory_guard import MemoryGuard
from .transport.poller import HAS_EPOLL, Poller
from .version import product_version

if TYPE_CHECKING:
    from .cluster.nats.interface import Nats
    from .cluster.nats_cluster import NatsCluster
    from .hosted_node import HostedNode, HostedServer, PartsAbove

logger = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0
_RETAINED_PER_SWEEP = 1000
_DATED_PER_SWEEP = 1000
_DISCONNECTS_PER_ITERATION = 200
_QUIET = 0.25
"""Seconds that a client has to close its connection when the node stops and has nothing left to send to it."""


FIXED_TABLES: Final = (
    "node", "durability", "delayed", "slow_subscriptions", "sys_topics", "shared", "data", "cluster",
)  # fmt: skip
"""Settings that only a start applies."""


class Server:
    """An MQTT Server on the running loop: ``await start()``, ``await stop()``, ``reload(settings)``."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock | None = None,
        rng: Random | None = None,
        nats: "Nats | None" = None,
    ) -> None:
        """``nats``: the connection of a node with ``[cluster]``; ``None``: a new one to ``cluster.servers``."""
        self.settings = settings
        self.version = product_version()
        self.clock = clock or Clock()
        self.timers = Timers(self.clock)
        # For timers that are due at a date of the wall clock.
        self.wall_timers = Timers(WallTime(self.clock))
        self.metrics = Metrics()
        self.hooks = Hooks()
        self.stats = Stats()
        self.tables = Tables()
        # Called after recovery, before any client is accepted: packages above read their tables here.
        self.on_recovered: list[Callable[[], None]] = []
        # Awaited after these, also before the first client: work that may take several iterations.
        self.before_clients: list[Callable[[], Awaitable[None]]] = []
        account = MemoryAccount()
        self.delayed = Delayed(
            settings.delayed,
            self.timers,
            lambda message: self.broker.publish_delayed(message),
            self.metrics,
            self.wall_timers,
            lambda: self.clock.skew,
            account,
        )
        self.broker = Broker(
            settings,
            self.clock,
            self.timers,
            self.metrics,
            self.hooks,
            rng,
            self.delayed,
            account,
            lambda message: self.rights.may_be_retained(message),
        )
        self.rewrite = TopicRewrite(settings.rewrite, self.broker)
        self.auto_subscribe = AutoSubscribe(settings.auto_subscribe, self.broker)
        self.stored_users = StoredUsers(self.tables, self.clock)
        self.stored_rules = StoredAclRules(self.tables)
        self.banned = Banned(self.tables, self.clock)
        self.alarms = RaisedAlarms(settings.node.name, self.broker.publish_internal, self.clock)
        self.access = AccessControl(
            settings.access,
            self.clock,
            made=[StoredSource(self.stored_users, self.stored_rules)],
            banned=self.banned,
            count=self.metrics.refusals.add,
            was_here=lambda client: was_here(self.broker.sessions, client),
            on_change=lambda: self.context.reviews.rules_changed(),
            alarms=self.alarms,
            node=settings.node.name,
        )
        self.rights = PublisherRights(self.access)
        self.flapping = Flapping(self.banned, self.clock)
        self.slow_subscriptions = SlowSubscriptions(settings.slow_subscriptions, self.hooks, self.clock)
        traces = Path(settings.node.data_dir) / "trace"
        self.tracing = Tracing(self.hooks, self.tables, self.clock.wall, traces)
        self.context = ChannelContext(
            settings.node.name,
            self.clock,
            self.timers,
            self.metrics,
            self.hooks,
            self.broker,
            self.access,
            self.wall_timers,
        )
        self.context.reviews = Reviews(self.context)
        self.refusal_of_will = partial(authorize_stored_will, self.broker, self.rights)
        self.banned_clients = BannedClients(self.context, self.banned)
        self.users_of_others = UsersOfOthers(self.context, self.stored_users.name)
        self.sys_topics = SysTopics(
            settings.sys_topics,
            settings.node.name,
            self.broker.publish_internal,
            self.metrics,
            self.stats,
            self.clock,
            self.version,
            loop_lag=lambda: self.lag.snapshot(),
            listeners=lambda: {listener.label: listener.counters() for listener in self.listeners},
            reaches=self.broker.reaches,
            wanted=lambda: self.broker.system_topics_wanted,
        )
        self.presence = Presence(self.hooks, self.sys_topics.client_connected, self.sys_topics.client_disconnected)
        durability = settings.durability
        on_disk = durability.level == "disk"
        self.connections: dict[Connection, None] = {}
        self.memory = self._make_memory()
        self.before_login = self.context.before_login
        self.before_login.resize(self.memory.limit)
        self.memory.resized = self.before_login.resize
        self.guard = MemoryGuard(self.memory, self.broker, self.connections, self._memory_alarm, self.before_login)
        # Memory of the HTTP servers of the packages above.
        self.http_bytes: list[Callable[[], int]] = []
        # Bodies of queued messages may use only a part of the budget.
        most = self.memory.limit // 4
        queue_memory = min(durability.queue_memory or most, most)
        accept_loss = settings.data.access_lost == "accept"
        self.store = Store(Path(settings.node.data_dir), queue_memory, accept_loss) if on_disk else None
        self.store_alarms = StoreAlarms(self.store, self.alarms, self.access)
        # Lost nodes that run here from copies, by name; their servers, also as they start; what packages above add.
        self.hosted: dict[str, HostedNode] = {}
        self.hosted_servers: list[HostedServer] = []
        self.above_hosted: Callable[[Server], PartsAbove] | None = None
        self._nats_cluster = None if settings.cluster is None else self._make_cluster(nats)
        self.cluster: Cluster = self._nats_cluster or SingleNode(settings.node.name, self.version, self.clock.now())
        self.broker.cluster = self.cluster
        # For a zone without ``max_queued_messages``.
        self._most_queued = 100_000 if on_disk else 1000
        self.listeners: list[Listener] = []
        self.descriptors = descriptors()
        self._facts: dict[str, ListenerFacts] = {}
        self._topic_names = {strict: TopicNames(strict) for strict in (False, True)}
        self._to_sweep: list[Session] = []
        # Sessions whose dates on disk come from a clock that has been set since.
        self._to_date: list[Session] = []
        self._skew = self.clock.skew
        self.client_sweep = ClientSweep(self.context)
        self.ticker: Ticker
        self._poller: Poller | None = None
        self.lag: LagProbe
        self.flusher: Flusher
        self._wire()

    def _wire(self) -> None:
        """Connect packages that must not import each other."""
        broker = self.broker
        for stored in (self.stored_users, self.stored_rules, self.banned):
            self.on_recovered.append(stored.index_restored)
        self.banned.on_kick.append(self.banned_clients.put)
        broker.withheld = self.banned_clients.withheld
        broker.any_withheld = lambda: self.banned.any_kicking
        self.stored_users.on_taken.append(self.users_of_others.changed)
        self.stored_rules.on_taken.append(self.access.authorization.forget_decisions)
        self.hooks.client_disconnected.add(self.flapping.client_disconnected)
        if self.settings.delayed.enabled:
            self.delayed.load()
        if self.settings.rewrite.rules:
            self.rewrite.load()
        if self.settings.auto_subscribe.topics:
            self.auto_subscribe.load()
        if self.settings.slow_subscriptions.enabled:
            self.slow_subscriptions.load()
        self.timers.enough = self.wall_timers.enough = self._enough
        self._set_refusing(self.settings)
        self.presence.load()
        add_gauges(self)

    def _make_cluster(self, nats: "Nats | None") -> "NatsCluster":
        # Imported here, because a node without a cluster needs neither this nor the NATS client.
        from .node_cluster import make_cluster

        return make_cluster(self, nats)

    @property
    def hosted_by(self) -> str:
        """Return the node in whose process this lost one runs; empty: this node has a process of its own."""
        return ""

    def _make_memory(self) -> Memory:
        return Memory(parse_limit(self.settings.limits.memory), self.broker.account)

    def _memory_alarm(self, short: bool) -> None:
        if not short:
            self.alarms.deactivate("high_system_memory_usage")
            return
        details = {"setting": "limits.memory", "limit": self.memory.limit, **self.memory.parts()}
        message = "memory is short: new sessions, subscriptions and retained messages are refused"
        self.alarms.activate("high_system_memory_usage", message, details)

    def _enough(self) -> bool:
        """Return whether this iteration has delivered enough: Wills and delayed messages wait for the next one."""
        if self.broker.budget.deliveries <= DELIVERIES_PER_ITERATION:
            return False
        self.flusher.wake()
        return True

    # ------------------------------------------------------------ start, stop

    async def start(self) -> None:
        """Accept clients. Raises the errors of a listener, and leaves nothing open then."""
        loop = asyncio.get_running_loop()
        self.flusher = Flusher(loop, self.broker.budget, self._end_of_iteration)
        self.lag = LagProbe(loop)
        self.ticker = Ticker(loop, self.timers, self.clock, dated=self.wall_timers)
        self.ticker.every(0.0, self.guard.tick)
        self.ticker.every(1.0, self._sweep)
        self.ticker.every(1.0, self.stats.sample)
        self.ticker.every(1.0, self.broker.topic_sample.tick)
        self.ticker.every(0.0, self.client_sweep.tick)
        self.ticker.every(1.0, lambda _: self.tracing.tick(self.clock.wall()))
        try:
            self._poller = Poller(loop) if HAS_EPOLL else None
            self._prepare_for_clients()
            if self.store is not None:
                await self._read(self.store)
                if self._nats_cluster is not None:
                    await self._nats_cluster.prepare(self.store)
                await self._recover(self.store, loop)
                await self.store.flush()
            if self._nats_cluster is None:
                self._end_internal_sessions()
            for call in self.on_recovered:
                call()
            if self.tables.unreadable:
                counts = ", ".join(f"{count} of {name}" for name, count in self.tables.unreadable.items())
                details = {"setting": "node.data_dir"}
                self.alarms.activate("rows_unreadable", f"rows that are not applied: {counts}", details)
            for prepare in self.before_clients:
                await prepare()
            self.access.start()
            if self._nats_cluster is not None:
                await self._nats_cluster.start()
            self.stored_users.warn_of_missing_package()
            for index, opening in enumerate(self.listeners):
                await opening.start()
                listener, zone = self.settings.listeners[index], self.settings.listener_zones[index]
                self._facts[opening.label] = self._facts_of(opening, listener, zone)
        except BaseException:
            for opened in self.listeners:
                await opened.stop()
            self._close_poller()
            if self._nats_cluster is not None:
                await self._nats_cluster.stop()
            await self.access.stop()
            if self.store is not None and self.broker.durability is not None:
                await self.store.close()
            elif self.store is not None:
                self.store.abandon()
            raise
        if self.banned.any_kicking:
            self.banned_clients.look_at_all()  # left by a crash, or banned on another node
        self.memory.started()
        self.lag.start()
        self.ticker.start()
        self.context.reviews.start()

    def _prepare_for_clients(self) -> None:
        """Create the ``$SYS`` topics, and the listeners, which open later: recovered sessions have their limits."""
        self.ticker.every(1.0, self.sys_topics.tick)
        settings = self.settings
        labels = listener_labels(settings.listeners)
        for listener, zone, label in zip(settings.listeners, settings.listener_zones, labels, strict=True):
            made = Listener(
                listener, zone, self._connect, self.clock, label, self.descriptors, self.before_login, self._poller
            )
            self.listeners.append(made)
            self._facts[label] = self._facts_of(made, listener, zone)

    async def _read(self, store: Store) -> None:
        """Read all durable state."""
        with without_collection():
            store.read()

    async def _recover(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        """Restore what was read, before clients are accepted."""
        with without_collection():
            for _ in self._restore(store, loop):
                pass

    def _restore(self, store: Store, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Restore what the store has read, in steps."""
        durability = store.open(
            loop,
            self.flusher.wake,
            self.clock.now,
            self.tables,
            lambda: self.clock.skew,
            self.memory.limit,
            self.broker.budget,
        )
        self.broker.attach_durability(durability)
        shed = self.guard.shed_at_once
        hold = None if self._nats_cluster is None else self._nats_cluster.wills.hold
        yield from store.recover_in_steps(
            self.broker, self.zone_of, self.delayed.recover, self.refusal_of_will, shed, hold
        )
        self.ticker.every(0.2, self._compact)
        self.ticker.every(1.0, lambda _: store.verify_path())
        self.store_alarms.opened(store)

    def _end_internal_sessions(self) -> None:
        """Drop messages that wait for other nodes if there is no longer a cluster."""
        for session in list(self.broker.sessions.internal.values()):
            logger.warning(
                "link_dropped session=%s messages=%s setting=cluster.servers",
                session.client_id.lstrip("\0"),
                session.queued + len(session.inflight),
            )
            self.metrics.refusals.add("cluster_link_dropped", session.queued + len(session.inflight))
            self.broker.life.end_session(session, "no_cluster", self.clock.now())

    def _durability(self) -> Durability:
        durability = self.broker.durability
        assert durability is not None
        return durability

    def zone_of(self, listener: str) -> tuple[ZoneSettings, Limits]:
        """Return the settings and limits of the sessions of a listener, by its name."""
        if self._nats_cluster is not None:
            internal = self._nats_cluster.zone_of(listener)
            if internal is not None:
                return internal
        facts = self._facts.get(listener)
        if facts is None:  # a listener that no longer exists: its sessions use the settings of the first one
            facts = next(iter(self._facts.values()), None)
        if facts is None:
            zone = ZoneSettings()
            return zone, self.limits_of(zone)
        return facts.zone, facts.limits

    def _end_of_iteration(self) -> None:
        self.guard.end_of_iteration()
        durability = self.broker.durability
        if durability is not None:
            commit = durability.commit
            commit.end_of_iteration()
            congested = commit.congested and commit.trouble is None
            budget = self.broker.budget
            if congested != budget.congested:
                budget.congested = congested
                self.flusher.wake()

    def _compact(self, now: float) -> None:
        if self.store is not None:
            self.store.compaction.run_slice(self.broker)

    def _facts_of(self, listener: Listener, settings: ListenerSettings, zone: ZoneSettings) -> ListenerFacts:
        identity = "" if settings.tls is None else settings.tls.username_from
        facts = ListenerFacts(listener.label, zone, settings.zone, self.limits_of(zone), identity, listener.loopback)
        if listener.gateway is not None:
            facts.proto_name, facts.proto_ver = listener.gateway.proto_name, listener.gateway.proto_ver
        return facts

    def limits_of(self, zone: ZoneSettings) -> Limits:
        return Limits(
            zone.max_inflight,
            zone.max_awaiting_rel,
            self._most_queued if zone.max_queued_messages is None else zone.max_queued_messages,
            zone.max_queued_bytes,
            zone.queue_qos0,
            zone.queue_full == "refuse",
            zone.upgrade_qos,
            zone.queue_priorities,
            zone.queue_default_priority,
            zone.retry_interval,
        )

    def _connect(self, listener: Listener) -> asyncio.Protocol:
        facts = self._facts[listener.label]
        names = self._topic_names[facts.zone.strict_strings]
        connection = Connection(listener, facts, self.context, self.flusher, names, self.connections)
        return cast(asyncio.Protocol, connection)  # a compiled class cannot inherit from it

    def _close_poller(self) -> None:
        if self._poller is not None:
            self._poller.close()
            self._poller = None

    async def disconnect_clients(self) -> None:
        """Accept no more clients, and disconnect all. Takes a limited time."""
        if self.context.closing:
            return
        self.context.closing = True
        for listener in self.listeners:
            await listener.stop()
        if self.store is not None:
            # Packets that wait for the disk are sent before DISCONNECT.
            await asyncio.wait([asyncio.ensure_future(self.store.flush())], timeout=STOP_TIMEOUT)
        else:
            self.broker.life.publish_waiting_wills()
        keep = self.settings.stop.wills == "keep"
        # Clients with a Will first, so that connected clients without one receive it.
        await self._send_away([each for each in self.connections if each.channel.will is not None], keep)
        await self._send_late_wills()
        await self._send_away(list(self.connections), keep)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_TIMEOUT
        look_again = loop.time() + _QUIET
        while self.connections and loop.time() < deadline:
            self.ticker.tick(self.clock.now())
            await asyncio.sleep(0.01)
            if loop.time() >= look_again:
                # Its system has received everything; do not wait until it closes the connection.
                for connection in list(self.connections):
                    if not connection.unsent:
                        connection.abort()
                look_again = loop.time() + _QUIET
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    async def _send_away(self, connections: list[Connection], keep_wills: bool) -> None:
        for number, connection in enumerate(connections, 1):
            closing.shut_down(connection.channel, keep_wills)
            if number % _DISCONNECTS_PER_ITERATION == 0:
                await asyncio.sleep(0)

    async def _send_late_wills(self) -> None:
        """Publish the Wills that exceeded the limit of an iteration and wait in the timers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_TIMEOUT
        while self.timers.due(self.clock.now()) and loop.time() < deadline:
            self.timers.run(self.clock.now())
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Call ``disconnect_clients`` unless that was done, then close everything. Takes a limited time."""
        await self.disconnect_clients()
        self._close_poller()
        self.ticker.stop()
        self.context.reviews.stop()
        self.lag.stop()
        self.tracing.flush()
        if self._nats_cluster is not None:
            await self._nats_cluster.stop()
        await self.access.stop()
        if self.store is not None:
            await self.store.close()
        logger.info("server_stopped sessions=%s retained=%s", len(self.broker.sessions), len(self.broker.retained))

    def reload(self, settings: BrokerSettings) -> None:
        """Apply new users, rules, certificates and limits; no client is disconnected.

        Changes that require a restart (node, listeners added, removed or bound to another address) are refused with
        ``ValueError`` before anything changes."""
        old = self.settings
        if changed := _changed_listeners(old, settings):
            raise ValueError(f"listeners {changed}: restart the node to add, remove or rebind listeners")
        for key in FIXED_TABLES:
            if getattr(settings, key) != getattr(old, key):
                raise ValueError(f"[{key}]: restart the node to change this table")
        # Everything that can fail comes first: the files, each read once, then the users and rules.
        prepared = [
            listener.prepare(each, zone)
            for listener, each, zone in zip(self.listeners, settings.listeners, settings.listener_zones, strict=True)
        ]
        self.access.reload(settings.access)
        for listener, ready in zip(self.listeners, prepared, strict=True):
            listener.apply(ready)
            self._facts[listener.label] = self._facts_of(listener, ready.settings, ready.zone)
        retained = settings.retained
        self.broker.retained.resize(
            retained.max_messages, retained.max_payload_size, retained.expiry_interval, retained.max_bytes
        )
        self.memory.resize(parse_limit(settings.limits.memory))
        self.broker.retaining.check_source = retained.check_source
        self.rewrite.use(settings.rewrite)
        self.auto_subscribe.use(settings.auto_subscribe)
        self._set_refusing(settings)
        for hosted in self.hosted_servers:
            hosted.reload(settings)
        self.settings = settings

    def _set_refusing(self, settings: BrokerSettings) -> None:
        self.guard.zone_refuses = self._any_refuses(settings)
        self.broker.refusing = self.guard.zone_refuses or self.broker.account.level >= SHEDDING

    @staticmethod
    def _any_refuses(settings: BrokerSettings) -> bool:
        """Return whether any queue refuses messages: that of a zone, or that of a link to another node."""
        return settings.cluster is not None or any(zone.queue_full == "refuse" for zone in settings.listener_zones)

    # --------------------------------------------------------------- recurring

    def _sweep(self, now: float) -> None:
        """Run housekeeping in slices, so that a million retained messages or sessions never block the loop."""
        self.banned.sweep(self.clock.wall())
        skew = self.clock.skew
        if skew != self._skew:
            logger.warning("wall_clock_set by_seconds=%.3f", skew - self._skew)
            if self.store is not None:
                self.store.note_clock_set(skew - self._skew)
            self._skew = skew
            self._to_date = list(self.broker.sessions.all())
        for _ in range(min(len(self._to_date), _DATED_PER_SWEEP)):
            session = self._to_date.pop()
            if session.durable and not session.connected:
                self._durability().sessions.left(session)
        self.broker.retaining.sweep(now, _RETAINED_PER_SWEEP)
        if not self._to_sweep:
            self._to_sweep = list(self.broker.sessions.all())
        self.broker.life.sweep_sessions(self._to_sweep, now)
        if any(facts.zone.retry_interval for facts in self._facts.values()):
            for channel in list(self.context.channels.values()):
                if channel.version != V5 and channel.session is not None and channel.zone.retry_interval:
                    retransmit_older(channel.session, now - channel.zone.retry_interval, now)

    async def tick(self) -> None:
        """Run everything that is due now; for tests that change the clock."""
        self.ticker.tick(self.clock.now())
        await asyncio.sleep(0)


def _changed_listeners(old: BrokerSettings, new: BrokerSettings) -> str:
    """Return the names of the listeners that only a restart can change, add or remove."""
    before, after = (
        {label: (at, *(getattr(listeners[at], key) for key in FIXED_KEYS)) for at, label in enumerate(labels)}
        for listeners, labels in ((each.listeners, listener_labels(each.listeners)) for each in (old, new))
    )
    return ", ".join(name for name in after | before if before.get(name) != after.get(name))
