"""The promises of a node so far, and how it kept them.

Events are recorded in the order in which the clients send and read; one event loop makes that order total. A promise is
recorded only if it is certain: a subscription applies from its SUBACK until its UNSUBSCRIBE is sent, and a message from
its PUBLISH until its PUBACK or PUBREC. Between these moments, both outcomes are allowed.
"""

import time
from collections import deque

SLACK = 2.5
"""Tolerance in seconds for whatever depends on time, on a busy machine with a sweep each second."""


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a topic matches a filter, with or without ``#`` at its end, shared or not."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    if topic_filter.endswith("/#"):
        return topic.startswith(topic_filter[:-1])
    return topic == topic_filter


class Published:
    """One message, from the first time it was sent."""

    __slots__ = (
        "acked_at",
        "candidates",
        "events",
        "expired_at",
        "expiry",
        "got",
        "moved",
        "name",
        "order",
        "owed_until",
        "publisher",
        "qos",
        "refused",
        "sent_at",
        "settled",
        "topic",
    )

    def __init__(self, name: str, publisher: str, order: int, topic: str, qos: int, sent_at: int, expiry: int) -> None:
        self.name = name
        self.publisher = publisher
        self.order = order
        self.topic = topic
        self.qos = qos
        self.sent_at = sent_at
        self.acked_at = 0
        self.candidates: set[Subscriber] = set()
        self.got: dict[Subscriber, int] = {}  # number of deliveries with QoS 2
        self.moved: set[Subscriber] = set()  # moving subscribers that have it with QoS 2, in any session
        self.events: list[tuple[float, str]] = []
        self.settled = False
        self.refused = False
        self.expiry = expiry
        # The earliest expiry, counted from the first attempt, and the latest, counted from the last one.
        self.owed_until = self.expired_at = time.monotonic() + expiry if expiry else float("inf")

    def sent_again(self) -> None:
        """Restart the expiry interval, if the node treats this attempt as a new message."""
        if self.expiry:
            self.expired_at = time.monotonic() + self.expiry

    def note(self, text: str) -> None:
        self.events.append((time.time(), text))


class _Filter:
    __slots__ = ("gone_at", "known", "qos", "solid")

    def __init__(self) -> None:
        self.solid = False  # certainly there
        self.known = True  # ``solid`` is all there is to know
        self.gone_at = 0  # when it was certainly away; -1: it may be there
        self.qos = 0


class Subscriber:
    """A session that subscribes, or a group of them that shares a subscription, as the node must have it."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.ordered = True  # members of a group read at the same time
        self.mortal = False  # it expires; if it still exists at a reconnect, everything is owed to it
        self.moves = False  # another node may start a new session, and receives the rest of the previous one
        self.counts_from = 0.0  # no promise covers messages published before this time
        self.filters: dict[str, _Filter] = {}
        self.owed: set[Published] = set()
        # publisher, topic, QoS, QoS of the delivery -> order of the newest message that came
        self.newest: dict[tuple[str, str, int, int], int] = {}
        self.events: deque[tuple[float, str]] = deque(maxlen=5000)

    def note(self, text: str) -> None:
        self.events.append((time.time(), text))


class _Retained:
    """A retained message or a clear that was sent for a topic; ``value`` "": a clear. ``node``: the node that it was
    sent to; ``open``: that node may still accept it."""

    __slots__ = ("name", "node", "open", "value")

    def __init__(self, name: str, value: str, node: int) -> None:
        self.name = name
        self.value = value
        self.node = node
        self.open = bool(name)


class _RetainedTopic:
    """The possible retained messages of a topic. ``sent``: all since the last observation, which is first; ``oldest``:
    index of the first that may still be the last one; ``by``: the node that has acknowledged it."""

    def __init__(self, value: str) -> None:
        self.sent = [_Retained("", value, 0)]
        self.oldest = 0
        self.by = 0

    def acknowledged(self, name: str, node: int) -> None:
        found = [at for at, each in enumerate(self.sent) if each.name == name]
        for each in self.sent[: found[-1] + 1]:
            each.open = each.open and each.node != node
        since = [at for at in found if at >= self.oldest]
        if since:
            self.oldest, self.by = since[0], node

    def closed(self, node: int) -> None:
        for each in self.sent:
            each.open = each.open and each.node != node

    def possible(self) -> list[str]:
        """Return the values that may be retained: those from ``oldest`` on; earlier ones that another node may still
        accept, because it sent no acknowledgement; and earlier ones that a node had accepted and not written before a
        clear, if the bucket had nothing for the topic, so that the clear left no deletion (docs/decisions/0055)."""
        before = [each for each in self.sent[: self.oldest] if each.node != self.by]
        late = [each.value for each in before if each.open]
        if not self.sent[self.oldest].value:
            empty = next(at for at, each in enumerate(self.sent) if not each.value)
            late += [each.value for each in before if each.value and each in self.sent[empty:]]
        return [*late, *(each.value for each in self.sent[self.oldest :])]


class Promises:
    """Promises and deliveries; ``violations`` has one text for each broken promise."""

    def __init__(self) -> None:
        self.tick = 0
        self.subscribers: dict[str, Subscriber] = {}
        self.messages: dict[str, Published] = {}
        self.retained: dict[str, _RetainedTopic] = {}
        self.events: deque[tuple[float, str]] = deque(maxlen=2000)
        self.violations: list[str] = []
        self.stopping = False  # the node was ordered to stop
        self.ready_at = 0.0  # when it was last ready, on the monotonic clock
        self.expired = 0
        self.sessions_expired = 0
        self.refusals = 0
        self.published = 0
        self.promised = 0
        self.delivered = 0
        self.lost = 0
        self.duplicates = 0
        self.repeated = 0  # repeated QoS 1 messages, which are allowed
        self.disorder = 0
        self.other = 0
        self._order = 0

    def note(self, text: str) -> None:
        self.events.append((time.time(), text))

    def _now(self) -> int:
        self.tick += 1
        return self.tick

    # --- sessions and subscriptions

    def subscriber(self, client_id: str) -> Subscriber:
        found = self.subscribers.get(client_id)
        if found is None:
            found = self.subscribers[client_id] = Subscriber(client_id)
        return found

    def subscribing(self, session: Subscriber, topic_filter: str) -> None:
        """Record a SUBSCRIBE that is sent."""
        state = session.filters.setdefault(topic_filter, _Filter())
        state.gone_at = -1
        if not state.solid:
            state.known = False
        session.note(f"SUBSCRIBE {topic_filter} sent")

    def subscribed(self, session: Subscriber, topic_filter: str, qos: int) -> None:
        """Record a SUBACK that was read."""
        state = session.filters[topic_filter]
        state.solid = state.known = True
        state.qos = qos
        session.note(f"SUBACK {topic_filter} read")

    def unsubscribing(self, session: Subscriber, topic_filter: str) -> None:
        """Record an UNSUBSCRIBE that is sent."""
        state = session.filters.setdefault(topic_filter, _Filter())
        state.solid = state.known = False
        for message in self._open_messages():
            if session in message.candidates and matches(topic_filter, message.topic):
                message.candidates.discard(session)
        session.note(f"UNSUBSCRIBE {topic_filter} sent")

    def unsubscribed(self, session: Subscriber, topic_filter: str) -> None:
        """Record an UNSUBACK that was read."""
        state = session.filters[topic_filter]
        state.known = True
        state.gone_at = self._now()
        session.note(f"UNSUBACK {topic_filter} read")

    def ending(self, session: Subscriber) -> None:
        """Record that the client is about to end its session: nothing is owed to it any longer, and every message may
        arrive again."""
        for message in self.messages.values():
            message.candidates.discard(session)
            message.got.pop(session, None)
        session.owed.clear()
        session.newest.clear()
        for state in session.filters.values():
            state.solid = state.known = False
        session.note("the session is to end")

    def ended(self, session: Subscriber) -> None:
        """Record that the session has certainly ended; a new one may exist."""
        now = self._now()
        session.owed.clear()
        session.newest.clear()
        for message in self.messages.values():
            message.got.pop(session, None)
            if session.moves:
                message.candidates.discard(session)
        for state in session.filters.values():
            state.solid, state.known, state.gone_at = False, True, now
        session.note("the session has ended")

    def doubtful(self, session: Subscriber) -> None:
        """Record that the session may have started again without the client's knowledge."""
        session.owed.clear()
        for message in self.messages.values():
            message.candidates.discard(session)
        for state in session.filters.values():
            state.solid = state.known = False
        session.note("the session may have started again")

    def count(self, session: Subscriber, counts: bool) -> None:
        """Set whether messages that are published from now on are owed to this subscriber in order; one that ``moves``
        has weaker promises."""
        session.counts_from = self._now() if counts else float("inf")
        if not session.moves:
            session.owed.clear()
        session.newest.clear()
        session.note(f"counts={counts}")

    def _open_messages(self) -> list[Published]:
        return [message for message in self.messages.values() if not message.acked_at]

    # --- messages

    def sending(self, publisher: str, topic: str, qos: int, expiry: int = 0) -> Published:
        """Record a new message that is about to be sent."""
        self._order += 1
        self.published += 1
        name = f"{publisher}:{self._order}"
        message = Published(name, publisher, self._order, topic, qos, self._now(), expiry)
        for session in self.subscribers.values():
            for topic_filter, state in session.filters.items():
                # A QoS 2 message in flight when its node dies does not reach the session that starts again.
                counts = session.counts_from <= message.sent_at or (session.moves and qos == 1)
                if state.solid and matches(topic_filter, topic) and counts:
                    message.candidates.add(session)
                    break
        self.messages[name] = message
        message.note("sent")
        return message

    def acknowledged(self, message: Published, reason_code: int = 0) -> None:
        """Record that the PUBACK or PUBREC of a message was read; for a will: that it is certainly stored."""
        if message.acked_at:
            return
        message.acked_at = self._now()
        message.note(f"acknowledged {reason_code:#x}, owed to {sorted(s.client_id for s in message.candidates)}")
        if reason_code and any(not session.mortal for session in message.candidates):
            self.wrong(f"{message.name}: Reason Code {reason_code:#x} though subscriptions match", message)
        for session in message.candidates:
            self.promised += 1
            if session not in message.got:
                session.owed.add(message)
        message.candidates = set()

    def refused(self, message: Published, certain: bool) -> None:
        """Record a 0x97. If this refusal is ``certain``, no subscriber may receive the message."""
        self.refusals += 1
        message.refused = certain
        message.candidates = set()
        message.note(f"refused, certain={certain}")

    def remaining(self, session: Subscriber, name: str, remaining: int, dup: bool) -> None:
        """Check the Message Expiry Interval of a delivery, 0 for none. A message that was sent in time may be sent
        again later."""
        message = self.messages.get(name)
        if message is None:
            return
        now = time.monotonic()
        least = max(1, message.owed_until - now - SLACK) if message.expiry else 0
        most = min(message.expiry, message.expired_at - now + SLACK) if message.expiry and not dup else message.expiry
        if not least <= remaining <= most:
            self.other += 1
            text = f"{name} came to {session.client_id} with {remaining} s to live, must be {least:.1f} to {most:.1f}"
            self.wrong(text, message, session)

    def delivered_to(self, session: Subscriber, name: str, topic: str, qos: int, dup: bool) -> None:
        """Record a PUBLISH (RETAIN 0) that was read; for QoS 2, only if the client treats it as new."""
        message = self.messages.get(name)
        self.delivered += 1
        if message is not None and session.moves:
            session.owed.discard(message)
            if qos == 2 and not dup:
                if session in message.moved:
                    self.duplicates += 1
                    self.wrong(f"{name} came to {session.client_id} with two sessions and QoS 2", message, session)
                message.moved.add(session)
        if session.counts_from and (message is None or message.sent_at < session.counts_from):
            if message is not None:
                message.candidates.discard(session)  # its PUBACK may still be on its way
            return
        if message is None or message.topic != topic:
            self.wrong(f"{session.client_id} was sent {name!r} on {topic}: no client published it, or it was settled")
            return
        message.note(f"to {session.client_id} qos={qos} dup={dup}")
        if message.refused:
            self.wrong(f"{name} came to {session.client_id}, and was refused", message, session)
        if not dup and time.monotonic() > message.expired_at + SLACK:
            late = time.monotonic() - message.expired_at
            self.wrong(f"{name} came to {session.client_id} {late:.1f} s after it expired", message, session)
        session.owed.discard(message)
        if session in message.got:
            if qos == 2 and message.got[session]:
                self.duplicates += 1
                self.wrong(f"{name} came to {session.client_id} twice with QoS 2", message, session)
            self.repeated += 1
            message.got[session] |= qos == 2
            return
        message.got[session] = int(qos == 2)
        if not any(
            matches(each, topic) and (state.gone_at == -1 or state.gone_at > message.sent_at)
            for each, state in session.filters.items()
        ):
            self.wrong(f"{name} came to {session.client_id}, which had unsubscribed before", message, session)
        # If the first of its copies expired, a later one arrives after the messages published in between.
        if not session.ordered or message.expired_at > message.owed_until:
            return
        key = (message.publisher, topic, message.qos, qos)
        if message.order < session.newest.get(key, 0):
            self.disorder += 1
            self.wrong(f"{name} came to {session.client_id} after {session.newest[key]}", message, session)
        else:
            session.newest[key] = message.order

    # --- retained

    def retaining(self, topic: str, name: str, value: str, node: int = 1) -> None:
        """Record a PUBLISH with RETAIN that is sent, or sent again; ``value`` "": a clear. ``node``: the node that it
        is sent to."""
        self.retained.setdefault(topic, _RetainedTopic("")).sent.append(_Retained(name, value, node))

    def retained_acknowledged(self, topic: str, name: str, node: int = 1) -> None:
        """Record that this message has certainly replaced the earlier ones."""
        self.retained[topic].acknowledged(name, node)

    def retained_closed(self, node: int) -> None:
        """Record that the node was killed: it accepts none of the packets still on their way to it."""
        for topic in self.retained.values():
            topic.closed(node)

    def retained_seen(self, found: dict[str, str]) -> None:
        """Record the retained message of the node while no publisher is connected."""
        for topic, known in self.retained.items():
            value, possible = found.get(topic, ""), known.possible()
            if value not in possible:
                self.other += 1
                self.wrong(f"retained {topic} is {value!r}, but must be one of {possible}")
            self.retained[topic] = _RetainedTopic(value)
        for topic in found.keys() - self.retained.keys():
            self.other += 1
            self.wrong(f"retained {topic} came from nowhere: {found[topic]!r}")

    # --- the account

    def owed(self) -> int:
        """Return the deliveries that are still due."""
        now = time.monotonic() + SLACK
        return sum(message.owed_until > now for session in self.subscribers.values() for message in session.owed)

    def settle(self) -> None:
        """Report the deliveries that are still due as lost, and forget the completed ones."""
        for session in self.subscribers.values():
            for message in sorted(session.owed, key=lambda each: each.order):
                if message.owed_until < time.monotonic() + SLACK:
                    self.expired += 1
                    continue
                self.lost += 1
                self.wrong(f"{message.name} was lost for {session.client_id}", message, session)
            session.owed.clear()
        # A message that was never acknowledged may arrive or not; after the second time, every copy has arrived.
        self.messages = {name: each for name, each in self.messages.items() if not each.acked_at and not each.settled}
        for each in self.messages.values():
            each.settled = True

    def wrong(self, text: str, message: Published | None = None, session: Subscriber | None = None) -> None:
        """Report a violation, with the history of the message."""
        lines = [text]
        events: list[tuple[float, str]] = []
        if message is not None:
            events += [(at, "  message  " + what) for at, what in message.events]
            since = message.events[0][0] - 1
            events += [(at, "  node     " + what) for at, what in self.events if at > since]
            if session is not None:
                events += [(at, "  session  " + what) for at, what in session.events if at > since]
            lines.append(f"  topic={message.topic} qos={message.qos}")
        else:
            events += [(at, "  node     " + what) for at, what in list(self.events)[-(40 if session else 6) :]]
            if session is not None:
                events += [(at, "  session  " + what) for at, what in session.events]
        lines += [f"  {at % 10000:9.4f} {what}" for at, what in sorted(events)]
        self.violations.append("\n".join(lines))
