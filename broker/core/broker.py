"""Broker: one way in for messages, one subscribe, and the way of a message to its subscribers.

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
from ..loop.budget import LoopBudget
from ..loop.clock import Clock
from ..loop.timers import Timers
from ..mqtt import reason_codes
from ..mqtt.constants import V5
from ..mqtt.message import Delivery, Message, Publisher
from ..mqtt.message_ids import MessageIdSource
from ..mqtt.topics import matches
from ..observability.metrics import Metrics
from ..observability.throttled_log import ThrottledLog
from ..persistence.durability import Durability
from ..routing.group_address import GroupAddress
from ..routing.retained import RetainedStore
from ..routing.router import Router
from ..routing.shared import SharedGroup
from ..session.memory_account import NORMAL, SHEDDING, MemoryAccount
from ..session.protocols import EXPIRED, MEMORY, NO_LOCAL, QOS0_MSG, REVOKED
from ..session.protocols import QUEUE_FULL as SESSION_QUEUE_FULL
from ..session.protocols import TOO_LARGE as DELIVERY_TOO_LARGE
from ..session.registry import SessionRegistry
from ..session.session import Session
from ..session.subscription import Subscription, VolatileSubscription, without_no_local
from .cluster import Cluster, SingleNode
from .delayed_topic import reserved, split
from .hooks import Hooks
from .outcome import (
    LINK_FULL,
    NO_MEMORY_FOR_QUEUES,
    NO_SUBSCRIBERS,
    NOT_DELAYED,
    PUBLISHED,
    QUEUE_FULL,
    RESERVED,
    RETAINED_ALONE,
    STORE_TROUBLE,
    Outcome,
    PublisherKind,
)
from .retained_matches import RetainedMatches
from .retaining import Retaining
from .session_life import SessionLife

logger = logging.getLogger(__name__)

PUBLISH_STEPS = 1
"""Deliveries that a published message counts as, in the loop budget, beside those to its subscribers."""

# How far a message is routed: to all subscribers; to those of this node; to those of this node but for Shared
# Subscriptions, without retaining it.
EVERYWHERE: Final = 0
THIS_NODE: Final = 1
FROM_A_NODE: Final = 2


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
    """Routes messages. ``life``: opens and ends the sessions; ``retaining``: decides what is retained. Knows neither
    packets nor sockets."""

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
        today; asked while ``retained.check_source`` is set."""
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
        self._delayed = delayed
        # Topic -> whether rules select from it; a topic that is not in it is asked about by calling ``on_rule_match``.
        # None: there are no rules. So what no rule selects costs one look-up.
        self.rule_index: Mapping[str, object] | None = None
        self.on_rule_match: Callable[[Message], None] = _ignore
        # Whether a queue may refuse a message of QoS 1 or 2: a zone says so for a full one, or memory is used up.
        self.refusing = False
        self.throttled_log = ThrottledLog()
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
        self.retaining = Retaining(self, settings.retained, retained_allowed)
        self.life = SessionLife(self)

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
            message.qos and source.refusable and (message.retain or self.refusing or self.store_in_trouble)
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
    def store_in_trouble(self) -> bool:
        return self.durability is not None and self.durability.commit.trouble is not None

    def refusal(self, message: Message, source: PublisherKind) -> Outcome | None:
        """Why a message cannot be taken now, where its publisher is told; None: it can."""
        delayed = message.topic.startswith("$") and self._delayed is not None and self._delayed.handles(message.topic)
        if (message.qos or message.retain or delayed) and self.cannot_store(message.topic, message.retain):
            return STORE_TROUBLE
        changes = self.retaining.changes
        if changes is not None and message.retain and message.qos:
            # Whoever asks over HTTP is told at once, a client's acknowledgement waits for an election.
            if not (changes.writable if source.must_retain else changes.takes):
                return RETAINED_ALONE
        if message.retain and (source.must_retain or _is_told(message)):
            refusal = self.retaining.refusal(message)
            if refusal is not None:
                return refusal
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
        if not self.store_in_trouble:
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

    def publish_delayed(self, message: Message) -> None:
        """Publish a delayed message whose time has come."""
        refusal = None if message.publisher is None else self.withheld(message.publisher)
        if refusal is None or message.publisher is None:
            self.publish(message)
        else:
            client_id = message.publisher.client_id
            self.note_refusal("delayed_refused", client_id, message.topic, refusal, self.clock.now())

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
            self.retaining.retain(message)
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
                    self.identify(message)
                    if group.remote.deliver(message, ()):
                        count += 1
                elif self.deliver_shared(message, group):
                    count += 1
        return count

    def identify(self, message: Message) -> None:
        """Before anything of it is written down: by its id a node knows what comes to it by two ways."""
        if not message.identified:
            self._ids.give(message)

    def route_local(self, message: Message) -> int:
        """Deliver what another node has accepted: it has run the hooks and rules, and picked of each Shared
        Subscription."""
        return self.route(message, FROM_A_NODE)

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
            self.identify(message)
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

    def pass_on(self, session: Session, delivery: Delivery, now: float, reason: str) -> None:
        """Another member of the group gets it; it is dropped for ``reason`` where there is none."""
        if delivery.message.expired(now):
            self.delivery_dropped(session, delivery, EXPIRED)
            return
        # By its name: the group it came through may have lost all members and have been made anew since.
        group = self.router.group(GroupAddress.parse(delivery.group).filter) if delivery.group else None
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
            self.pass_on(session, delivery, now, REVOKED)
        if session.journal is not None:
            session.journal.done(session, [delivery for delivery in deliveries if delivery.qos])

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
            self.throttled_log.dropped(session.client_id, delivery.message.topic, reason, self.clock.now(), True)
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
