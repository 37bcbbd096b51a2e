"""The routing of runs, and the one place that decides whether the messages of a run may be routed together.

``common_route`` and ``local_route`` decide. All later code receives a run with its route, and does not check single
messages again: the sessions and their writers treat a run as they treat one message."""

from ..loop.budget import DELIVERIES_PER_ITERATION
from ..mqtt.run import OVERHEAD, Run
from ..routing.router import Route
from ..session.acceptance import may_refuse, takes_packets
from ..session.subscription import VolatileSubscription
from .broker import PUBLISH_STEPS, Broker


def common_route(broker: Broker, run: Run, topic: str) -> Route | None:
    """Return the route of a run of a client to ``topic``, which is its own topic after rewriting. None: each message
    has to be observed, may be refused or needs a selected receiver, so ``Broker.accept`` has to process them one by
    one."""
    rules = broker.rule_index
    if (
        topic.startswith("$")
        or broker.store_in_trouble
        or (rules is not None and rules.get(topic, True))
        or broker.hooks.message_publish
        or (broker.inspection is not None and broker.inspection.inspects(topic))
    ):
        return None
    route = local_route(broker, topic)
    if route is None or route.groups or not (route.targets or route.remote):
        return None
    if broker.refusing and run.qos:
        # Queues that may have to refuse need a check for each message.
        for subscription in route.targets:
            if may_refuse(subscription.session, run):
                return None
        for subscription in route.remote:
            if may_refuse(subscription.session, run):
                return None
    return route


def local_route(broker: Broker, topic: str) -> Route | None:
    """Return the route of a run that another node has accepted, of which only ``targets`` are to be used. None: each of
    its messages needs ``Broker.route_local``."""
    hooks = broker.hooks
    if hooks.message_delivered or hooks.delivery_dropped:
        return None
    route = broker.router.recent.get(topic)
    if route is None:
        route = broker.router.match(topic)
    return None if route.no_local else route


def affordable(broker: Broker, route: Route) -> int:
    """Return how many messages the rest of the budget of the iteration allows, at least one."""
    left = DELIVERIES_PER_ITERATION - broker.budget.deliveries
    return 1 + max(0, left) // (PUBLISH_STEPS + len(route.targets) + len(route.remote))


def route_run(broker: Broker, run: Run, route: Route) -> None:
    """Route a run of a client to the subscribers of all nodes."""
    messages = run.messages
    targets = route.targets
    remote = route.remote
    ways = len(targets) + len(remote)
    broker.metrics.messages_publish += len(messages)
    sample = broker.topic_sample
    sample.left -= len(messages)
    if sample.left < 0:
        sample.note(messages[-1], broker.clock.now())
    broker.budget.deliveries += (PUBLISH_STEPS + ways) * len(messages)
    broker.budget.bytes += ways * run.budget_bytes()
    for subscription in targets:
        subscription.session.deliver_run(run, subscription)
    if remote:
        if run.qos or ways > 1:
            for message in messages:
                broker.identify(message)
        for subscription in remote:
            if run.qos and isinstance(subscription, VolatileSubscription):
                subscription.session.deliver_volatile_run(run, subscription)
            else:
                subscription.session.deliver_run(run, subscription)
    run.release_plain()


def route_local_run(broker: Broker, run: Run) -> None:
    """Route a run that another node has accepted to this node's subscribers, as ``Broker.route_local`` does one
    message."""
    messages = run.messages
    route = local_route(broker, run.topic)
    if route is None:
        for message in messages:
            broker.route_local(message)
        return
    targets = route.targets
    broker.budget.deliveries += len(targets) * len(messages)
    broker.budget.bytes += len(targets) * run.budget_bytes()
    for subscription in targets:
        subscription.session.deliver_run(run, subscription)
    run.release_plain()


def route_packets(broker: Broker, topic: str, packets: bytes, count: int, version: int) -> bool:
    """Route a run of QoS 0 that another node has accepted as its encoded packets, if all of this node's subscribers
    accept them unchanged. Return False, with nothing done, if one does not."""
    route = local_route(broker, topic)
    if route is None:
        return False
    targets = route.targets
    for subscription in targets:
        if not takes_packets(subscription.session, subscription, version):
            return False
    broker.budget.deliveries += len(targets) * count
    broker.budget.bytes += len(targets) * (len(packets) + OVERHEAD * count)
    for subscription in targets:
        writer = subscription.session.packets
        if writer is not None:
            writer.send_packets0(packets, count)
    return True
