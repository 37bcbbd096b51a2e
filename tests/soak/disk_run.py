"""A scripted run of a node on a fake disk: many clients, one thread, every step by a seed.

The broker, its durability, its journal and its store are the real ones; only the writer's thread is missing, whose jobs
are done when the script says so.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from broker.core import store as store_module
from broker.core.durability import Durability
from broker.core.restore import read, restore
from broker.core.store import Store
from broker.mqtt import constants as c
from broker.mqtt.packets import Ack, Connack, Connect, Disconnect, Suback, Subscribe, TopicFilter, Unsuback, Unsubscribe
from broker.mqtt.packets import Will
from broker.storage import sqlite_log
from broker.storage.batch import decode
from broker.storage.journal import Journal
from broker.storage.sqlite_log import SqliteLog
from broker.storage.trouble import StoreError
from broker.storage.writer import Append, Drop, Job, Read, Stop
from broker.transport.flusher import Flusher
from tests.support.durable import DurableHouse
from tests.support.fake_disk import MemoryDisk
from tests.support.fake_transport import Conversation, House
from tests.support.wire import Packet, Publish

from .disk_account import Account, Fact, Found, Outcome

AREAS = 4
RETAINED = 4
ZONE: dict[str, Any] = {"max_queued_messages": 0, "max_queued_bytes": 0}
NEVER = c.NEVER_EXPIRES
WILL_DELAY = 5


@contextmanager
def small() -> Iterator[None]:
    """Checkpoints, compaction and shrinking within a short run."""
    with (
        patch.object(sqlite_log, "CHECKPOINT_PAGES", 40),
        patch.object(sqlite_log, "SPARE_PAGES", 8),
        patch.object(store_module, "COMPACT_ABOVE", 150_000),
        patch.object(store_module, "_A_SLICE", 25),
    ):
        yield


class HandWriter:
    """What ``storage.writer.Writer`` does, one job whenever ``step`` is called and each tried once."""

    def __init__(self, log: SqliteLog, journal: Journal) -> None:
        self._log = log
        self._journal = journal
        self._jobs: deque[Job] = deque()
        self._stored = 0
        self._tidy = False
        self.trouble = False
        self.appended = 0

    def post(self, job: Job) -> None:
        self._jobs.append(job)

    def step(self) -> bool:
        """Try the next job, and serve reads whatever becomes of it; whether there was one."""
        for job in [each for each in self._jobs if isinstance(each, Read)]:
            self._jobs.remove(job)
            self._read(job)
        try:
            if self._tidy:
                self._log.tidy()
                self._tidy = False
            elif not self._jobs:
                return False
            else:
                self._do(self._jobs[0])
        except StoreError as error:
            if not self.trouble:
                self.trouble = True
                self._journal._troubled(str(error))
            return True
        if self.trouble:
            self.trouble = False
            self._journal._troubled(None)
        return True

    def _do(self, job: Job) -> None:
        if isinstance(job, Append):
            self._log.append(job.seq, job.data)
            self._jobs.popleft()
            self.appended += 1
            self._tidy = True
            self._journal._written(job.seq)
        elif isinstance(job, Drop):
            more = self._log.drop_some(job.seq)
            self._jobs.popleft()
            self._tidy = True
            if more:
                self._jobs.append(job)
        else:
            assert isinstance(job, Stop)
            raise AssertionError("nobody stops this node")

    def _read(self, job: Read) -> None:
        try:
            job.answer(self._log.read(job.seq, job.offset, job.size), None)
        except StoreError as error:
            job.answer(b"", error)


class DiskHouse(House):
    """A ``House`` at level ``disk`` whose disk is a ``MemoryDisk``."""

    def __init__(self, directory: Path, disk: MemoryDisk, queue_memory: int) -> None:
        super().__init__(ZONE)
        self.disk = disk
        loop = asyncio.get_running_loop()
        self.log = SqliteLog(directory / "taipan.db", disk.name)
        self.log.open()
        self.journal = Journal(
            self.log,
            loop,
            lambda seq: self.durability.on_durable(seq),
            lambda trouble: self.durability.on_trouble(trouble),
            clock=lambda: 0.0,
            pause=lambda _: None,
        )
        self.writer = HandWriter(self.log, self.journal)
        self.journal._writer = self.writer  # type: ignore[assignment]
        server = self.server
        server.flusher = self.flusher = Flusher(self.loop, self.broker.turn, server._end_of_turn)  # type: ignore[arg-type]
        self.durability = Durability(self.journal, self.flusher.wake, queue_memory, self.clock.now)
        self.broker.durability = self.context.durability = server.delayed.durability = self.durability
        self.store = Store(directory)
        self.store._log = self.log
        self.store.durability = self.durability
        restore(
            read([]), self.broker, self.durability, lambda _: (self.zone, self.facts.limits),
            server.delayed.restore, server._retained_allowed,
        )  # fmt: skip
        self.compactions = 0

    def housekeep(self) -> None:
        with patch.object(SqliteLog, "size_bytes", self.disk.octets):
            before = self.store._live is None
            self.store.housekeep(self.broker)
            self.compactions += before and self.store._live is not None

    async def settle(self) -> None:
        """Let tasks go on and the loop turn, until both have nothing to do."""
        for _ in range(6):
            await asyncio.sleep(0)
            self.run()


class Player:
    """One client of the script. What it has to answer waits in ``due`` until the script lets it."""

    def __init__(self, run: "Run", client_id: str, version: int, durable: bool, receive_maximum: int = 0) -> None:
        self.run = run
        self.client_id = client_id
        self.version = version
        self.durable = durable
        self.receive_maximum = receive_maximum
        self.conversation: Conversation | None = None
        self.online = False
        self.due: deque[tuple[Ack, str]] = deque()
        self.requests: dict[int, tuple[str, int]] = {}  # SUBSCRIBE and UNSUBSCRIBE: filter and QoS
        self.awaiting: dict[int, str] = {}
        # Packet Identifier -> message, QoS, topic if retained, value; PUBREC came: None
        self.sent: dict[int, tuple[str, int, str, Publish] | None] = {}
        self.will = ""
        self._last = 0
        self._tell = run.tell

    def connect(self, clean: bool, will: Will | None = None) -> None:
        if self.conversation is not None:
            self.take()
        self.online = False
        properties: dict[int, Any] = {}
        if self.version == 5:
            if self.durable:
                properties[c.SESSION_EXPIRY_INTERVAL] = NEVER
            if self.receive_maximum:
                properties[c.RECEIVE_MAXIMUM] = self.receive_maximum
        if self.durable:
            self._tell("connecting", self.client_id, clean)
        if clean or not self.durable:
            self._forget()
        self.conversation = self.run.house.open(self.version)
        self.conversation.send(
            Connect(self.version, self.client_id, clean or not self.durable, 0, None, None, will, properties)
        )

    def leave(self, end: bool = False) -> None:
        """DISCONNECT, to ``end`` the session with it (5.0)."""
        if self.conversation is None or not self.online:
            return
        self.take()
        if self.conversation is None:
            return
        if end:
            self._tell("ending", self.client_id)
            self._forget()
        self.conversation.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0} if end else {}))
        self._gone()

    def vanish(self) -> None:
        if self.conversation is not None:
            self.take()
        if self.conversation is not None:
            conversation = self.conversation
            self._gone()
            conversation.vanish()

    def _gone(self) -> None:
        self.conversation = None
        self.online = False
        self.due.clear()
        self.requests.clear()
        # QoS 1 is not sent again: it would be another message of the same name.
        self.sent = {pid: each for pid, each in self.sent.items() if each is None or each[1] == 2}
        if not self.durable:
            self.sent.clear()

    def _forget(self) -> None:
        self.awaiting.clear()
        self.sent.clear()
        self.due.clear()

    def _id(self) -> int:
        while True:
            self._last = self._last % 30 + 1
            if self._last not in self.sent and self._last not in self.requests:
                return self._last

    # --- what it sends

    def subscribe(self, topic_filter: str, qos: int) -> None:
        if self._asked(topic_filter):
            return
        packet_id = self._id()
        self.requests[packet_id] = (topic_filter, qos)
        if self.durable:
            self._tell("subscribing", self.client_id, topic_filter)
        self._send(Subscribe(packet_id, [TopicFilter(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        if self._asked(topic_filter):
            return
        packet_id = self._id()
        self.requests[packet_id] = (topic_filter, -1)
        if self.durable:
            self._tell("unsubscribing", self.client_id, topic_filter)
        self._send(Unsubscribe(packet_id, [topic_filter]))

    def _asked(self, topic_filter: str) -> bool:
        return any(each == topic_filter for each, _ in self.requests.values())

    def publish(self, topic: str, qos: int, size: int) -> None:
        if len(self.sent) >= 20:
            return
        name = self.run.new_name(self.client_id)
        packet_id = self._id()
        publish = Publish(topic, name.encode() + b" " * size, qos, False, False, packet_id)
        self.sent[packet_id] = (name, qos, "", publish)
        self._tell("sending", name, self.client_id, topic, qos, packet_id if self.durable else 0)
        self._send(publish)

    def retain(self, topic: str, qos: int, clear: bool) -> None:
        if len(self.sent) >= 20 or any(each is not None and each[2] == topic for each in self.sent.values()):
            return
        name = self.run.new_name(self.client_id)
        packet_id = self._id()
        publish = Publish(topic, b"" if clear else name.encode(), qos, True, False, packet_id)
        self.sent[packet_id] = (name, qos, topic, publish)
        self._tell("sending", name, self.client_id, f"-{topic}", qos, packet_id if self.durable else 0)
        self._tell("retaining", topic, "" if clear else name)
        self._send(publish)

    def answer(self, most: int) -> None:
        """Send what is due, at most so many."""
        while self.due and most > 0:
            most -= 1
            ack, name = self.due.popleft()
            if ack.type in (c.PUBACK, c.PUBREC):
                if self.durable:
                    self._tell("answering", self.client_id, name)
            elif ack.type == c.PUBREL and self.durable:
                self._tell("releasing", self.client_id, ack.packet_id)
            self._send(ack)

    def _send(self, packet: Packet) -> None:
        assert self.conversation is not None
        self.conversation.send(packet)

    # --- what it reads

    def take(self) -> None:
        """Read everything that came."""
        conversation = self.conversation
        if conversation is None:
            return
        for packet in conversation.received():
            if isinstance(packet, Connack):
                self._connack(packet)
            elif isinstance(packet, Publish):
                self._publish(packet)
            elif isinstance(packet, Ack):
                self._ack(packet)
            elif isinstance(packet, Suback):
                topic_filter, qos = self.requests.pop(packet.packet_id)
                code = packet.reason_codes[0]
                if code < 0x80:
                    assert code == qos, packet
                    if self.durable:
                        self._tell("subscribed", self.client_id, topic_filter, qos)
            elif isinstance(packet, Unsuback):
                topic_filter, _ = self.requests.pop(packet.packet_id)
                if self.durable and not (packet.reason_codes and packet.reason_codes[0] >= 0x80):
                    self._tell("unsubscribed", self.client_id, topic_filter)
            elif isinstance(packet, Disconnect):
                pass
            else:
                raise AssertionError(packet)
        if conversation.closed and self.conversation is conversation:
            self._gone()

    def _connack(self, packet: Connack) -> None:
        if packet.reason_code:
            self.run.refused += 1
            assert packet.reason_code in (0x97, 3), packet
            return
        self.online = True
        if not packet.session_present:
            self._forget()
        if self.durable:
            self._tell("connected", self.client_id, bool(packet.session_present))
        for packet_id, sent in self.sent.items():
            if sent is None:
                self.due.append((Ack(c.PUBREL, packet_id), ""))
            else:
                sent[3].dup = True
                self._send(sent[3])

    def _publish(self, packet: Publish) -> None:
        name = packet.payload.decode().rstrip()
        if packet.qos == 0 or packet.retain:
            self.run.wrong.append(f"{self.client_id} was sent {packet}")
            return
        if packet.qos == 2:
            known = self.awaiting.get(packet.packet_id)
            if known not in (None, name):
                self.run.wrong.append(f"{self.client_id}: packet id {packet.packet_id} is {known}, now {name}")
            self.awaiting[packet.packet_id] = name
        if self.durable:
            self._tell("took", self.client_id, name, packet.qos, packet.packet_id)
        self.due.append((Ack(c.PUBREC if packet.qos == 2 else c.PUBACK, packet.packet_id), name))

    def _ack(self, packet: Ack) -> None:
        packet_id = packet.packet_id
        if packet.type == c.PUBREL:
            self.awaiting.pop(packet_id, None)
            if self.durable:
                self._tell("released", self.client_id, packet_id)
            self.due.append((Ack(c.PUBCOMP, packet_id), ""))
        elif packet.type == c.PUBCOMP:
            if packet_id in self.sent:
                del self.sent[packet_id]
                if self.durable:
                    self._tell("freed", self.client_id, packet_id)
        else:
            self._stored(packet)

    def _stored(self, packet: Ack) -> None:
        sent = self.sent.pop(packet.packet_id, None)
        if sent is None:
            return
        name, _, topic, publish = sent
        if packet.reason_code >= 0x80:
            assert packet.reason_code == 0x97, packet
            self.run.refused += 1
            self._tell("refusal", name)
            if topic:
                self._tell("retained_refused", topic)
            return
        received = packet.type == c.PUBREC
        self._tell("acknowledged", name, self.client_id, packet.packet_id if received and self.durable else 0)
        if topic:
            self._tell("retained_acknowledged", topic, publish.payload.decode())
        if self.will and received:
            self._tell("will_armed", self.will)
        if received:
            self.sent[packet.packet_id] = None
            self.due.append((Ack(c.PUBREL, packet.packet_id), ""))


class Run:
    """The script. ``facts`` go by the number of disk operations before them; ``wrong`` is what clients complained of."""

    def __init__(self, directory: Path, seed: int, queue_memory: int = 20_000) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk(f"run-{seed}-{id(self)}")
        self.facts: list[tuple[int, Fact]] = []
        self.account = Account()
        self.wrong: list[str] = []
        self.refused = 0
        self.steps = 0
        self._names = 0
        self._pending: list[tuple[float, str]] = []  # wills of clients that vanished: due, name
        self.house = DiskHouse(directory, self.disk, queue_memory)
        self.publishers = [
            Player(self, "p5", 5, True), Player(self, "p4", 4, True), Player(self, "c5", 5, False),
        ]  # fmt: skip
        self.takers = [
            Player(self, "all5", 5, True), Player(self, "all4", 4, True), Player(self, "slow5", 5, True, 3),
            Player(self, "change5", 5, True), Player(self, "change4", 4, True), Player(self, "clean5", 5, False),
        ]  # fmt: skip
        self.willers: list[Player] = []

    def tell(self, name: str, *arguments: object) -> None:
        fact = (name, arguments)
        self.facts.append((len(self.disk.events), fact))
        self.account.tell(fact)

    def new_name(self, client_id: str) -> str:
        self._names += 1
        return f"{client_id}:{self._names}"

    @property
    def players(self) -> list[Player]:
        return [*self.publishers, *self.takers, *self.willers]

    async def play(self, go_on: Callable[["Run"], bool]) -> None:
        """Steps as long as ``go_on`` says so and nobody complains."""
        while go_on(self) and not self.wrong:
            self.steps += 1
            self._step()
            await self.house.settle()
            if self.random.random() < 0.6:
                self.house.writer.step()
                await self.house.settle()
            for player in self.players:
                player.take()

    def _step(self) -> None:
        random = self.random
        what = random.random()
        if what < 0.45:
            player = random.choice(self.publishers)
            if not player.online:
                self._come(player)
                return
            for _ in range(random.randint(1, 6)):
                if random.random() < 0.12 and player is not self.publishers[2]:
                    # One publisher and one QoS for each topic.
                    own = random.randrange(RETAINED) // 2 * 2 + self.publishers.index(player)
                    player.retain(f"r/{own}", 1 + own // 2, random.random() < 0.3)
                else:
                    size = random.choice((0, 0, 100, 3000))
                    player.publish(f"t/{random.randrange(AREAS)}/x", random.choice((1, 2)), size)
        elif what < 0.75:
            for player in self.players:
                if random.random() < 0.6:
                    player.answer(random.randint(1, 12))
        elif what < 0.85:
            player = random.choice(self.takers)
            if not player.online:
                self._come(player)
            elif player.client_id.startswith("all") or player.client_id == "slow5":
                for area in range(AREAS):
                    if player.durable and self.account.side(player.client_id).filters.get(f"t/{area}/#", -2) < 0:
                        player.subscribe(f"t/{area}/#", 2)
            elif random.random() < 0.5:
                player.subscribe(f"t/{random.randrange(AREAS)}/#", random.choice((1, 2)))
            else:
                player.unsubscribe(f"t/{random.randrange(AREAS)}/#")
        elif what < 0.92:
            self._shake(random.choice([*self.publishers, *self.takers]))
        elif what < 0.96:
            self._will()
        else:
            self._pass_time(random.choice((1, 1, 3)))

    def _come(self, player: Player) -> None:
        if player.conversation is None:
            clean = player.client_id.startswith("change") and self.random.random() < 0.1 and player.version == 5
            player.connect(clean)

    def _shake(self, player: Player) -> None:
        what = self.random.random()
        if not player.online:
            self._come(player)
        elif what < 0.3:
            player.vanish()
        elif what < 0.55:
            player.leave()
        elif what < 0.75:
            if player.durable:
                player.take()
                player._gone()  # of the connection that is taken over nothing is read any more
                player.connect(False)
        elif player.client_id == "change5":
            player.leave(end=True)

    def _will(self) -> None:
        """A client with a will comes, or publishes so that the will is known to be stored, or goes."""
        random = self.random
        for player in self.willers:
            if not player.online or random.random() < 0.4:
                continue
            if player.will not in self.account.armed:
                player.publish("t/0/x", 2, 0)
            elif random.random() < 0.4:
                self.tell("goodbye", player.will)
                player.leave()
                self.willers.remove(player)
            else:
                self._vanish_with_will(player)
            return
        if len(self.willers) < 3:
            self._names += 1
            player = Player(self, f"w{self._names}", 5, True)
            delayed = random.random() < 0.5
            qos = random.choice((1, 2))
            player.will = f"will-{'late' if delayed else 'now'}:{self._names}"
            topic = f"t/{random.randrange(AREAS)}/w"
            self.tell("will", player.will, player.client_id, topic, qos)
            properties = {c.WILL_DELAY_INTERVAL: WILL_DELAY} if delayed else {}
            self.willers.append(player)
            player.connect(False, Will(topic, player.will.encode(), qos, False, properties))

    def _vanish_with_will(self, player: Player) -> None:
        player.take()
        if player.will.startswith("will-late"):
            self._pending.append((self.house.clock.time + WILL_DELAY, player.will))
        else:
            self.tell("will_due", player.will)
        self.willers.remove(player)
        player.vanish()

    def _pass_time(self, seconds: int) -> None:
        now = self.house.clock.time + seconds
        for due, name in list(self._pending):
            if due <= now:
                self._pending.remove((due, name))
                self.tell("will_due", name)
        self.house.pass_time(seconds)
        self.house.housekeep()


def outcome_of(found: dict[int, bytes], time: float) -> Outcome:
    """What a node makes of these batches, ``time`` being now; the wills of those who were there have gone out."""
    last = max(found, default=0)
    house = DurableHouse(ZONE, [decode(found[seq]) if seq in found else [] for seq in range(1, last + 1)], time)
    house.pass_time(WILL_DELAY + 1)
    sessions = {}
    for session in house.broker.sessions:
        if session.diary is not None:
            sessions[session.client_id] = Found(
                {each.filter: each.qos for each in session.subscriptions.values()},
                {pid: None if each is None else _name(each) for pid, each in session.inflight.items()},
                [_name(each) for each in session.queue or ()],
                set(session.awaiting_rel or ()),
            )
    retained = {}
    for topic in house.broker.retained.topics():
        message = house.broker.retained.get(topic)
        assert message is not None
        retained[topic] = message.payload.decode()
    return Outcome(sessions, retained)


def _name(delivery: Any) -> str:
    return str(delivery.message.payload.decode().rstrip())
