"""Delivery check: why a client does or does not receive the messages of a topic, in one answer.

The checks follow a message: topic, session, subscription, access, QoS, connection, queue, window, shared group; then
the retained message of the topic and recent events. They change nothing."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from taipan.broker.mqtt.topics import matches
from taipan.broker.server import Server
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from .access import Access, AccessQuery
from .explain import Explain
from .node_calls import NodeCalls
from .owners import Owners
from .shared_groups import written_filter
from .topic_checks import checked_name

Result = Literal["pass", "fail", "wait", "note"]
_EVENTS = 5


class DeliveryQuery(msgspec.Struct, kw_only=True):
    """``qos``: that of the message. ``publisher``: the client ID of its publisher, for No Local."""

    clientid: str
    topic: str
    qos: Literal[0, 1, 2] = 1
    publisher: str = ""


class DeliveryCheck(msgspec.Struct):
    """One check. ``result``: ``pass``; ``fail``: this is why the client does not receive the message; ``wait``: this is
    why it receives the message later; ``note``: something to know. ``setting``: the setting that decides, or empty."""

    check: str
    result: Result
    text: str
    setting: str = ""


class DeliveryExplained(msgspec.Struct):
    """``outcome``: ``received``, ``waits``, ``shared`` (one member of a shared group receives it) or ``not_received``;
    ``reason``: the text of the check that decides. ``events``: recent refusals and drops of the client that concern the
    topic. ``node``: the node with the session, or empty."""

    clientid: str
    topic: str
    node: str
    outcome: Literal["received", "waits", "shared", "not_received"]
    reason: str
    checks: list[DeliveryCheck]
    events: list[dict[str, Any]]


class DeliveryChecks:
    """Answers for clients of all nodes."""

    def __init__(self, server: Server, calls: NodeCalls, owners: Owners, access: Access, explain: Explain) -> None:
        self._server = server
        self._calls = calls
        self._owners = owners
        self._access = access
        self._explain = explain
        calls.serve(self.explain_here)

    async def explain(self, query: DeliveryQuery) -> DeliveryExplained:
        """Return why the client does or does not receive the message. Raises Refusal for an invalid topic."""
        checked_name("topic", query.topic)
        found: DeliveryExplained = await self._owners.ask(query.clientid, self.explain_here, query)
        return found

    async def explain_here(self, query: DeliveryQuery) -> DeliveryExplained:
        """Return the answer of this node."""
        session = self._server.broker.sessions.get(query.clientid)
        checks = list(self._of_topic(query))
        if session is None:
            text = "The client is not connected and has no session, so it has no subscriptions."
            checks.append(DeliveryCheck("session", "fail", text))
        else:
            checks += await self._of_session(session, query)
        checks += self._of_retained(session, query.topic)
        told = self._explain.client_here(query.clientid)
        events = [] if told is None else [each for each in told["events"] if _concerns(each, query.topic)][:_EVENTS]
        failed = next((each for each in checks if each.result == "fail"), None)
        waits = next((each for each in checks if each.result == "wait"), None)
        shared = next((each for each in checks if each.check == "shared_group" and each.result == "note"), None)
        outcome: Literal["received", "waits", "shared", "not_received"] = (
            "not_received" if failed else "waits" if waits else "shared" if shared else "received"
        )
        decisive = failed or waits or shared
        reason = "All checks pass." if decisive is None else decisive.text
        node = "" if session is None else self._calls.name
        return DeliveryExplained(query.clientid, query.topic, node, outcome, reason, checks, events)

    def _of_topic(self, query: DeliveryQuery) -> Iterator[DeliveryCheck]:
        broker = self._server.broker
        if broker.rewriting is not None:
            new = broker.rewriting.published(query.topic, None)
            if new != query.topic:
                text = f"The node rewrites this topic to {new or 'an invalid topic'}: ask about that topic."
                yield DeliveryCheck("topic", "fail", text, "rewrite")
                return
        if self._server.delayed.handles(query.topic):
            text = "This is the topic of a delayed message: ask about the topic after the number of seconds."
            yield DeliveryCheck("topic", "fail", text, "delayed.enabled")

    async def _of_session(self, session: Session, query: DeliveryQuery) -> list[DeliveryCheck]:
        checks = [DeliveryCheck("session", "pass", "The client has a session on this node.")]
        found = [each for each in session.subscriptions.values() if matches(each.topic_filter, query.topic)]
        if not found:
            checks.append(DeliveryCheck("subscription", "fail", self._no_subscription(session, query.topic)))
            checks.append(await self._may_subscribe(query))
            return checks
        named = ", ".join(_name(each) for each in found)
        checks.append(DeliveryCheck("subscription", "pass", f"Matching subscriptions: {named}."))
        checks += self._of_subscriptions(session, found, query)
        return checks

    def _no_subscription(self, session: Session, topic: str) -> str:
        text = f"None of the client's {len(session.subscriptions)} subscriptions matches the topic."
        if not session.subscriptions:
            return "The client has no subscriptions."
        folded = topic.strip("/").lower()
        for each in session.subscriptions.values():
            if matches(each.topic_filter.strip("/").lower(), folded):
                return f"{text} {_name(each)} differs in upper and lower case, or in a / at its start or end."
            if topic.startswith("$") and each.topic_filter[:1] in "+#":
                text = f"{text} A filter that starts with a wildcard does not match topics that start with $."
                return f"{text} ({_name(each)})"
        return text

    async def _may_subscribe(self, query: DeliveryQuery) -> DeliveryCheck:
        asked = AccessQuery(topic=query.topic, action="subscribe", clientid=query.clientid)
        access = await self._access.explain_client(asked)
        if access.allowed is None:
            return DeliveryCheck("access", "note", access.reason, access.rule)
        may = "may" if access.allowed else "may not"
        text = f"The client {may} subscribe: {access.reason}."
        return DeliveryCheck("access", "pass" if access.allowed else "fail", text, access.rule)

    def _of_subscriptions(
        self, session: Session, found: list[Subscription], query: DeliveryQuery
    ) -> Iterator[DeliveryCheck]:
        judge = self._server.broker.router.judge
        left: list[Subscription] = []
        for each in found:
            if each.judged and judge is not None and not judge(each, query.topic):
                text = f"Access rules deny this topic of the wider subscription {_name(each)}."
                yield DeliveryCheck("access", "note", text, "subscribe_check")
            elif each.no_local and query.publisher == query.clientid:
                text = f"No Local of {_name(each)}: the client does not receive its own messages."
                yield DeliveryCheck("no_local", "note", text)
            else:
                if each.no_local:
                    yield DeliveryCheck(
                        "no_local", "note", f"{_name(each)} excludes the client's own messages (No Local)."
                    )
                left.append(each)
        if not left:
            text = "No matching subscription is left: access rules or No Local exclude them all."
            yield DeliveryCheck("subscription", "fail", text)
            return
        yield from self._of_groups(session, left)
        qos = max(each.qos for each in left)
        effective = max(qos, query.qos) if session.limits.upgrade_qos else min(qos, query.qos)
        text = f"The message has QoS {query.qos}, the subscription QoS {qos}: it is delivered with QoS {effective}."
        yield DeliveryCheck("qos", "pass", text)
        yield from _of_delivery(session, effective)

    def _of_groups(self, session: Session, left: list[Subscription]) -> Iterator[DeliveryCheck]:
        if any(each.group is None for each in left):
            return
        for each in left:
            group = self._server.broker.router.group(each.filter)
            members = 0 if group is None else len(group)
            if group is not None and (members > 1 or group.remote is not None):
                got = group.delivered_to(session)
                text = (
                    f"{_name(each)} is shared: each message goes to one member."
                    f" This node has {members} members; this client received {got} messages."
                )
                yield DeliveryCheck("shared_group", "note", text, "shared.strategy")

    def _of_retained(self, session: Session | None, topic: str) -> Iterator[DeliveryCheck]:
        message = self._server.broker.retained.get(topic)
        if message is None:
            text = "The topic has no retained message: a new subscription receives nothing until the next message."
            yield DeliveryCheck("retained", "note", text)
            return
        found = [] if session is None else [
            each for each in session.subscriptions.values() if matches(each.topic_filter, topic)
        ]  # fmt: skip
        how = {
            0: "is sent at each SUBSCRIBE (Retain Handling 0)",
            1: "is sent only if the subscription is new (Retain Handling 1)",
            2: "is never sent (Retain Handling 2)",
        }
        told = [
            f"for {_name(each)} it "
            + (
                "is not sent, because the subscription is shared"
                if each.group is not None
                else how[each.retain_handling]
            )
            for each in found
        ]
        text = "The topic has a retained message" + (": " + "; ".join(told) if told else "") + "."
        yield DeliveryCheck("retained", "note", text)


def _of_delivery(session: Session, qos: int) -> Iterator[DeliveryCheck]:
    """Check what happens when the message has reached the session."""
    limits, queued = session.limits, session.queued
    if session.connected:
        yield DeliveryCheck("connection", "pass", "The client is connected.")
        if qos and len(session.inflight) >= session.window:
            text = f"{len(session.inflight)} messages are in flight and not acknowledged: the others wait."
            yield DeliveryCheck("inflight", "wait", text, "max_inflight")
    elif qos == 0 and not limits.queue_qos0:
        text = "The client is offline, and messages of QoS 0 are not queued for offline clients."
        yield DeliveryCheck("connection", "fail", text, "queue_qos0")
        return
    else:
        text = "The client is offline: its queue stores messages until it connects or its session expires."
        yield DeliveryCheck("connection", "wait", text)
    full = 0 < limits.max_queued_messages <= queued
    if full and limits.refuse_when_full:
        text = f"The queue is full ({queued} messages): the publisher's message is refused."
        yield DeliveryCheck("queue", "fail", text, "queue_full, max_queued_messages")
    elif full:
        text = f"The queue is full ({queued} messages): each new message replaces the oldest one."
        yield DeliveryCheck("queue", "note", text, "max_queued_messages")
    elif queued:
        most = f" of {limits.max_queued_messages}" if limits.max_queued_messages else ""
        yield DeliveryCheck("queue", "wait", f"{queued}{most} messages are queued, and are sent before this one.")
    if session.mqueue_dropped:
        yield DeliveryCheck("queue", "note", f"The queue has dropped {session.mqueue_dropped} messages so far.")


def _name(subscription: Subscription) -> str:
    return f"{written_filter(subscription.filter)} (QoS {subscription.qos})"


def _concerns(event: dict[str, Any], topic: str) -> bool:
    """Return whether a refusal or a drop may have been about this topic."""
    about = event["topic"]
    if event["event"] == "client_refused":
        return True
    if event["event"] not in ("delivery_dropped", "subscribe_refused"):
        return False
    return about == topic or (event["event"] == "subscribe_refused" and matches(about, topic)) or not about
