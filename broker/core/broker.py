"""Broker: one way in for messages, one subscribe, one way for a session to begin and to end.

Whoever publishes - a client, a will, an operator, a rule, a bridge - comes through ``Broker.accept``, which is one
synchronous chain down to the subscribers' writers. What was held goes on through ``publish``, what the node says of
itself through ``publish_internal``.
"""

import logging
from asyncio import Future
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final, Protocol

from ..config import BrokerSettings
from ..loop.budget import DELIVERIES_PER_ITERATION, LoopBudget
from ..loop.clock import Clock
from ..loop.timers import Timers
from ..mqtt import reason_codes
from ..mqtt.constants import NEVER_EXPIRES, V5
from ..mqtt.message import Delivery, Message, Publisher
from ..mqtt.message_ids import MessageIdSource
from ..mqtt.topics import matches
from ..observability.metrics import Metrics
from ..observability.throttled_log import ThrottledLog
from ..persistence.durability import Durability
from ..routing.retained import ABSENT, CLEARED, FULL, FULL_BYTES, STORED, TOO_LARGE, RetainedStore
from ..routing.router import Router
from ..routing.shared import SharedGroup
from ..session import inbound_qos2
from ..session.client_info import ClientInfo
from ..session.limits import Limits
from ..session.memory_account import NORMAL, SHEDDING, MemoryAccount
from ..session.protocols import EXPIRED, MEMORY, NO_LOCAL, QOS0_MSG, REVOKED
from ..session.protocols import QUEUE_FULL as SESSION_QUEUE_FULL
from ..session.protocols import TOO_LARGE as DELIVERY_TOO_LARGE
from ..session.queue import EXPIRY_SLICE
from ..session.registry import SessionRegistry
from ..session.session import Session
from ..session.subscription import Subscription, VolatileSubscription, without_no_local
from .cluster import Cluster, RetainedChanges, SingleNode
from .delayed_topic import reserved, split
from .hooks import Hooks
from .outcome import (
    LINK_FULL,
    NO_MEMORY,
    NO_MEMORY_FOR_QUEUES,
    NO_SUBSCRIBERS,
    NOT_DELAYED,
    PUBLISHED,
    QUEUE_FULL,
    REFUSED,
    RESERVED,
    RETAINED_ALONE,
    RETAINED_BYTES_FULL,
    RETAINED_FULL,
    RETAINED_TOO_LARGE,
    RETAINED_TOO_LARGE_FOR_NATS,
    STORE_TROUBLE,
    WILL,
    Outcome,
    PublisherKind,
)
from .retained_matches import RetainedMatches

logger = logging.getLogger(__name__)

WILL_STEPS: Final = 8
"""Deliveries that a published will counts as, in the loop budget."""

PUBLISH_STEPS = 1
"""Deliveries that a published message counts as, in the loop budget, beside those to its subscribers."""

# How far a message is routed: to all subscribers; to those of this node; to those of this node but for Shared
# Subscriptions, without retaining it.
EVERYWHERE: Final = 0
THIS_NODE: Final = 1
FROM_A_NODE: Final = 2

_SESSIONS_PER_SWEEP = 1000
_QUEUED_PER_SWEEP = 20_000  # messages, where sessions have some queued
_SHORT_OF_MEMORY: Final = -1  # beside the answers of ``RetainedStore.refusal``
_TOO_LARGE_FOR_NATS: Final = -2

# Why a message is not retained, and the word for that in log and metrics.
_NOT_RETAINED: Final[dict[int, tuple[Outcome, str]]] = {
    FULL: (RETAINED_FULL, "full"),
    FULL_BYTES: (RETAINED_BYTES_FULL, "full"),
    TOO_LARGE: (RETAINED_TOO_LARGE, "too_large"),
    _SHORT_OF_MEMORY: (NO_MEMORY, "memory"),
    _TOO_LARGE_FOR_NATS: (RETAINED_TOO_LARGE_FOR_NATS, "too_large"),
}


class DelayedMessages(Protocol):
    """What holds messages to ``$delayed/...`` until their time has come: ``extensions.delayed``."""

    durability: Durability | None

    def handles(self, topic: str) -> bool:
        """Whether a message to this topic is for ``accept``."""

    def accept(self, message: Message, now: float) -> Outcome:
        """Hold it, or refuse it."""


def _is_told(message: Message) -> bool:
    """Whether its publisher is a client that can be told why it is refused."""
    publisher = message.publisher
    return message.qos > 0 and publisher is not None and publisher.proto_ver == V5


def _ignore(message: Message) -> None:
    """What ``Broker.on_rule_match`` is while there are no rules."""


def _nobody(publisher: Publisher) -> Outcome | None:
    """What ``Broker.withheld`` is while there are no bans."""
    return None


def _none() -> bool:
    """What ``Broker.any_withheld`` is while there are no bans."""
    return False


class Broker:
    """Routes messages and owns the sessions. Knows neither packets nor sockets."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        timers: Timers,
        metrics: Metrics,
        hooks: Hooks,
        rng: Random | None = None,
        delayed: DelayedMessages | None = None,
        account: MemoryAccount | None = None,
        retained_allowed: Callable[[Message], bool] | None = None,
    ) -> None:
        """``delayed``: takes what is sent to ``$delayed/...``. ``account``: what queues take, and how short the node's
        memory is. ``retained_allowed``: whether a retained message may still be delivered, by its publisher's rights of
        today; asked while ``check_retained_source`` is set."""
        self.node = settings.node.name
        self.clock = clock
        self.timers = timers
        self.metrics = metrics
        self.hooks = hooks
        self.budget = LoopBudget()
        self.account = account or MemoryAccount()
        self.rng = rng or Random()
        self._ids = MessageIdSource(self.rng)
        self.router = Router(settings.shared.strategy, self.rng)
        self.retained = RetainedStore(
            settings.retained.max_messages,
            settings.retained.max_payload_size,
            settings.retained.expiry_interval,
            settings.retained.max_bytes,
        )
        self.sessions = SessionRegistry()
        self.check_retained_source = settings.retained.check_source
        self._retained_allowed = retained_allowed
        self._delayed = delayed
        # Topic -> whether rules select from it; a topic that is not in it is asked about by calling ``on_rule_match``.
        # None: there are no rules. So what no rule selects costs one look-up.
        self.rule_index: Mapping[str, object] | None = None
        self.on_rule_match: Callable[[Message], None] = _ignore
        # Whether a queue may refuse a message of QoS 1 or 2: a zone says so for a full one, or memory is used up.
        self.refusing = False
        self.throttled_log = ThrottledLog()
        # Tells the other nodes of a cluster what is retained.
        self.retained_changes: RetainedChanges | None = None
        # What the acknowledgement of the last accepted message has to wait for, beside the disk.
        self.undecided: Future[None] | None = None
        # What outlives the process; None at durability level ``memory``: see ``attach_durability``.
        self.durability: Durability | None = None
        # Why nothing that a publisher has sent before may be published now; None: it may.
        self.withheld: Callable[[Publisher], Outcome | None] = _nobody
        # Whether any publisher is withheld.
        self.any_withheld: Callable[[], bool] = _none
        # The other nodes. The server sets it.
        self.cluster: Cluster = SingleNode(self.node, "", 0.0)

    def attach_durability(self, durability: Durability) -> None:
        """From now on everything that has to outlive the process is written to ``durability``."""
        self.durability = durability
        if self._delayed is not None:
            self._delayed.durability = durability

    # ---------------------------------------------------------------- publish

    def accept(self, message: Message, source: PublisherKind) -> Outcome:
        """Take a message from whoever publishes it: refuse it, hold it until its time has come, or publish it."""
        self.undecided = None
        topic = message.topic
        special = topic.startswith("$")
        if special and reserved(topic):
            return RESERVED
        if source.must_retain or (
            message.qos and source.refusable and (message.retain or self.refusing or self._store_in_trouble)
        ):
            refusal = self.refusal(message, source)
            if refusal is not None:
                return refusal
        if source.counted:
            self.metrics.count_received(message.qos)
        if special and self._delayed is not None and self._delayed.handles(topic):
            return self._delayed.accept(message, self.clock.now())
        return PUBLISHED if self.publish(message) else NO_SUBSCRIBERS

    @property
    def _store_in_trouble(self) -> bool:
        return self.durability is not None and self.durability.commit.trouble is not None

    def refusal(self, message: Message, source: PublisherKind) -> Outcome | None:
        """Why a message cannot be taken now, where its publisher is told; None: it can."""
        delayed = message.topic.startswith("$") and self._delayed is not None and self._delayed.handles(message.topic)
        if (message.qos or message.retain or delayed) and self.cannot_store(message.topic, message.retain):
            return STORE_TROUBLE
        changes = self.retained_changes
        if changes is not None and message.retain and message.qos:
            # Whoever asks over HTTP is told at once, a client's acknowledgement waits for an election.
            if not (changes.writable if source.must_retain else changes.takes):
                return RETAINED_ALONE
        if message.retain and (source.must_retain or _is_told(message)):
            refused = self._not_retained(message)
            if refused:
                return _NOT_RETAINED[refused][0]
        if self.refusing and message.qos and not delayed:
            if self.account.level >= SHEDDING and self._would_be_shed(message):
                return NO_MEMORY_FOR_QUEUES
            if self.would_refuse(message):
                return QUEUE_FULL
            for node in self.router.match(message.topic).remote:
                if node.session.would_refuse(message, node):
                    return LINK_FULL
        return None

    def cannot_store(self, topic: str, retain: bool) -> bool:
        """Whether the store is in trouble, and a message to ``topic`` is one that it must keep."""
        if not self._store_in_trouble:
            return False
        return (self._delayed is not None and self._delayed.handles(topic)) or self.needs_disk(topic, retain)

    def destination(self, topic: str) -> str | Outcome:
        """The topic that a message to ``topic`` ends up at, which access rules are asked about; or why only the server
        publishes there, or no message can."""
        if not topic.startswith("$"):
            return topic
        real = topic
        if self._delayed is not None and self._delayed.handles(topic):
            found = split(topic)
            if found is None:
                return NOT_DELAYED
            real = found[1]
        return RESERVED if reserved(topic) else real

    def publish(self, message: Message) -> int:
        """Route a message that was accepted to every session that matches; how many subscriptions did."""
        metrics = self.metrics
        metrics.messages_publish += 1
        self.budget.deliveries += PUBLISH_STEPS
        if self.hooks.message_publish:
            folded = self.hooks.message_publish(message)
            if folded is None:
                return 0
            message = folded
        rules = self.rule_index
        if rules is not None and rules.get(message.topic, True):
            self.on_rule_match(message)
        count = self.route(message)
        if count == 0:
            metrics.messages_dropped_no_subscribers += 1
            if self.hooks.message_dropped:
                self.hooks.message_dropped(message, "no_subscribers")
        return count

    def publish_run(self, run: list[Message]) -> int:
        """Accept messages of a client that are the same but for payload, identifier and properties (QoS 0 or 1, RETAIN
        0, no expiry), and route them together. How many from the first one on, by the budget of the iteration: the rest
        is taken out of ``run``. 0: something is to be decided for each."""
        first = run[0]
        topic = first.topic
        hooks = self.hooks
        rules = self.rule_index
        if (
            topic.startswith("$")
            or self._store_in_trouble
            or (rules is not None and rules.get(topic, True))
            or hooks.message_publish
            or hooks.message_delivered
            or hooks.delivery_dropped
        ):
            return 0
        route = self.router.recent.get(topic)
        if route is None:
            route = self.router.match(topic)
        targets = route.targets
        remote = route.remote
        ways = len(targets) + len(remote)
        if not ways or route.groups:
            return 0
        for subscription in targets:
            if subscription.no_local:
                return 0
        budget = self.budget
        steps = PUBLISH_STEPS + ways
        del run[1 + max(0, DELIVERIES_PER_ITERATION - budget.deliveries) // steps :]
        if self.refusing and first.qos:
            # What a queue may have to refuse is looked at one by one.
            for subscription in targets:
                if subscription.session.may_refuse(run):
                    return 0
            for subscription in remote:
                if subscription.session.may_refuse(run):
                    return 0
        size = 0
        for message in run:
            size += len(message.frame) + 64
        self.metrics.messages_publish += len(run)
        budget.deliveries += steps * len(run)
        budget.bytes += size * ways
        for subscription in targets:
            subscription.session.deliver_run(run, subscription)
        if remote:
            if first.qos or ways > 1:
                for message in run:
                    self._identify(message)
            for subscription in remote:
                if first.qos and isinstance(subscription, VolatileSubscription):
                    subscription.session.deliver_volatile_run(run, subscription)
                else:
                    subscription.session.deliver_run(run, subscription)
        if first.qos:
            for message in run:
                message.release_plain()
        return len(run)

    def publish_internal(self, message: Message) -> int:
        """Route what the node says of itself below ``$SYS``: uncounted, without hooks and to no other node, but rules
        select from it."""
        rules = self.rule_index
        if rules is not None and rules.get(message.topic, True):
            self.on_rule_match(message)
        return self.route(message, THIS_NODE)

    def attach_rules(self, index: Mapping[str, object] | None, on_match: Callable[[Message], None]) -> None:
        """From now on ``on_match`` is called with each message on a topic that ``index`` has or does not know."""
        self.rule_index = index
        self.on_rule_match = on_match

    @property
    def system_topics_wanted(self) -> bool:
        """Whether any subscriber or rule may want a message on a topic that begins with $."""
        return self.rule_index is not None or self.router.has_system_filters

    def reaches(self, topic: str) -> bool:
        """Whether a message on ``topic`` has a subscriber or a rule."""
        rules = self.rule_index
        return self.router.reaches(topic) or (rules is not None and bool(rules.get(topic, True)))

    def route(self, message: Message, scope: int = EVERYWHERE) -> int:
        """Retain and deliver, and nothing else that ``publish`` does; how many subscriptions matched, another node
        counting as one."""
        if message.retain and scope != FROM_A_NODE:
            self.retain(message)
        router = self.router
        route = router.recent.get(message.topic)
        if route is None:
            route = router.match(message.topic)
        targets = route.targets
        count = len(targets)
        if count:
            budget = self.budget
            budget.deliveries += count
            budget.bytes += count * (len(message.frame) + 64)
            for subscription in targets:
                if subscription.no_local:
                    self._deliver_unless_local(message, subscription)
                else:
                    subscription.session.deliver(message, subscription)
        if route.remote and scope == EVERYWHERE:
            count += self._deliver_remote(message, route.remote, count + len(route.remote))
        if count:
            if message.plain1 is not None or message.plain2 is not None:
                message.release_plain()
        if route.groups and scope != FROM_A_NODE:
            for group in route.groups:
                if group.remote is not None and scope == EVERYWHERE:
                    self._identify(message)
                    if group.remote.deliver(message, ()):
                        count += 1
                elif self.deliver_shared(message, group):
                    count += 1
        return count

    def _identify(self, message: Message) -> None:
        """Before anything of it is written down: by its id a node knows what comes to it by two ways."""
        if not message.identified:
            self._ids.give(message)

    def route_local(self, message: Message) -> int:
        """Deliver what another node has accepted: it has run the hooks and rules, and picked of each Shared
        Subscription."""
        return self.route(message, FROM_A_NODE)

    def route_local_run(self, run: list[Message]) -> None:
        """The same for messages of one topic and QoS, 0 or 1, with RETAIN 0 that never expire."""
        first = run[0]
        hooks = self.hooks
        route = self.router.recent.get(first.topic)
        if route is None:
            route = self.router.match(first.topic)
        targets = route.targets
        alike = not (hooks.message_delivered or hooks.delivery_dropped)
        for subscription in targets:
            if subscription.no_local:
                alike = False
        if not alike:
            for message in run:
                self.route_local(message)
            return
        size = 0
        for message in run:
            size += len(message.frame) + 64
        budget = self.budget
        budget.deliveries += len(targets) * len(run)
        budget.bytes += len(targets) * size
        for subscription in targets:
            subscription.session.deliver_run(run, subscription)
        if first.qos:
            for message in run:
                message.release_plain()

    def route_packets(self, topic: str, packets: bytes, count: int, version: int) -> bool:
        """The same for so many PUBLISH packets of QoS 0 on this topic, if all clients take them as they are; False:
        nothing was done."""
        hooks = self.hooks
        if hooks.message_delivered or hooks.delivery_dropped:
            return False
        route = self.router.recent.get(topic)
        if route is None:
            route = self.router.match(topic)
        targets = route.targets
        for subscription in targets:
            session = subscription.session
            writer = session.writer
            if (
                writer is None
                or session.queue is not None
                or subscription.no_local
                or subscription.identifiers
                or session.limits.upgrade_qos
                or not writer.takes_packets(version)
            ):
                return False
        budget = self.budget
        budget.deliveries += len(targets) * count
        budget.bytes += len(targets) * (len(packets) + 64 * count)
        for subscription in targets:
            writer = subscription.session.writer
            if writer is not None:
                writer.send_packets0(packets, count)
        return True

    def deliver_to(self, message: Message, targets: list[Subscription]) -> None:
        """Deliver to these alone what another node has accepted."""
        budget = self.budget
        budget.deliveries += len(targets)
        budget.bytes += len(targets) * (len(message.frame) + 64)
        for subscription in targets:
            if subscription.no_local:
                self._deliver_unless_local(message, subscription)
            else:
                subscription.session.deliver(message, subscription)
        if message.plain1 is not None or message.plain2 is not None:
            message.release_plain()

    def _deliver_remote(self, message: Message, nodes: tuple[Subscription, ...], ways: int) -> int:
        """``ways``: in how many ways it goes on, those to other nodes with them."""
        budget = self.budget
        budget.deliveries += len(nodes)
        budget.bytes += len(nodes) * (len(message.frame) + 64)
        if message.qos or ways > 1:
            self._identify(message)
        for subscription in nodes:
            if message.qos and isinstance(subscription, VolatileSubscription):
                subscription.session.deliver_volatile(message, subscription)
            else:
                subscription.session.deliver(message, subscription)
        return len(nodes)

    def would_refuse(self, message: Message) -> bool:
        """Whether a matching session's queue is full in a zone that says ``queue_full = "refuse"``."""
        if not self.refusing:
            return False
        route = self.router.match(message.topic)
        for subscription in route.targets:
            if subscription.session.would_refuse(message, subscription):
                return True
        return bool(route.groups) and any(
            all(member.session.would_refuse(message, member) for member in group.members())
            and (group.remote is None or group.remote.would_refuse(message))
            for group in route.groups
        )

    def _would_be_shed(self, message: Message) -> bool:
        """Whether a queue would have to keep it, while the largest ones are shed: an acknowledgement would promise what
        is dropped at once."""
        route = self.router.match(message.topic)
        for subscription in route.targets:
            if subscription.session.would_be_shed(message, subscription):
                return True
        for subscription in route.remote:
            if subscription.session.would_be_shed(message, subscription):
                return True
        return bool(route.groups) and any(
            all(member.session.would_be_shed(message, member) for member in group.members()) and group.remote is None
            for group in route.groups
        )

    def needs_disk(self, topic: str, retain: bool) -> bool:
        """Whether a QoS 1 or 2 message is one for the store: retained, or for a durable session."""
        if self.durability is None:
            return False
        if retain and not topic.startswith("$SYS"):
            return True
        route = self.router.match(topic)
        return (
            any(each.qos and each.session.durable for each in route.targets)
            or any(each.session.durable and not isinstance(each, VolatileSubscription) for each in route.remote)
            or any(each.qos and each.session.durable for group in route.groups for each in group.members())
            or any(group.remote is not None for group in route.groups)
        )

    def _deliver_unless_local(self, message: Message, subscription: Subscription) -> None:
        # [MQTT-3.8.3-3]: by Client Identifier, so that it holds for wills and over reconnects as well
        session = subscription.session
        if message.publisher is None or message.publisher.client_id != session.client_id:
            session.deliver(message, subscription)
            return
        rest = without_no_local(subscription)
        if rest is not None:
            session.deliver(message, rest)
        else:
            self.delivery_dropped(session, Delivery(message, subscription.qos), NO_LOCAL)

    def deliver_shared(
        self, message: Message, group: SharedGroup, exclude: Collection[Session] = (), connected: bool = False
    ) -> bool:
        """Give it to one of this node's members; False: there is none, or (``connected``) none that is connected."""
        publisher = message.publisher
        publisher_id = "" if publisher is None else publisher.client_id
        subscription = group.pick(publisher_id, message.topic, exclude)
        judge = self.router.judge
        if judge is not None and subscription is not None and subscription.judged:
            denied: set[Session] = set()
            while subscription is not None and subscription.judged and not judge(subscription, message.topic):
                denied.add(subscription.session)
                exclude = denied.union(exclude)
                subscription = group.pick(publisher_id, message.topic, exclude)
        if subscription is None or (connected and not subscription.session.connected):
            return False
        if self.refusing and subscription.session.would_refuse(message, subscription):
            full = {each.session for each in group.members() if each.session.would_refuse(message, each)}
            subscription = group.pick(publisher_id, message.topic, full.union(exclude)) or subscription
        session = subscription.session
        group.count_delivery(session)
        qos = subscription.qos if subscription.qos < message.qos else message.qos  # [MQTT-4.8.2-3]
        if session.limits.upgrade_qos:
            qos = max(subscription.qos, message.qos)
        retain = message.retain and subscription.retain_as_published
        self.budget.deliveries += 1
        self.budget.bytes += len(message.frame) + 64
        if message.payload_at < 0 and self.durability is not None and (not session.durable or qos == 0):
            delivery = Delivery(message, qos, retain, subscription.identifiers, group.filter)
            self.durability.paging.deliver_when_loaded(session, delivery)
            return True
        session.deliver_shared(Delivery(message, qos, retain, subscription.identifiers, group.filter))
        return True

    def may_read(self, session: Session, delivery: Delivery) -> bool:
        """Whether rules let the client read what waited for it elsewhere, where its subscriptions are judged."""
        judge = self.router.judge
        if judge is None:
            return True
        topic = delivery.message.topic
        found = False
        for each in session.subscriptions.values():
            if each.filter == delivery.group or (not delivery.group and matches(each.topic_filter, topic)):
                if not each.judged or judge(each, topic):
                    return True
                found = True
        return not found

    def deliver_addressed(self, message: Message, node: Subscription, group: str) -> None:
        """Send another node what is for one of its members of a Shared Subscription."""
        session = node.session
        delivery = Delivery(message, 1 if message.qos else 0, group=group)
        self.budget.deliveries += 1
        self.budget.bytes += len(message.frame) + 64
        if message.payload_at < 0 and self.durability is not None and (not session.durable or not message.qos):
            self.durability.paging.deliver_when_loaded(session, delivery)
        else:
            session.deliver_shared(delivery)

    # --------------------------------------------------------------- retained

    def retain(self, message: Message) -> None:
        """Keep it for subscriptions to come, within the bounds; an empty one takes away what is kept. If the
        message cannot be kept, the retained message of its topic is deleted, because it is out of date."""
        # [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-7]
        done = self._refused_before(message, message.topic)
        if not done:
            done = self.retained.put(message)
            # An iteration ends about every 4 MiB, so that memory is looked at before too much is kept.
            self.budget.deliveries += message.payload_size >> 10
        refused = _NOT_RETAINED.get(done)
        if refused is not None:
            outcome, reason = refused
            client_id = "" if message.publisher is None else message.publisher.client_id
            self.throttled_log.warn(
                "retain_refused", client_id, message.topic, reason, outcome.setting, message.timestamp
            )
            self.metrics.refusals.add("retained_" + reason)
            done = CLEARED if self.retained.delete(message.topic) else done
        if (refused is None or done == CLEARED) and not message.topic.startswith("$SYS"):
            self._journal_retained(message, done)
            if self.retained_changes is not None:
                decision = self.retained_changes.changed(message.topic)
                if decision is not None:
                    self.undecided = decision
        self.metrics.messages_retained = len(self.retained)

    def _journal_retained(self, message: Message, done: int) -> None:
        if self.durability is None:
            return
        if done == CLEARED:
            self.durability.node.retained_cleared(message.topic)
        elif done != ABSENT:
            self.durability.node.retained_stored(message, done == STORED)

    def take_retained(self, message: Message) -> bool:
        """What another node has retained, or cleared (an empty payload); whether it is so here, too."""
        done = self.retained.put(message, True)
        refused = _NOT_RETAINED.get(done)
        if refused is None:
            self._journal_retained(message, done)
            self.metrics.messages_retained = len(self.retained)
            return True
        outcome, reason = refused
        now = self.clock.now()
        self.throttled_log.warn("retain_refused", "-", message.topic, reason, outcome.setting, now)
        self.metrics.refusals.add("retained_" + reason)
        return False

    def clear_retained(self, topic: str) -> Future[None] | None:
        """An operator's order. What it returns is as of ``RetainedChanges.changed``."""
        decision: Future[None] | None = None
        if self.retained.delete(topic) and not topic.startswith("$SYS"):
            if self.durability is not None:
                self.durability.node.retained_cleared(topic)
            if self.retained_changes is not None:
                decision = self.retained_changes.changed(topic)
        self.metrics.messages_retained = len(self.retained)
        return decision

    def _not_retained(self, message: Message) -> int:
        """Why a message that was not published yet cannot be retained at the topic where it ends up; 0: it can."""
        topic = self.destination(message.topic)
        if not isinstance(topic, str):
            return 0  # it is refused for that
        return self._refused_before(message, topic) or self.retained.refusal(message, topic)

    def _refused_before(self, message: Message, topic: str) -> int:
        """Why it cannot be retained, whatever room the store has; 0: it can."""
        if topic.startswith("$SYS"):
            return 0
        if self.account.level > NORMAL and self.retained.grows_by(message, topic) > 0:
            return _SHORT_OF_MEMORY
        changes = self.retained_changes
        return 0 if changes is None or changes.fits(message) else _TOO_LARGE_FOR_NATS

    def may_be_replayed(self, message: Message) -> bool:
        """Whether its publisher may still publish to its topic. To be asked while ``check_retained_source`` is set."""
        if self._retained_allowed is None or self._retained_allowed(message):
            return True
        self.metrics.refusals.add("retained_source_denied")
        return False

    def not_withheld(self, messages: list[Message]) -> list[Message]:
        """Those of these retained messages whose publishers are not withheld. To be asked while ``any_withheld``."""
        given = [each for each in messages if each.publisher is None or self.withheld(each.publisher) is None]
        if len(given) < len(messages):
            self.metrics.refusals.add("retained_publisher_banned", len(messages) - len(given))
        return given

    def sweep_retained(self, now: float, budget: int) -> None:
        """Drop retained messages that have expired, at most ``budget`` of them."""
        self.retained.sweep(now, budget)
        self.metrics.messages_retained = len(self.retained)

    # -------------------------------------------------------- subscriptions

    def subscribe(self, session: Session, subscription: Subscription) -> None:
        """Add or replace a subscription. Retained messages it is entitled to follow at the next ``advance``."""
        existed = session.subscriptions.get(subscription.filter)
        session.put_subscription(subscription)
        if existed is None:
            session.filter_bytes += len(subscription.filter)
        self.router.subscribe(subscription)
        if session.durable and self.durability is not None:
            self.durability.sessions.subscribed(session, subscription)
        if self.hooks.session_subscribed and not session.internal:
            self.hooks.session_subscribed(session.client, subscription, existed is None)
        if subscription.group is not None:
            return  # no retained messages for shared subscriptions (section 4.8.2)
        handling = subscription.retain_handling
        # [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
        if len(self.retained) and (handling == 0 or (handling == 1 and existed is None)):
            self.replay_retained(session, subscription)

    def replay_retained(self, session: Session, subscription: Subscription) -> None:
        """All retained messages that match follow at the next ``advance``."""
        session.replay(RetainedMatches(self, subscription), subscription)

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Remove a subscription, compared character by character [MQTT-3.10.4-1]. False: there was none."""
        subscription = session.pop_subscription(filter)
        if subscription is None:
            return False
        session.filter_bytes -= len(filter)
        self.router.unsubscribe(subscription)
        session.stop_replay(filter)
        if session.durable and self.durability is not None:
            self.durability.sessions.unsubscribed(session, filter)
        if self.hooks.session_unsubscribed and not session.internal:
            self.hooks.session_unsubscribed(session.client, subscription)
        return True

    # ------------------------------------------------------------- sessions

    def open_session(
        self, client: ClientInfo, clean_start: bool, expiry_interval: int, limits: Limits, now: float
    ) -> tuple[Session, bool]:
        """The session of an accepted client, and whether it existed before, as far as a client may know: one that began
        for a connection that had no CONNACK begins with this one. No client may be connected to it."""
        session = self.sessions.get(client.client_id)
        if session is not None and clean_start:
            self.discard_session(session, now)
            session = None
        present = session is not None and session.announced
        if session is None:
            session = Session(client, limits, self, now, expiry_interval)
            session.announced = False
            session.account = self.account
            session.owner = client.owner
            self.sessions.add(session)
            self.metrics.session_created += 1
            if self.hooks.session_created:
                self.hooks.session_created(client, session)
            if self.durability is not None and expiry_interval:
                self.durability.sessions.opened(session)
        else:
            self._stop_timers(session)
            self.drop_will(session)  # [MQTT-3.1.3-9] the session goes on within the delay
            session.expire_queued(now)
            session.disconnected_at = 0.0
            session.expiry_interval = expiry_interval
            session.client = client
            session.owner = client.owner or session.owner or ""
            self.sessions.count_names(session)
            if present:
                self.metrics.session_resumed += 1
                if self.hooks.session_resumed:
                    self.hooks.session_resumed(client, session)
            if self.durability is not None and session.durable:
                self.durability.sessions.opened(session)
        return session, present

    def discard_session(self, session: Session, now: float) -> None:
        """Its client, which is not connected to it, begins a new one [MQTT-3.1.2-4]. Its delayed will goes out, because
        its session ends here."""
        self.metrics.session_discarded += 1
        if self.hooks.session_discarded:
            self.hooks.session_discarded(session.client, session)
        self.end_session(session, "discarded", now)

    def suspend_session(self, session: Session) -> None:
        """Another node may be about to have this session: neither it nor its will is due meanwhile."""
        self._stop_timers(session)

    def drop_will(self, session: Session) -> None:
        """Its will is not published: the session goes on, here or on another node."""
        session.will = None
        self._will_gone(session)

    def continue_session(self, session: Session, will_due: float, now: float) -> None:
        """It stays, or has come here: it ends when its time is over, unless its client comes. ``will_due``: when its
        delayed will goes out, where it has one."""
        if session.expiry_interval != NEVER_EXPIRES:
            self.expire_at(session, max(now, min(session.disconnected_at, now) + session.expiry_interval))
        if session.will is not None:
            self.will_at(session, session.will, session.will_number, will_due)

    def adopt_session(self, session: Session) -> None:
        """A session comes from another node, with its subscriptions, which are not in the router yet."""
        self.sessions.add(session)
        if self.durability is not None:
            journal = self.durability.sessions
            journal.opened(session)
            for subscription in session.subscriptions.values():
                journal.subscribed(session, subscription)

    def forget_session(self, session: Session) -> bool:
        """Another node has this session: nothing of it ends, it is only here no longer. False: it was not here."""
        if not self.sessions.remove(session):
            return False
        self._stop_timers(session)
        for subscription in session.subscriptions.values():
            self.router.unsubscribe(subscription)
        session.clear_subscriptions()
        owed = session.undelivered()
        session.end()
        self.drop_will(session)
        if self.durability is not None and session.durable:
            self.durability.sessions.ended(session, owed)
        return True

    def open_internal(self, client: ClientInfo, limits: Limits, now: float) -> Session:
        """The session of a part of the node: the one that was recovered, or a new one. It outlives the process where
        anything does, and ends by ``end_session`` only."""
        session = self.sessions.internal.get(client.client_id)
        if session is None:
            session = Session(client, limits, self, now, NEVER_EXPIRES)
            session.account = self.account
            self.sessions.add(session)
            if self.durability is not None:
                self.durability.sessions.opened(session)
        else:
            session.client = client
            session.limits = limits
        return session

    def leave(self, session: Session, will: Message | None, will_delay: int, now: float, reason: str) -> None:
        """A client's connection is over: its session waits or ends, its will goes out now or later."""
        session.detach()
        session.disconnected_at = now
        session.will = will
        if will is None:
            self._will_gone(session)
        expiry = session.expiry_interval
        if expiry == 0:
            self.end_session(session, reason, now)
            return
        if self.durability is not None and session.durable:
            self.durability.sessions.left(session)
        if expiry != NEVER_EXPIRES:
            self.expire_at(session, now + expiry)
        if will is not None:
            if will_delay == 0:
                self._publish_will(session)
            else:
                # [MQTT-3.1.2-8] after the delay or at the session's end, whichever is first
                due = now + will_delay
                session.will_timer = self.timers.at(due, lambda: self._publish_will(session))
                self.cluster.will_changed(session.client_id)
                if self.durability is not None and session.will_number:
                    self.durability.node.will_stored(will, will_delay, due, session.will_number)

    def expire_at(self, session: Session, due: float) -> None:
        """End a session without a connected client at ``due``, unless its client comes back."""
        session.expiry_timer = self.timers.at(due, lambda: self._expire(session))

    def will_at(self, session: Session, will: Message, number: int, due: float) -> None:
        """Publish a will at ``due``, unless its client comes back."""
        session.will = will
        session.will_number = number
        session.will_timer = self.timers.at(due, lambda: self._publish_will(session))
        self.cluster.will_changed(session.client_id)

    def _expire(self, session: Session) -> None:
        session.expiry_timer = None
        logger.info("session_expired client_id=%s expiry_interval=%s", session.client_id, session.expiry_interval)
        self.end_session(session, "expired", self.clock.now())

    def end_session(self, session: Session, reason: str, now: float) -> None:
        """The end of a session: its will, its subscriptions, and what shared subscriptions give to others."""
        if not self.sessions.remove(session):
            return
        if not session.internal:
            self.throttled_log.events.add(session.client_id, now, "session_ended", reason, "-")
        self._stop_timers(session)
        for subscription in session.subscriptions.values():
            self.router.unsubscribe(subscription)
        session.clear_subscriptions()
        owed = session.undelivered()
        reassignable = session.end()
        self._publish_will(session)
        for delivery in reassignable:
            self._pass_on(session, delivery, now, SESSION_QUEUE_FULL)
        if self.durability is not None and session.durable:
            # After the others have it: there is no moment in which no session holds a message.
            self.durability.sessions.ended(session, owed)
        if session.internal:
            return
        self.cluster.session_ended(session)
        if reason == "discarded":
            return
        self.metrics.session_terminated += 1
        if self.hooks.session_terminated:
            self.hooks.session_terminated(session.client, session, reason)

    def _pass_on(self, session: Session, delivery: Delivery, now: float, reason: str) -> None:
        """Another member of the group gets it; it is dropped for ``reason`` where there is none."""
        if delivery.message.expired(now):
            self.delivery_dropped(session, delivery, EXPIRED)
            return
        # By its name: the group it came through may have lost all members and have been made anew since.
        # One that was for another node also says which nodes had no member for it.
        group = self.router.group(delivery.group.partition("\0")[0]) if delivery.group else None
        if group is None:
            passed = False
        elif group.remote is not None:
            passed = group.remote.deliver(delivery.message, (session,))
        else:
            passed = self.deliver_shared(delivery.message, group, (session,))
        if not passed:
            self.delivery_dropped(session, delivery, reason)

    def withdraw(self, session: Session, deliveries: list[Delivery], now: float) -> None:
        """What was taken out of a session's queue, since its client may not read it any more, is not owed to it."""
        for delivery in deliveries:
            self._pass_on(session, delivery, now, REVOKED)
        if session.journal is not None:
            session.journal.done(session, [delivery for delivery in deliveries if delivery.qos])

    def publish_waiting_wills(self) -> None:
        """Every session ends now [MQTT-3.1.2-8]."""
        for session in list(self.sessions):
            if session.will_timer is not None:
                session.will_timer.cancel()
                self._publish_will(session)

    def _publish_will(self, session: Session) -> None:
        session.will_timer = None
        will = session.will
        if will is None:
            return
        session.will = None
        if self.cluster.hold_will(session.client_id, will, session.will_number):
            session.will_number = 0
            return
        if self.timers.enough is not None and self.timers.enough():
            # One of many sessions whose connections end at once. On disk the will stays until it is published.
            number, session.will_number = session.will_number, 0
            self.cluster.will_changed(session.client_id)
            self.timers.at(self.clock.now(), lambda: self.publish_will_late(will, number))
            return
        self.send_will(will)
        self._will_gone(session)

    def publish_will_late(self, will: Message, number: int) -> None:
        """A will was due before. ``number``: of it in the store; 0: it is in none."""
        self.send_will(will)
        if number and self.durability is not None:
            self.durability.node.will_gone(number)

    def send_will(self, will: Message) -> None:
        """Publish a will whose time has come."""
        self.budget.deliveries += WILL_STEPS
        will.timestamp = now = self.clock.now()  # its Message Expiry counts from publication
        refusal = None if will.publisher is None else self.withheld(will.publisher)
        if refusal is not None and will.publisher is not None:
            self.will_refused(will.publisher.client_id, will.topic, refusal, now)
            return
        outcome = self.accept(will, WILL)
        if outcome.code >= REFUSED:
            self.will_refused("" if will.publisher is None else will.publisher.client_id, will.topic, outcome, now)

    def publish_delayed(self, message: Message) -> None:
        """Publish a delayed message whose time has come."""
        refusal = None if message.publisher is None else self.withheld(message.publisher)
        if refusal is None or message.publisher is None:
            self.publish(message)
        else:
            client_id = message.publisher.client_id
            self.note_refusal("delayed_refused", client_id, message.topic, refusal, self.clock.now())

    def will_refused(self, client_id: str, topic: str, refusal: Outcome, now: float) -> None:
        """Count and log a will that is not published."""
        if refusal.code == reason_codes.NOT_AUTHORIZED:
            self.metrics.packets_publish_auth_error += 1
        else:
            self.metrics.packets_publish_error += 1
        self.note_refusal("will_refused", client_id, topic, refusal, now)

    def _will_gone(self, session: Session) -> None:
        self.cluster.will_changed(session.client_id)
        if session.will_number and self.durability is not None:
            self.durability.node.will_gone(session.will_number)
            session.will_number = 0

    def _stop_timers(self, session: Session) -> None:
        for timer in (session.expiry_timer, session.will_timer):
            if timer is not None:
                timer.cancel()
        session.expiry_timer = session.will_timer = None

    def sweep_sessions(self, sessions: list[Session], now: float) -> None:
        """Housekeeping for sessions from the end of the list, which it takes out, as many as a slice holds: expired
        queue entries, QoS 2 identifiers never released."""
        left = _QUEUED_PER_SWEEP
        while sessions and left > 0:
            session = sessions.pop()
            left -= _QUEUED_PER_SWEEP // _SESSIONS_PER_SWEEP
            if session.queue is not None:
                left -= min(session.queued, EXPIRY_SLICE)
                session.expire_queued(now)
            if session.awaiting_rel is not None:
                forgotten = inbound_qos2.drop_unreleased(session, now - session.client.zone.await_rel_timeout)
                if forgotten:
                    self.metrics.messages_dropped_await_pubrel_timeout += forgotten
                    logger.warning(
                        "await_pubrel_timeout client_id=%s count=%s setting=await_rel_timeout",
                        session.client_id,
                        forgotten,
                    )

    @property
    def short_of_memory(self) -> bool:
        """Whether nothing may begin that takes memory for long: sessions, subscriptions, retained messages."""
        return self.account.level > NORMAL

    # -------------------------------------------------------------- observer

    def note_refusal(self, event: str, client_id: str, topic: str, refusal: Outcome, now: float) -> None:
        """Count what is not taken under its event and reason, and log it; ``now`` in unix seconds."""
        name = reason_codes.name(refusal.code)
        self.metrics.refusals.add(f"{event.removesuffix('_refused')}_{name}")
        self.throttled_log.warn(event, client_id, topic, name, refusal.setting, now, detail=refusal.detail)

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        """Count a delivery that will not happen (``session.protocols`` names the reasons) and fire the hook."""
        metrics = self.metrics
        client = session.client
        if client.dropped is None:
            client.dropped = {}
        client.dropped[reason] = client.dropped.get(reason, 0) + 1
        if session.internal:
            metrics.refusals.add("cluster_link_" + reason)
            self.throttled_log.dropped(session.client_id, delivery.message.topic, reason, self.clock.now())
            return
        if reason == SESSION_QUEUE_FULL:
            metrics.delivery_dropped_queue_full += 1
        elif reason == QOS0_MSG:
            metrics.delivery_dropped_qos0_msg += 1
        elif reason == EXPIRED:
            metrics.delivery_dropped_expired += 1
        elif reason == DELIVERY_TOO_LARGE:
            metrics.delivery_dropped_too_large += 1
        elif reason == NO_LOCAL:
            metrics.delivery_dropped_no_local += 1
        elif reason == REVOKED:
            metrics.refusals.add("delivery_revoked")
        elif reason == MEMORY:
            metrics.refusals.add("delivery_memory")
        self.throttled_log.dropped(session.client_id, delivery.message.topic, reason, self.clock.now())
        if self.hooks.delivery_dropped:
            self.hooks.delivery_dropped(session.client, session, delivery.message, reason)
