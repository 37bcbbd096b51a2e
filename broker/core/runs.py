"""Runs: similar messages of one topic that are routed together."""

from ..loop.budget import DELIVERIES_PER_ITERATION
from ..mqtt.message import Message
from ..session.subscription import VolatileSubscription
from .broker import PUBLISH_STEPS, Broker


def accept_run(broker: Broker, run: list[Message]) -> int:
    """Accept messages of a client that differ only in payload, identifier and properties (QoS 0 or 1, RETAIN 0, no
    expiry), and route them together. Return how many, from the first one on, the budget of the iteration allows; the
    others are removed from ``run``. 0: each message needs a separate decision."""
    first = run[0]
    topic = first.topic
    hooks = broker.hooks
    rules = broker.rule_index
    if (
        topic.startswith("$")
        or broker.store_in_trouble
        or (rules is not None and rules.get(topic, True))
        or hooks.message_publish
        or hooks.message_delivered
        or hooks.delivery_dropped
    ):
        return 0
    route = broker.router.recent.get(topic)
    if route is None:
        route = broker.router.match(topic)
    targets = route.targets
    remote = route.remote
    ways = len(targets) + len(remote)
    if not ways or route.groups:
        return 0
    for subscription in targets:
        if subscription.no_local:
            return 0
    budget = broker.budget
    steps = PUBLISH_STEPS + ways
    del run[1 + max(0, DELIVERIES_PER_ITERATION - budget.deliveries) // steps :]
    if broker.refusing and first.qos:
        # Queues that may have to refuse need a check for each message.
        for subscription in targets:
            if subscription.session.may_refuse(run):
                return 0
        for subscription in remote:
            if subscription.session.may_refuse(run):
                return 0
    size = 0
    for message in run:
        size += len(message.frame) + 64
    broker.metrics.messages_publish += len(run)
    budget.deliveries += steps * len(run)
    budget.bytes += size * ways
    for subscription in targets:
        subscription.session.deliver_run(run, subscription)
    if remote:
        if first.qos or ways > 1:
            for message in run:
                broker.identify(message)
        for subscription in remote:
            if first.qos and isinstance(subscription, VolatileSubscription):
                subscription.session.deliver_volatile_run(run, subscription)
            else:
                subscription.session.deliver_run(run, subscription)
    if first.qos:
        for message in run:
            message.release_plain()
    return len(run)


def route_local_run(broker: Broker, run: list[Message]) -> None:
    """Route messages to this node's subscribers, as ``Broker.route_local`` does one.

    The messages have one topic and one QoS, 0 or 1, RETAIN 0, and never expire.
    """
    first = run[0]
    hooks = broker.hooks
    route = broker.router.recent.get(first.topic)
    if route is None:
        route = broker.router.match(first.topic)
    targets = route.targets
    alike = not (hooks.message_delivered or hooks.delivery_dropped)
    for subscription in targets:
        if subscription.no_local:
            alike = False
    if not alike:
        for message in run:
            broker.route_local(message)
        return
    size = 0
    for message in run:
        size += len(message.frame) + 64
    budget = broker.budget
    budget.deliveries += len(targets) * len(run)
    budget.bytes += len(targets) * size
    for subscription in targets:
        subscription.session.deliver_run(run, subscription)
    if first.qos:
        for message in run:
            message.release_plain()


def route_packets(broker: Broker, topic: str, packets: bytes, count: int, version: int) -> bool:
    """Route ``count`` encoded PUBLISH packets of QoS 0 on this topic to this node's subscribers, if all of them accept
    the packets unchanged. Return False, with nothing done, if one does not."""
    hooks = broker.hooks
    if hooks.message_delivered or hooks.delivery_dropped:
        return False
    route = broker.router.recent.get(topic)
    if route is None:
        route = broker.router.match(topic)
    targets = route.targets
    for subscription in targets:
        session = subscription.session
        writer = session.packets
        if (
            writer is None
            or session.queue is not None
            or subscription.no_local
            or subscription.identifiers
            or session.limits.upgrade_qos
            or not writer.takes_packets(version)
        ):
            return False
    budget = broker.budget
    budget.deliveries += len(targets) * count
    budget.bytes += len(targets) * (len(packets) + 64 * count)
    for subscription in targets:
        writer = subscription.session.packets
        if writer is not None:
            writer.send_packets0(packets, count)
    return True
