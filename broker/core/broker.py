"""Broker: the entry point for all messages and subscriptions, and the path of a message to its subscribers.

All publishers (clients, Wills, operators, rules, bridges) call ``Broker.accept``, which is one synchronous chain down
to the subscribers' writers. Delayed messages continue through ``publish``, and the node's own messages through
``publish_internal``."""

import logging
from asyncio import Future
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final

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
from ..observability.top.topic_sample import TopicSample
from ..persistence.durability import Durability
from ..routing.group_address import GroupAddress
from ..routing.retained import RetainedStore
from ..routing.router import Router
from ..routing.shared import SharedGroup
from ..session import acceptance
from ..session.memory_account import NORMAL, SHEDDING, MemoryAccount
from ..session.protocols import EXPIRED, MEMORY, NO_LOCAL, QOS0_MSG, REVOKED
from ..session.protocols import QUEUE_FULL as SESSION_QUEUE_FULL
from ..session.protocols import TOO_LARGE as DELIVERY_TOO_LARGE
from ..session.registry import SessionRegistry
from ..session.session import Session
from ..session.subscription import Subscription, VolatileSubscription, without_no_local
from .cluster import Cluster, SingleNode
from .delayed_topic import DelayedMessages, reserved, split
from .exclusive import ExclusiveSubscriptions
from .hooks import Hooks
from .inspection import Inspection, accept_stored
from .outcome import (
    LINK_FULL,
    NO_MEMORY_FOR_QUEUES,
    NO_SUBSCRIBERS,
    NOT_DELAYED,
    PUBLISHED,
    QUEUE_FULL,
    RESERVED,
    RETAINED_ALONE,
    REWRITTEN_INVALID,
    STORE_TROUBLE,
    UNINSPECTED,
    Outcome,
    PublisherKind,
)
from .retained_matches import RetainedMatches
from .retaining import Retaining
from .rewrite_rules import TopicRewriting
from .session_life import SessionLife

logger = logging.getLogger(__name__)

PUBLISH_STEPS = 1
"""Number of deliveries in the loop budget that a published message counts as, in addition to those to its
subscribers."""

# The scope of routing: all subscribers; those of this node; those of this node without Shared Subscriptions, and
# without retaining the message.
EVERYWHERE: Final = 0
THIS_NODE: Final = 1
FROM_A_NODE: Final = 2


def _is_told(message: Message) -> bool:
    """Return whether the publisher is a client that can receive the reason for a refusal."""
    publisher = message.publisher
    return message.qos > 0 and publisher is not None and publisher.proto_ver == V5


def _ignore(message: Message) -> None:
    """The value of ``Broker.on_rule_match`` if there are no rules."""


def _nobody(publisher: Publisher) -> Outcome | None:
    """The value of ``Broker.withheld`` if there are no bans."""
    return None


def _none() -> bool:
    """The value of ``Broker.any_withheld`` if there are no bans."""
    return False


class Broker:
    """Routes messages. ``life``: opens and ends the sessions; ``retaining``: decides which messages are retained. It
    knows neither packets nor sockets."""

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
        """``delayed``: receives messages to ``$delayed/...``. ``account``: memory of queues, and the node's memory
        level. ``retained_allowed``: whether a retained message may still be delivered according to its publisher's
        current rights; called while ``retained.check_source`` is set."""
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
        self.exclusive = ExclusiveSubscriptions()
        self.retained = RetainedStore(
            settings.retained.max_messages,
            settings.retained.max_payload_size,
            settings.retained.expiry_interval,
            settings.retained.max_bytes,
        )
        self.sessions = SessionRegistry()
        self._delayed = delayed
        # Set while a program outside may change or stop messages.
        self.inspection: Inspection | None = None
        # Set while topics are rewritten.
        self.rewriting: TopicRewriting | None = None
        # Subscribes the session of a client that connects, for the operator; None: no client is subscribed.
        self.auto_subscribe: Callable[[Session], None] | None = None
        # Topic -> whether rules select from it. For an absent topic, ``on_rule_match`` is called to find out. None:
        # there are no rules. So a topic without rules costs one lookup.
        self.rule_index: Mapping[str, object] | None = None
        self.on_rule_match: Callable[[Message], None] = _ignore
        # Whether a queue may refuse a QoS 1 or 2 message, because a zone configures that for full queues, or because
        # memory is exhausted.
        self.refusing = False
        self.throttled_log = ThrottledLog()
        self.topic_sample = TopicSample(self.rng)
        # What the acknowledgement of the last accepted message has to wait for, in addition to the disk.
        self.undecided: Future[None] | None = None
        # Durable storage; None at durability level ``memory``: see ``attach_durability``.
        self.durability: Durability | None = None
        # Returns why messages that a publisher sent earlier may not be published now; None: they may.
        self.withheld: Callable[[Publisher], Outcome | None] = _nobody
        # Whether any publisher is withheld.
        self.any_withheld: Callable[[], bool] = _none
        # The other nodes; set by the server.
        self.cluster: Cluster = SingleNode(self.node, "", 0.0)
        self.retaining = Retaining(self, settings.retained, retained_allowed)
        self.life = SessionLife(self)

    def attach_durability(self, durability: Durability) -> None:
        """Write all durable state to ``durability`` from now on."""
        self.durability = durability
        if self._delayed is not None:
            self._delayed.durability = durability

    # ---------------------------------------------------------------- publish

    def accept(self, message: Message, source: PublisherKind) -> Outcome:
        """Process a message of any publisher: refuse it, hold it until it is due, or publish it."""
        self.undecided = None
        topic = message.topic
        if self.rewriting is not None and not source.rewritten:
            new = self.rewriting.published(topic, message.publisher)
            if not new:
                return REWRITTEN_INVALID
            if new != topic:
                message = message.twin()  # the caller may offer its own again
                message.topic = topic = new
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
        """Return why a message cannot be accepted now, if its publisher can be informed; None: it can be accepted."""
        delayed = self.delays(message.topic)
        if (message.qos or message.retain or delayed) and self.cannot_store(message.topic, message.retain):
            return STORE_TROUBLE
        changes = self.retaining.changes
        if changes is not None and message.retain and message.qos:
            # Callers over HTTP get an immediate error; a client's acknowledgement waits for the election.
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
                if acceptance.would_refuse(node.session, message, node):
                    return LINK_FULL
        return None

    def delays(self, topic: str) -> bool:
        """Return whether a message to this topic is delayed."""
        return self._delayed is not None and topic.startswith("$") and self._delayed.handles(topic)

    def cannot_store(self, topic: str, retain: bool) -> bool:
        """Return whether the store is in trouble and would have to store a message to ``topic``."""
        return self.store_in_trouble and (self.delays(topic) or self.needs_disk(topic, retain))

    def destination(self, topic: str) -> str | Outcome:
        """Return the final topic of a message to ``topic``, for which access is checked; or the reason if only the
        server may publish to it, or if it is not valid."""
        if not topic.startswith("$"):
            return topic
        real = topic
        if self.delays(topic):
            found = split(topic)
            if found is None:
                return NOT_DELAYED
            real = found[1]
        return RESERVED if reserved(topic) else real

    def publish(self, message: Message) -> int:
        """Route an accepted message to every matching session; return the number of matching subscriptions."""
        metrics = self.metrics
        metrics.messages_publish += 1
        self.budget.deliveries += PUBLISH_STEPS
        sample = self.topic_sample
        sample.left -= 1
        if sample.left < 0:
            sample.note(message, self.clock.now())
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
        """Publish a delayed message that is due, or one that waited for an answer when the node stopped."""
        if message.topic.startswith(UNINSPECTED):
            accept_stored(self, message)
            return
        refusal = None if message.publisher is None else self.withheld(message.publisher)
        if refusal is None or message.publisher is None:
            self.publish(message)
        else:
            client_id = message.publisher.client_id
            self.note_refusal("delayed_refused", client_id, message.topic, refusal, self.clock.now())

    def publish_internal(self, message: Message) -> int:
        """Route a message of the node itself below ``$SYS``: it is not counted, calls no hooks and is not sent to other
        nodes, but rules may select it."""
        rules = self.rule_index
        if rules is not None and rules.get(message.topic, True):
            self.on_rule_match(message)
        return self.route(message, THIS_NODE)

    def attach_rules(self, index: Mapping[str, object] | None, on_match: Callable[[Message], None]) -> None:
        """Call ``on_match`` from now on with each message on a topic that ``index`` contains or does not know."""
        self.rule_index = index
        self.on_rule_match = on_match

    @property
    def system_topics_wanted(self) -> bool:
        """Return whether any subscriber or rule may need messages on topics that begin with $."""
        return self.rule_index is not None or self.router.has_system_filters

    def reaches(self, topic: str) -> bool:
        """Return whether a message on ``topic`` has a subscriber or a rule."""
        rules = self.rule_index
        return self.router.reaches(topic) or (rules is not None and bool(rules.get(topic, True)))

    def route(self, message: Message, scope: int = EVERYWHERE) -> int:
        """Retain and deliver a message, without the other steps of ``publish``; return the number of matching
        subscriptions, with another node as one."""
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
        """Assign an id before anything about the message is written: a node uses the id to detect a message that
        arrives in two ways."""
        if not message.identified:
            self._ids.give(message)

    def route_local(self, message: Message) -> int:
        """Deliver a message of another node to the sessions of this node. The other node has already run hooks and
        rules, and has selected the members of Shared Subscriptions."""
        return self.route(message, FROM_A_NODE)

    def deliver_to(self, message: Message, targets: list[Subscription]) -> None:
        """Deliver a message that another node has accepted to these targets only."""
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
        """``ways``: number of deliveries of the message, including those to other nodes."""
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
        """Return whether a matching session's queue is full in a zone with ``queue_full = "refuse"``."""
        if not self.refusing:
            return False
        route = self.router.match(message.topic)
        for subscription in route.targets:
            if acceptance.would_refuse(subscription.session, message, subscription):
                return True
        return bool(route.groups) and any(
            all(acceptance.would_refuse(member.session, message, member) for member in group.members())
            and (group.remote is None or group.remote.would_refuse(message))
            for group in route.groups
        )

    def _would_be_shed(self, message: Message) -> bool:
        """Return whether a queue would have to store the message while the largest queues are shed: its acknowledgement
        would promise something that is then dropped."""
        route = self.router.match(message.topic)
        for subscription in route.targets:
            if acceptance.would_be_shed(subscription.session, message, subscription):
                return True
        for subscription in route.remote:
            if acceptance.would_be_shed(subscription.session, message, subscription):
                return True
        return bool(route.groups) and any(
            group.remote is None
            and all(acceptance.would_be_shed(member.session, message, member) for member in group.members())
            for group in route.groups
        )

    def needs_disk(self, topic: str, retain: bool) -> bool:
        """Return whether a QoS 1 or 2 message has to be stored: it is retained, or for a durable session."""
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
        # [MQTT-3.8.3-3]: by Client Identifier, so that it also applies to Wills and across reconnects
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
        """Deliver to one of this node's members. Return False if there is none or, with ``connected``, none that is
        connected."""
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
        if self.refusing and acceptance.would_refuse(subscription.session, message, subscription):
            full = {each.session for each in group.members() if acceptance.would_refuse(each.session, message, each)}
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
        """Return whether the rules let the client read a message that waited on another node, if its subscriptions are
        judged."""
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
        """Send another node a message for one of its members of a Shared Subscription."""
        session = node.session
        delivery = Delivery(message, 1 if message.qos else 0, group=group)
        self.budget.deliveries += 1
        self.budget.bytes += len(message.frame) + 64
        if message.payload_at < 0 and self.durability is not None and (not session.durable or not message.qos):
            self.durability.paging.deliver_when_loaded(session, delivery)
        else:
            session.deliver_shared(delivery)

    def pass_on(self, session: Session, delivery: Delivery, now: float, reason: str) -> None:
        """Deliver to another member of the group; if there is none, drop the delivery for ``reason``."""
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
        """Remove deliveries that were taken from a session's queue because its client may no longer read them."""
        for delivery in deliveries:
            self.pass_on(session, delivery, now, REVOKED)
        if session.journal is not None:
            session.journal.done(session, [delivery for delivery in deliveries if delivery.qos])

    # -------------------------------------------------------- subscriptions

    def subscribe(self, session: Session, subscription: Subscription) -> None:
        """Add or replace a subscription. Its retained messages follow at the next ``advance``."""
        self.exclusive.replace(subscription, self.unsubscribe)
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
        """Make all matching retained messages follow at the next ``advance``."""
        session.replay(RetainedMatches(self, subscription), subscription)

    def unsubscribe(self, session: Session, filter: str) -> bool:
        """Remove a subscription, compared character by character [MQTT-3.10.4-1]. Return False if it did not exist."""
        subscription = session.pop_subscription(filter)
        if subscription is None:
            return False
        session.filter_bytes -= len(filter)
        self.router.unsubscribe(subscription)
        self.exclusive.gave_up(subscription)
        session.stop_replay(filter)
        if session.durable and self.durability is not None:
            self.durability.sessions.unsubscribed(session, filter)
        if self.hooks.session_unsubscribed and not session.internal:
            self.hooks.session_unsubscribed(session.client, subscription)
        return True

    @property
    def short_of_memory(self) -> bool:
        """Whether memory is too short for new sessions, subscriptions and retained messages."""
        return self.account.level > NORMAL

    # -------------------------------------------------------------- observer

    def note_refusal(self, event: str, client_id: str, topic: str, refusal: Outcome, now: float) -> None:
        """Count a refusal under its event and reason, and log it; ``now`` in Unix seconds."""
        name = reason_codes.name(refusal.code)
        self.metrics.refusals.add(f"{event.removesuffix('_refused')}_{name}")
        self.throttled_log.warn(event, client_id, topic, name, refusal.setting, now, detail=refusal.detail)

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        """Count a delivery that will not happen (``session.protocols`` lists the reasons) and call the hook."""
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
        now = self.clock.now()
        self.throttled_log.dropped(session.client_id, delivery.message.topic, reason, now)
        if delivery.group and reason != NO_LOCAL:
            self.throttled_log.troubles.lost(delivery.group, now)
        if self.hooks.delivery_dropped:
            self.hooks.delivery_dropped(session.client, session, delivery.message, reason)
