"""VirtualNats: NATS inside a test, on any event loop: core messages, JetStream buckets, and everything that goes wrong.

hub = VirtualNats(Random(1), servers=3)
nats = hub.client("a")             # ``taipan.broker.cluster.nats.interface.Nats`` of one node
hub.delay = (0.0, 0.02)            # seconds, of each message, drawn for each
hub.drop = hub.repeat = hub.disorder = 0.01   # of core messages
hub.partition({"a"}, {"b", "c"})   # the first side that has a quorum of servers keeps the buckets
hub.heal()

Nothing is real: no socket, no thread, no time but the loop's. With the same ``Random`` and the same loop the same
happens again. Messages between two clients keep their order, but for ``disorder`` and ``pause``.
"""

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from taipan.broker.cluster.nats.interface import (
    BUCKETS,
    NEVER_THERE,
    REPLICAS,
    BucketEntry,
    BucketWrite,
    NatsRefused,
    NoAnswer,
    NoResponders,
    TooLarge,
    Unavailable,
    Unknown,
    WrongRevision,
    fits,
)

_NAMES: Final = (*BUCKETS, REPLICAS)
CORE: Final = "core"
WRITE: Final = "write"
ANSWER: Final = "answer"
WATCH: Final = "watch"

ATTEMPT = 1.0
"""Seconds after which a client sends a write again."""
PAUSE = 0.25
"""Seconds between attempts where there is no leader."""


class _Event(NamedTuple):
    """Something on its way. ``edge``: who sends to whom."""

    when: float
    number: int
    kind: str
    edge: tuple[str, str]
    call: Callable[[], None]


class Bucket:
    """The values of a bucket, and every change in order. ``life``: grows when its data is lost."""

    def __init__(self) -> None:
        self.revision = 0
        self.life = 0
        self.last: dict[str, BucketEntry] = {}
        self.log: list[BucketEntry] = []
        self._nonces: dict[str, int] = {}

    def apply(self, key: str, value: bytes | None, revision: int | None, nonce: str, about: bytes = b"") -> int:
        """The revision of this write; with a nonce that was here before, of that one."""
        before = self._nonces.get(nonce)
        if before is not None:
            return before
        if revision is not None:
            last = self.last.get(key)
            at = last.revision if last is not None else 0
            if revision == 0 and last is not None and last.value is None:
                at = 0
            if at != (0 if revision == NEVER_THERE else revision):
                raise WrongRevision(f"{key} is at {at}, not {revision}")
        self.revision += 1
        entry = BucketEntry(key, value, self.revision, about if value is None else b"")
        self.last[key] = entry
        self.log.append(entry)
        self._nonces[nonce] = self.revision
        return self.revision

    def lose(self) -> None:
        self.revision = 0
        self.life += 1
        self.last.clear()
        self.log.clear()
        self._nonces.clear()

    def value(self, key: str) -> bytes | None:
        entry = self.last.get(key)
        return None if entry is None else entry.value


class VirtualNats:
    """The servers, and what is on the way between them and their clients.

    ``delay``: seconds from and to, of every message; ``delays``: of the messages from one node to another, by their
    names, the servers' own being "". ``drop``, ``repeat``, ``disorder``: probabilities, of core messages; one that is
    out of order is late by up to ``late`` seconds. ``lose_request``, ``lose_answer``: of writes and reads.
    """

    def __init__(self, rng: Random | None = None, servers: int = 1, max_payload: int = 1024 * 1024) -> None:
        self.rng = rng or Random(0)
        self.max_payload = max_payload
        self.buckets = {name: Bucket() for name in _NAMES}
        self.clients: list[VirtualNatsClient] = []
        self.delay = (0.0, 0.0)
        self.delays: dict[tuple[str, str], tuple[float, float]] = {}
        self.drop = self.repeat = self.disorder = 0.0
        self.lose_request = self.lose_answer = 0.0
        self.late = 0.5
        self.election = (4.0, 8.0)
        self.reconnect_delay = (0.01, 0.1)
        self.refusal: NatsRefused | None = None  # what ``start`` of every client raises
        self.trace: Callable[[str], None] | None = None
        self.up = [True] * servers
        self.leader = 0
        self._no_leader_until = float("-inf")
        self._sides: dict[str, int] = {}
        self._quorum_side: int | None = 0
        self._paused = False
        self._held: list[_Event] = []
        self._queue: list[_Event] = []
        self._last_on: dict[tuple[str, str], float] = {}
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        # What is on its way belongs to no node: it arrives also when its sender is gone.
        self._context = contextvars.Context()

    def client(self, name: str) -> "VirtualNatsClient":
        """The connection of the node ``name``; another one for each start of the node."""
        made = VirtualNatsClient(self, name, f"{name}#{next(self._numbers)}")
        made.server = len(self.clients) % len(self.up)
        self.clients.append(made)
        return made

    # ------------------------------------------------------------------ faults

    def partition(self, *sides: Set[str], quorum: int | None = 0) -> None:
        """Nodes of different sides do not hear of each other; ``quorum``: the side that has the buckets, or none. A
        node that no side names is on the side of the quorum."""
        self._note(f"partition {[sorted(side) for side in sides]} quorum={quorum}")
        self._sides = {name: number for number, side in enumerate(sides) for name in side}
        self._quorum_side = quorum

    def heal(self) -> None:
        self._note("heal")
        self._sides = {}
        self._quorum_side = 0
        for bucket in _NAMES:
            self._tell_watches(bucket)

    def lose_leader(self, seconds: float | None = None) -> None:
        """Nothing is written and read for so long; what is on the way may be applied or not."""
        low, high = self.election
        wait = self.rng.uniform(low, high) if seconds is None else seconds
        self._note(f"no leader for {wait:.3f}")
        self._no_leader_until = self.now() + wait

    def pause(self) -> None:
        """SIGSTOP of every server: all that is on the way waits."""
        self._note("pause")
        self._paused = True

    def resume(self, lost: float = 0.5) -> None:
        """SIGCONT. What waited is late, ``lost`` of it never comes, and core messages are in no order."""
        self._note("resume")
        self._paused = False
        held, self._held = self._held, []
        core = [event for event in held if event.kind == CORE]
        self.rng.shuffle(core)
        for event in [event for event in held if event.kind != CORE] + core:
            if event.kind != WATCH and self.rng.random() < lost:
                self._note(f"lost {event.kind} {event.edge}")
            else:
                self._push(self.now(), event.kind, event.edge, event.call)

    def disconnect(self, name: str) -> None:
        """The node's connection breaks and does not come back until ``connect``. What is on its way there is lost."""
        self._note(f"disconnect {name}")
        for client in self._of(name):
            client.lose_connection()

    def connect(self, name: str) -> None:
        self._note(f"connect {name}")
        for client in self._of(name):
            client.connect()

    def stop_server(self, number: int) -> None:
        """SIGKILL of one server: its clients go to another, and if it was the leader there is none for a time."""
        self._note(f"stop server {number}")
        self.up[number] = False
        if self.leader == number:
            self.lose_leader()
            self.leader = next((other for other, up in enumerate(self.up) if up), number)
        for client in self.clients:
            if client.started and client.server == number:
                client.lose_connection()
                self.loop.call_later(self.rng.uniform(*self.reconnect_delay), client.move)

    def start_server(self, number: int) -> None:
        self._note(f"start server {number}")
        self.up[number] = True
        for client in self.clients:
            if client.started and not client.connected:
                self.loop.call_later(self.rng.uniform(*self.reconnect_delay), client.move)
        for bucket in _NAMES:
            self._tell_watches(bucket)

    def lose_bucket(self, name: str) -> None:
        """All data of a bucket is gone, and its revisions begin again: a coordinated loss of power."""
        self._note(f"lose bucket {name}")
        self.buckets[name].lose()
        self._tell_watches(name)

    # ------------------------------------------------------------------- state

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def now(self) -> float:
        return self.loop.time()

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not self._queue and not self._held

    def side(self, name: str) -> int:
        return self._sides.get(name, self._quorum_side or 0)

    def has_buckets(self, name: str) -> bool:
        """Whether this node's side has a quorum and a leader."""
        if self._quorum_side is None or self.side(name) != self._quorum_side:
            return False
        return sum(self.up) * 2 > len(self.up) and self.now() >= self._no_leader_until

    def _of(self, name: str) -> list["VirtualNatsClient"]:
        return [client for client in self.clients if client.name == name]

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(text)

    # -------------------------------------------------------------- on the way

    def send(self, kind: str, edge: tuple[str, str], call: Callable[[], None], late: float = 0.0) -> None:
        """``call`` when what is sent has arrived: after what was sent on the same edge before, unless ``late``."""
        low, high = self.delays.get(edge, self.delay)
        due = self.now() + (self.rng.uniform(low, high) if high > 0 else 0.0)
        if late > 0:
            due += self.rng.uniform(0.0, late)
        else:
            due = max(due, self._last_on.get(edge, 0.0))
            self._last_on[edge] = due
        self._push(due, kind, edge, call)

    def _push(self, due: float, kind: str, edge: tuple[str, str], call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, _Event(due, next(self._numbers), kind, edge, call))
        self._wake()

    def _wake(self) -> None:
        """Run when the first event is due."""
        if not self._queue:
            return
        due = self._queue[0].when
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        if due <= self.now():
            self._timer = self.loop.call_soon(self._run, context=self._context)
        else:
            self._timer = self.loop.call_at(due, self._run, context=self._context)

    def _run(self) -> None:
        self._timer = None
        last = next(self._numbers)  # what is sent from here on waits for the next iteration
        now = self.now()
        kept: list[_Event] = []
        while self._queue and self._queue[0].when <= now:
            event = heapq.heappop(self._queue)
            if event.number > last:
                kept.append(event)
            elif self._paused:
                self._held.append(event)
            else:
                self._call(event.call)
        for event in kept:
            heapq.heappush(self._queue, event)
        self._wake()

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.loop.call_exception_handler({"message": "a callback of VirtualNats raised", "exception": error})

    # ----------------------------------------------------------- core messages

    def publish(self, sender: "VirtualNatsClient", subject: str, data: bytes, reply: str = "") -> int:
        """To everybody who listens and can be reached; how many that are."""
        if len(data) > self.max_payload:
            raise ValueError(f"{len(data)} bytes on {subject}, more than max_payload")
        found = 0
        for client in self.clients:
            if not client.connected or self.side(client.name) != self.side(sender.name):
                continue
            if subject not in client.handlers:
                continue
            found += 1
            if self.drop and self.rng.random() < self.drop:
                self._note(f"drop {sender.name}->{client.name} {subject}")
                continue
            times = 2 if self.repeat and self.rng.random() < self.repeat else 1
            for _ in range(times):
                late = self.late if self.disorder and self.rng.random() < self.disorder else 0.0
                self._deliver(sender, client, subject, data, reply, late)
        return found

    def _deliver(
        self,
        sender: "VirtualNatsClient",
        client: "VirtualNatsClient",
        subject: str,
        data: bytes,
        reply: str,
        late: float,
    ) -> None:
        connection = client.connection

        def arrive() -> None:
            if client.connection != connection or not client.connected:
                return
            if self.side(client.name) != self.side(sender.name):
                return
            for handler in list(client.handlers.get(subject, ())):
                self._call(partial(client.context.run, handler, data, reply))

        self.send(CORE, (sender.name, client.name), arrive, late)

    # ----------------------------------------------------------------- buckets

    def ask(self, client: "VirtualNatsClient", work: Callable[[], object], answer: asyncio.Future[object]) -> None:
        """``work`` at the leader, what it returns or raises to the client; an answer may never come."""
        if self.lose_request and self.rng.random() < self.lose_request:
            self._note(f"lost request of {client.name}")
            return

        def arrive() -> None:
            if self._quorum_side is None or self.side(client.name) != self._quorum_side:
                result: object = Unavailable("no quorum")
            elif not self.has_buckets(client.name):
                result = Unavailable("no leader")
            else:
                try:
                    result = work()
                except WrongRevision as error:
                    result = error
            if self.lose_answer and self.rng.random() < self.lose_answer:
                self._note(f"lost answer to {client.name}")
                return
            connection = client.connection

            def back() -> None:
                if client.connection == connection and client.connected and not answer.done():
                    answer.set_result(result)

            self.send(ANSWER, ("", client.name), back)

        self.send(WRITE, (client.name, ""), arrive)

    def write(
        self, bucket: str, key: str, value: bytes | None, revision: int | None, nonce: str, about: bytes = b""
    ) -> int:
        """What the leader does with a write that has arrived."""
        made = self.buckets[bucket].apply(key, value, revision, nonce, about)
        self._note(f"{bucket} {key} = {'deleted' if value is None else len(value)} at {made}")
        self._tell_watches(bucket)
        return made

    def _tell_watches(self, bucket: str) -> None:
        for client in self.clients:
            for watch in client.watches:
                if watch.bucket == bucket:
                    self.tell(watch)

    def tell(self, watch: "VirtualWatch") -> None:
        """What the bucket has now is on its way to this watch."""
        client = watch.client
        if not client.connected:
            return
        connection, bucket = client.connection, self.buckets[watch.bucket]
        until, life = bucket.revision, bucket.life

        def arrive() -> None:
            if client.connection == connection and client.connected and bucket.life == life:
                if self._quorum_side is not None and self.side(client.name) == self._quorum_side:
                    client.context.run(watch.tell, bucket, until)

        self.send(WATCH, ("", client.name), arrive)


class VirtualWatch:
    """``taipan.broker.cluster.nats.interface.Watch``."""

    def __init__(
        self,
        client: "VirtualNatsClient",
        bucket: str,
        on_entry: Callable[[BucketEntry], None],
        on_current: Callable[[], None],
    ) -> None:
        self.client = client
        self.bucket = bucket
        self.revision = 0
        self.current = False
        self.behind = True  # of changes that were not seen, only the last of each key is there still
        self._life = client.hub.buckets[bucket].life
        self._stopped = False
        self._on_entry = on_entry
        self._on_current = on_current
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def reached(self, revision: int, timeout: float) -> bool:
        if self.revision >= revision:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, future))
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting = [each for each in self._waiting if each[1] is not future]
        return True

    def stop(self) -> None:
        self._stopped = True
        if self in self.client.watches:
            self.client.watches.remove(self)

    def tell(self, bucket: Bucket, until: int) -> None:
        """Every change up to ``until`` that was not told yet, each once and in order."""
        if self._life != bucket.life:
            self._life = bucket.life
            self.revision = 0
            self.current = False
            self.behind = True
            self.client.lost(self.bucket, bucket.life)
        if self.behind:
            # Of what has changed again meanwhile the server has no other value than the last.
            until = bucket.revision
        for entry in bucket.log[self.revision : until]:
            if self._stopped:
                return
            self.revision = entry.revision
            if self.behind and bucket.last[entry.key].revision != entry.revision:
                continue
            self._on_entry(entry)
        self.behind = False
        if not self.current:
            self.current = True
            self._on_current()
        for revision, future in self._waiting:
            if self.revision >= revision and not future.done():
                future.set_result(None)


class VirtualNatsClient:
    """``taipan.broker.cluster.nats.interface.Nats`` of one node."""

    def __init__(self, hub: VirtualNats, name: str, label: str) -> None:
        self.hub = hub
        self.name = name
        self.label = label
        self.server = 0
        self.connected = False
        self.started = False
        self.max_payload = 0
        self.connection = 0  # grows with each one
        self.context = contextvars.copy_context()  # of who started it: its callbacks run there
        # Told of everything that this node asks of NATS, before it is done.
        self.on_operation: Callable[[str], None] = lambda _: None
        self.on_connected: list[Callable[[], None]] = []
        self.on_disconnected: list[Callable[[], None]] = []
        self.on_lost: list[Callable[[str], None]] = []
        self.on_unreadable: Callable[[], None] = lambda: None
        self._lives = {name: bucket.life for name, bucket in hub.buckets.items()}
        self.handlers: dict[str, list[Callable[[bytes, str], None]]] = {}
        self.watches: list[VirtualWatch] = []
        self._numbers = itertools.count(1)
        self._is_connected = asyncio.Event()
        # Of nodes that run in the process of this one.
        self.made: list[VirtualNatsClient] = []

    def another(self, node: str) -> "VirtualNatsClient":
        made = self.hub.client(self.name)  # on this node's side of a partition
        self.made.append(made)
        return made

    # ------------------------------------------------------------- connection

    async def start(self) -> None:
        if self.hub.refusal is not None:
            raise self.hub.refusal
        self.context = contextvars.copy_context()
        self.started = True
        self.move()

    async def stop(self) -> None:
        self.kill()

    def kill(self) -> None:
        """The process of the node is gone: nothing is sent, nothing is called back."""
        for made in self.made:
            made.kill()
        self.started = False
        self.connected = False
        self._is_connected.clear()
        self.connection += 1
        self.handlers.clear()
        self.watches.clear()
        if self in self.hub.clients:
            self.hub.clients.remove(self)

    def move(self) -> None:
        """Connect to a server that is up, the own one if possible."""
        if not self.started or self.connected:
            return
        up = [number for number, is_up in enumerate(self.hub.up) if is_up]
        if not up:
            return
        if self.server not in up:
            self.server = up[self.hub.rng.randrange(len(up))]
        self.connect()

    def connect(self) -> None:
        if not self.started or self.connected:
            return
        self.connected = True
        self.connection += 1
        self.max_payload = self.hub.max_payload
        self._is_connected.set()
        for call in list(self.on_connected):
            self.context.run(call)
        for watch in self.watches:
            watch.behind = True
            self.hub.tell(watch)

    def lose_connection(self) -> None:
        if not self.connected:
            return
        self.connected = False
        self.connection += 1
        self._is_connected.clear()
        for call in list(self.on_disconnected):
            self.context.run(call)

    @property
    def quorum(self) -> bool:
        return self.connected and self.hub.has_buckets(self.name)

    def lost(self, bucket: str, life: int) -> None:
        """The data of a bucket is gone, and this is its ``life`` now: told once, however many watches see it."""
        if self._lives[bucket] != life:
            self._lives[bucket] = life
            for call in list(self.on_lost):
                call(bucket)

    # ---------------------------------------------------------- core messages

    def publish(self, subject: str, data: bytes) -> None:
        self.on_operation(f"publish {subject}")
        if self.connected:
            self.hub.publish(self, subject, data)

    def subscribe(self, subject: str, handler: Callable[[bytes, str], None]) -> None:
        self.handlers.setdefault(subject, []).append(handler)

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        return await self.send_request(subject, data, timeout)

    def send_request(self, subject: str, data: bytes, timeout: float) -> Coroutine[Any, Any, bytes]:
        self.on_operation(f"request {subject}")
        if not self.connected:
            raise Unavailable("not connected")
        inbox = f"_INBOX.{self.label}.{next(self._numbers)}"
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def replied(reply: bytes, _: str) -> None:
            if not answer.done():
                answer.set_result(reply)

        self.handlers[inbox] = [replied]
        listening = self.hub.publish(self, subject, data, inbox)
        return self._answered(subject, inbox, listening, answer, timeout)

    async def _answered(
        self, subject: str, inbox: str, listening: int, answer: asyncio.Future[bytes], timeout: float
    ) -> bytes:
        try:
            if not listening:
                raise NoResponders(f"nothing listens on {subject}")
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise NoAnswer(f"no answer to {subject}") from None
        finally:
            self.handlers.pop(inbox, None)

    # ---------------------------------------------------------------- buckets

    async def write(
        self,
        bucket: str,
        key: str,
        value: bytes | None,
        revision: int | None,
        nonce: str,
        timeout: float = 5.0,
        about: bytes = b"",
    ) -> int:
        self.on_operation(f"write {bucket}")
        if not fits(value or b"", self.max_payload):
            raise TooLarge(f"{len(value or b'')} bytes")
        made = await self._ask(lambda: self.hub.write(bucket, key, value, revision, nonce, about), timeout, Unknown)
        assert isinstance(made, int)
        return made

    async def write_many(self, bucket: str, writes: Sequence[BucketWrite]) -> list[int | None]:
        self.on_operation(f"write {bucket}")
        if not self.connected:
            raise Unavailable("not connected")
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[object]] = []
        for each in writes:
            answers.append(loop.create_future())
            nonce = f"many {next(self.hub._numbers)}"
            self.hub.ask(self, partial(self.hub.write, bucket, each.key, each.value, each.revision, nonce), answers[-1])
        await asyncio.wait(answers, timeout=ATTEMPT)
        results = [each.result() if each.done() else None for each in answers]
        return [each if isinstance(each, int) else None for each in results]

    async def read(self, bucket: str, key: str) -> BucketEntry | None:
        self.on_operation(f"read {bucket}")
        entry = await self._ask(lambda: self.hub.buckets[bucket].last.get(key), 2.0, NoAnswer)
        assert entry is None or isinstance(entry, BucketEntry)
        return entry

    async def _ask(self, work: Callable[[], object], timeout: float, unanswered: type[Exception]) -> object:
        """Asked of the leader again and again, until there is an answer or no time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        sent = False
        while (left := deadline - loop.time()) > 0:
            if not self.connected:
                await self._wait(self._is_connected.wait(), left)
                continue
            answer: asyncio.Future[object] = loop.create_future()
            self.hub.ask(self, work, answer)
            if not await self._wait(answer, min(ATTEMPT, left)):
                sent = True
                continue
            result = answer.result()
            if not isinstance(result, Exception):
                return result
            if not isinstance(result, Unavailable):
                raise result
            await asyncio.sleep(min(PAUSE, max(deadline - loop.time(), 0.0)))
        if sent:
            raise unanswered("no answer in time")
        raise Unavailable("no leader" if self.connected else "not connected")

    async def _wait(self, awaitable: Awaitable[object], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await awaitable
        except TimeoutError:
            return False
        return True

    def watch(
        self, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]
    ) -> VirtualWatch:
        made = VirtualWatch(self, bucket, on_entry, on_current)
        self.watches.append(made)
        self.hub.tell(made)
        return made
