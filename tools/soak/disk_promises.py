"""The promises to the clients of a scripted run, and the state that a restored node must therefore have.

Facts are recorded in the order in which clients send and read; the promises at any moment follow from the facts up to
then. A packet that was sent and not answered may or may not have had its effect; everything else is exact.
"""

from dataclasses import dataclass, field

from taipan.broker.persistence.log.check_file import Digests

from .promises import matches

Fact = tuple[str, tuple[object, ...]]

USERS = "users"
MAYBE = -1
OFF = -2


@dataclass(slots=True)
class SentMessage:
    """One message: its sender, its topic, and what the publisher knows about it."""

    order: int
    publisher: str
    topic: str
    qos: int
    candidates: set[str] = field(default_factory=set)
    acknowledged: bool = False


@dataclass(slots=True)
class ClientSession:
    """A durable session, from the client's point of view."""

    exists: bool | None = False  # None: unknown, because a CONNECT or DISCONNECT was not answered
    filters: dict[str, int] = field(default_factory=dict)  # QoS, MAYBE or OFF
    owed: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)  # PUBACK or PUBREC was sent
    arrived: dict[str, int] = field(default_factory=dict)  # QoS 2: Packet Identifier, 0 after PUBREL
    awaiting: dict[int, str] = field(default_factory=dict)  # until PUBREL
    ending: set[str] = field(default_factory=set)  # messages of a session whose end is not certain yet
    stale: set[str] = field(default_factory=set)  # messages of an ended session of this name
    unreleased: set[int] = field(default_factory=set)  # inbound: PUBREC was read, PUBREL not sent
    free: set[int] = field(default_factory=set)  # inbound: PUBCOMP was read


@dataclass(slots=True)
class Found:
    """A session of the restored node; messages by name."""

    filters: dict[str, int]
    inflight: dict[int, str | None]
    queue: list[str]
    awaiting_rel: set[int]


@dataclass(slots=True)
class Outcome:
    """The state of a restored node that clients can notice, including published wills."""

    sessions: dict[str, Found]
    retained: dict[str, str]


class DiskPromises:
    """Promises, fed by ``record``; ``check`` returns those that a restored node does not keep."""

    def __init__(self) -> None:
        self.messages: dict[str, SentMessage] = {}
        self.sides: dict[str, ClientSession] = {}
        self.refused: set[str] = set()
        self.retained: dict[str, list[str]] = {}  # topic -> the values that it may have
        self.armed: set[str] = set()  # wills that are certainly stored, of connected clients
        self.waived: set[str] = set()  # wills whose clients sent DISCONNECT, and this is certainly stored
        # Digests of the users: the last promised ones, and the possible ones since then.
        self.users: list[Digests] = [{USERS: (0, bytes(16))}]
        self.promised = 0
        self._goodbyes: dict[str, int] = {}

    def record(self, fact: Fact) -> None:
        name, arguments = fact
        getattr(self, name)(*arguments)

    def side(self, client_id: str) -> ClientSession:
        return self.sides.setdefault(client_id, ClientSession())

    # --- facts: users

    def users_changed(self, digests: Digests) -> None:
        self.users.append(digests)

    def users_stored(self, digests: Digests) -> None:
        if digests in self.users:
            self.users = self.users[self.users.index(digests) :]

    def check_users(self, digests: Digests) -> list[str]:
        return [] if digests in self.users else [f"users are {digests}, and must be one of {self.users}"]

    # --- facts: sessions

    def connecting(self, client_id: str, clean: bool) -> None:
        side = self.side(client_id)
        if clean or not side.exists:
            side.exists = None
        if clean:
            self._unsure(client_id)

    def connected(self, client_id: str, present: bool) -> None:
        side = self.side(client_id)
        side.exists = True
        if not present:
            self._over(client_id)

    def ending(self, client_id: str) -> None:
        """Record a DISCONNECT with Session Expiry Interval 0."""
        self.side(client_id).exists = None
        self._unsure(client_id)

    def _unsure(self, client_id: str) -> None:
        side = self.side(client_id)
        side.ending |= side.owed | side.arrived.keys()
        side.filters = dict.fromkeys(side.filters, MAYBE)
        for table in (side.owed, side.answered, side.arrived, side.awaiting, side.unreleased, side.free):
            table.clear()
        for message in self.messages.values():
            message.candidates.discard(client_id)

    def _over(self, client_id: str) -> None:
        side = self.side(client_id)
        side.filters = dict.fromkeys(side.filters, OFF)
        side.stale |= side.ending
        side.ending = set()

    # --- facts: subscriptions

    def subscribing(self, client_id: str, topic_filter: str) -> None:
        filters = self.side(client_id).filters
        # Until it is answered, either the old or the new one exists.
        filters[topic_filter] = MAYBE

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        self.side(client_id).filters[topic_filter] = qos

    def unsubscribing(self, client_id: str, topic_filter: str) -> None:
        self.side(client_id).filters[topic_filter] = MAYBE
        for message in self.messages.values():
            if matches(topic_filter, message.topic) and not message.acknowledged:
                message.candidates.discard(client_id)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self.side(client_id).filters[topic_filter] = OFF

    # --- facts: publishers

    def sending(self, name: str, publisher: str, topic: str, qos: int, packet_id: int) -> None:
        self.messages[name] = SentMessage(len(self.messages), publisher, topic, qos, self._subscribers(topic))
        if publisher in self.sides:
            self.sides[publisher].free.discard(packet_id)

    def _subscribers(self, topic: str) -> set[str]:
        return {
            client_id
            for client_id, side in self.sides.items()
            if any(qos > 0 and matches(each, topic) for each, qos in side.filters.items())
        }

    def retaining(self, topic: str, value: str) -> None:
        """Record a retained message; ``value`` "": a clear."""
        self.retained.setdefault(topic, [""]).append(value)

    def retained_acknowledged(self, topic: str, value: str) -> None:
        values = self.retained[topic]
        if value in values:
            del values[: values.index(value)]

    def retained_refused(self, topic: str) -> None:
        """Record the refusal of a retained message. The publisher of a retained topic has one message in flight at a
        time."""
        self.retained[topic].pop()

    def acknowledged(self, name: str, publisher: str, packet_id: int) -> None:
        """Record a PUBACK or PUBREC. ``packet_id``: the identifier in a PUBREC to a durable session, otherwise 0."""
        message = self.messages[name]
        message.acknowledged = True
        for client_id in message.candidates:
            self.promised += 1
            side = self.side(client_id)
            if name not in side.answered:
                side.owed.add(name)
        if packet_id:
            self.side(publisher).unreleased.add(packet_id)
            # The acknowledgement waited for the disk, after every DISCONNECT that was sent before the message.
            self.waived |= {each for each, order in self._goodbyes.items() if order <= message.order}

    def refusal(self, name: str) -> None:
        self.refused.add(name)

    def releasing(self, publisher: str, packet_id: int) -> None:
        self.side(publisher).unreleased.discard(packet_id)

    def freed(self, publisher: str, packet_id: int) -> None:
        self.side(publisher).free.add(packet_id)

    # --- facts: wills

    def will(self, name: str, publisher: str, topic: str, qos: int) -> None:
        self.messages[name] = SentMessage(len(self.messages), publisher, topic, qos)

    def will_armed(self, name: str) -> None:
        self.armed.add(name)

    def will_due(self, name: str) -> None:
        """Record that the client was lost; everything that the node did since the will is earlier in the order."""
        if name in self.armed:
            self.armed.discard(name)
            self.messages[name].candidates = self._subscribers(self.messages[name].topic)
            self.acknowledged(name, "", 0)

    def goodbye(self, name: str) -> None:
        self.armed.discard(name)
        self._goodbyes[name] = len(self.messages)

    # --- facts: subscribers

    def took(self, client_id: str, name: str, qos: int, packet_id: int) -> None:
        """Record a PUBLISH that was read."""
        if qos == 2:
            side = self.side(client_id)
            side.arrived[name] = packet_id
            side.awaiting[packet_id] = name

    def answering(self, client_id: str, name: str) -> None:
        """Record a PUBACK or PUBREC that is sent."""
        side = self.side(client_id)
        side.answered.add(name)
        side.owed.discard(name)

    def released(self, client_id: str, packet_id: int) -> None:
        """Record a PUBREL that was read."""
        side = self.side(client_id)
        name = side.awaiting.pop(packet_id, None)
        if name is not None:
            side.arrived[name] = 0

    # --- what must be

    def check(self, outcome: Outcome) -> list[str]:
        """Return one line for each promised item that is missing, and for each item that exists but must not."""
        wrong: list[str] = []
        for client_id, side in self.sides.items():
            found = outcome.sessions.get(client_id)
            if found is None:
                if side.exists:
                    wrong.append(f"{client_id}: the session no longer exists")
                continue
            if side.exists is False:
                wrong.append(f"{client_id}: a session that never was")
                continue
            wrong += [f"{client_id}: {text}" for text in self._differences(side, found)]
        for topic, values in self.retained.items():
            value = outcome.retained.get(topic, "")
            if value not in values:
                wrong.append(f"retained {topic} is {value!r}, but must be one of {values}")
        return wrong

    def _differences(self, side: ClientSession, found: Found) -> list[str]:
        wrong: list[str] = []
        for topic_filter, qos in side.filters.items():
            have = found.filters.get(topic_filter, OFF)
            if qos != MAYBE and have != qos:
                wrong.append(f"{topic_filter} has QoS {have}, must be {qos} ({OFF}: is not there)")
        names = [name for name in found.inflight.values() if name is not None] + found.queue
        held = set(names)
        owed = side.owed | {name for name in self.armed if self._certain(side, self.messages[name].topic)}
        wrong += [f"{name} was lost" for name in owed - held]
        wrong += [f"{name} is there, and was refused" for name in held & self.refused]
        wrong += [f"{name} is there, and its client said goodbye" for name in held & self.waived]
        wrong += [f"{name} is there, of a session that has ended" for name in held & side.stale]
        wrong += [f"{name} exists, although no client sent it" for name in held - self.messages.keys()]
        wrong += [f"{name} exists twice" for name in held if names.count(name) > 1] if len(held) < len(names) else []
        for name, packet_id in side.arrived.items():
            if not packet_id:
                if name in held:
                    wrong.append(f"{name} has been delivered with QoS 2, and is there")
            elif name in held and found.inflight.get(packet_id) != name:
                wrong.append(f"{name} was sent with packet id {packet_id}, and that is forgotten")
            elif name not in held and name not in side.answered:
                wrong.append(f"{name} was sent with QoS 2 and not answered, and no longer exists")
        for packet_id, name in side.awaiting.items():
            if packet_id not in found.inflight or found.inflight[packet_id] not in (None, name):
                wrong.append(f"packet id {packet_id} is {name} to the client, and not so to the node")
        wrong += [f"inbound packet id {each} is forgotten" for each in side.unreleased - found.awaiting_rel]
        wrong += [f"inbound packet id {each} is still taken" for each in side.free & found.awaiting_rel]
        newest: dict[tuple[str, str, int], int] = {}
        for name in names:
            told = self.messages.get(name)
            if told is None:
                continue
            key = (told.publisher, told.topic, told.qos)
            if told.order < newest.get(key, -1):
                wrong.append(f"{name} stands behind a later one of {told.publisher}")
            newest[key] = told.order
        return wrong

    @staticmethod
    def _certain(side: ClientSession, topic: str) -> bool:
        return any(qos > 0 and matches(each, topic) for each, qos in side.filters.items())
