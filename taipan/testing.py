"""A broker for tests of applications: new for each test, in memory, in its own thread, with faults on demand.

pytest: the fixtures ``mqtt_broker`` and ``mqtt_broker_session`` provide a ``Broker``. unittest: ``MqttTestCase``, or
``with Broker() as broker``.
"""

from __future__ import annotations

import asyncio
import threading
import time
import unittest
from collections import deque
from collections.abc import Callable, Generator, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from .background import BackgroundNode
from .broker.mqtt.topics import matches, valid_filter
from .faults import NO_PACKET, REFUSALS, Faults, on_loop
from .keywords import Keywords
from .management.configuration.config_document import ConfigError
from .message import Client, Message, Properties
from .node import NodeError

MAX_MESSAGES: Final = 100_000
"""The most messages that a broker keeps; beyond this, it forgets the oldest."""
_CLOSED: Final = 10.0


class Misuse(AssertionError):
    """The test uses the broker in a way that cannot work. The message is one sentence with the reason."""


class Expectation:
    """The messages for which ``Broker.expect`` waits: ``await`` this, or call ``result()``."""

    def __init__(self, broker: Broker, topic_filter: str, count: int, timeout: float) -> None:
        self._broker = broker
        self._filter = topic_filter
        self._count = count
        self._timeout = timeout
        self._asked = False

    def result(self) -> list[Message]:
        """Return the messages. Raises AssertionError if fewer than ``count`` arrive before the timeout."""
        self._asked = True
        arrived = threading.Event()
        until = time.monotonic() + self._timeout
        with self._broker._watched(arrived.set):
            while True:
                arrived.clear()
                found = self._broker._take(self._filter, self._count)
                if found is not None:
                    return found
                if not arrived.wait(max(0.0, until - time.monotonic())):
                    raise self._failure(_blocked_loop())

    def __await__(self) -> Generator[Any, None, list[Message]]:
        return self._wait().__await__()

    async def _wait(self) -> list[Message]:
        self._asked = True
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        with self._broker._watched(lambda: loop.call_soon_threadsafe(arrived.set)):
            try:
                async with asyncio.timeout(self._timeout):
                    while True:
                        arrived.clear()
                        found = self._broker._take(self._filter, self._count)
                        if found is not None:
                            return found
                        await arrived.wait()
            except TimeoutError:
                raise self._failure() from None

    def _failure(self, hint: str = "") -> AssertionError:
        got = self._broker._matching(self._filter)
        seen = sorted({message.topic for message in self._broker.messages})
        shown = ", ".join(map(repr, got)) if got else f"topics seen: {', '.join(seen[:10]) or 'none'}"
        noun = "message" if self._count == 1 else "messages"
        wanted = f"expected {self._count} {noun} for {self._filter!r} within {self._timeout} s"
        return AssertionError(f"{wanted}, got {len(got)} ({shown}){hint}")


class Broker:
    """A broker at a free port of the loopback interface: ``with Broker(...) as broker``, or ``start`` and ``stop``.

    ``auth``: passwords by username; the broker refuses other clients. Other keywords are those of ``taipan.Node``.
    """

    def __init__(self, *, auth: Mapping[str, str] | None = None, **settings: Any) -> None:
        known = [*Keywords.__annotations__, "config"]
        for name in settings:
            if name not in known:
                near = get_close_matches(name, [*known, "auth"], 1)
                raise Misuse(f"mqtt has no keyword {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        given: object = auth
        if given is not None and not (isinstance(given, Mapping) and all(type(each) is str for each in given.values())):
            raise Misuse("auth: expected a dictionary of passwords by username")
        self._auth = auth
        self._settings = {"listeners": ["tcp://127.0.0.1:0"], "durability": "memory", **settings}
        self._faults = Faults()
        self._messages: deque[tuple[int, Message]] = deque(maxlen=MAX_MESSAGES)
        self._number = 0
        self._taken: set[int] = set()
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], object]] = []
        self._expectations: list[Expectation] = []
        self._background = self._make(self._settings)

    def _make(self, settings: Mapping[str, Any]) -> BackgroundNode:
        try:
            made = BackgroundNode(**settings)
        except (ConfigError, TypeError) as error:
            raise Misuse(f"mqtt: {error}") from None
        if self._auth is not None:
            made.add_authenticator(self._who)
        made.node.on_message_publish(self._seen, priority=-1_000_000)
        return made

    def _who(self, client: Client, password: bytes | None) -> bool:
        known = None if self._auth is None or client.username is None else self._auth.get(client.username)
        return known is not None and password == known.encode()

    def _seen(self, message: Message) -> Message:
        with self._lock:
            self._number += 1
            self._messages.append((self._number, message))
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()
        return message

    # ----------------------------------------------------------- start, stop

    def start(self) -> Self:
        """Start the broker. Raises Misuse if it cannot start."""
        try:
            self._background.start()
        except NodeError as error:
            raise Misuse(f"mqtt: {error}") from None
        self._intercept()
        return self

    def _intercept(self) -> None:
        for listener in self._background.node._listeners:
            listener.intercept = self._faults.wrap

    def stop(self) -> None:
        """Stop the broker. Raises Misuse if an ``expect`` was neither awaited nor asked for its result."""
        self._background.stop()
        forgotten = [each for each in self._expectations if not each._asked]
        self._expectations.clear()
        if forgotten:
            raise Misuse(f"expect({forgotten[0]._filter!r}) was neither awaited nor asked for its result()")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._expectations.clear()
        self.stop()

    @property
    def node(self) -> BackgroundNode:
        """The node itself."""
        return self._background

    @property
    def url(self) -> str:
        """The URL of the broker, such as ``mqtt://127.0.0.1:41233``."""
        return self._background.url

    @property
    def host(self) -> str:
        """The host to which clients connect."""
        return self._background.host

    @property
    def port(self) -> int:
        """The port to which clients connect."""
        return self._background.port

    # -------------------------------------------------------------- messages

    @property
    def messages(self) -> list[Message]:
        """The messages of all publishers, in their order: at most the last ``MAX_MESSAGES``."""
        with self._lock:
            return [message for _, message in self._messages]

    def _after(self, number: int) -> list[Message]:
        """Return the messages after the one with this number."""
        with self._lock:
            return [message for each, message in self._messages if each > number]

    @property
    def clients(self) -> list[str]:
        """The client IDs of connected clients."""
        node = self._background
        return node.call(on_loop(node.node._client_ids)) if node.running else []

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """Publish to the clients."""
        try:
            self._background.publish(topic, payload, qos, retain, properties)
        except (ValueError, TypeError) as error:
            raise Misuse(f"publish: {error}") from None

    def expect(self, topic_filter: str, count: int = 1, timeout: float = 1.0) -> Expectation:
        """Expect the first ``count`` messages of the filter that no other ``expect`` has received.

        Use ``await broker.expect("a/#", count=3)`` or ``broker.expect("a/#").result()``. Messages from before the call
        also match. ``timeout`` is in seconds. Raises Misuse if an argument is invalid.
        """
        if type(topic_filter) is not str or not valid_filter(topic_filter):
            raise Misuse(f"expect: {topic_filter!r} is not a Topic Filter")
        _count("expect: count", count)
        _seconds("expect: timeout", timeout)
        made = Expectation(self, topic_filter, count, timeout)
        self._expectations.append(made)
        return made

    def _matching(self, topic_filter: str) -> list[Message]:
        with self._lock:
            return [m for number, m in self._messages if number not in self._taken and matches(topic_filter, m.topic)]

    def _take(self, topic_filter: str, count: int) -> list[Message] | None:
        with self._lock:
            found = [
                (number, message)
                for number, message in self._messages
                if number not in self._taken and matches(topic_filter, message.topic)
            ][:count]
            if len(found) < count:
                return None
            oldest = self._messages[0][0]
            self._taken = {each for each in self._taken if each >= oldest} | {number for number, _ in found}
        return [message for _, message in found]

    def _watched(self, watcher: Callable[[], object]) -> _Watched:
        return _Watched(self._lock, self._watchers, watcher)

    # ---------------------------------------------------------------- faults

    def _do(self, what: str, work: Callable[[], Any]) -> Any:
        if not self._background.running:
            raise Misuse(f"{what}: the broker does not run")
        return self._background.call(on_loop(work))

    def _arm(self, what: str, **faults: float | int | None) -> None:
        def arm() -> None:
            for name, value in faults.items():
                setattr(self._faults, name, value)

        self._do(what, arm)

    def drop(self, client_id: str) -> None:
        """End the connection of a client without a DISCONNECT. Raises Misuse if it is not connected."""

        def abort() -> list[str] | None:
            wire = self._faults.of(client_id)
            if wire is None:
                return sorted(each.client_id for each in self._faults.wires)
            wire.abort()
            return None

        self._absent("drop", client_id, self._do("drop", abort))

    def _absent(self, what: str, client_id: str, there: list[str] | None) -> None:
        if there is not None:
            names = ", ".join(map(repr, there)) or "none"
            raise Misuse(f"{what}: no client {client_id!r} is connected (connected clients: {names})")

    def refuse(self, reason: str = "server_unavailable", times: int | None = None) -> None:
        """Refuse the next ``times`` CONNECTs; without ``times``, all of them.

        ``reason`` is a Reason Code of MQTT 5.0, such as ``not_authorized``; a 3.x client receives the nearest code of
        its version. Raises Misuse for an unknown reason.
        """
        if reason not in REFUSALS:
            near = get_close_matches(str(reason), REFUSALS, 1)
            raise Misuse(f"refuse: no reason {reason!r}; " + (f"did you mean {near[0]!r}?" if near else _one_of()))
        self._arm("refuse", refusal=REFUSALS[reason], refusals_left=0 if times is None else _count("refuse", times))

    def accept(self) -> None:
        """Stop refusing clients."""
        self._arm("accept", refusal=None, refusals_left=0)

    def delay_acks(self, seconds: float) -> None:
        """Delay PUBACK, PUBREC, PUBCOMP, SUBACK and UNSUBACK by ``seconds`` from now on; 0 ends the delay."""
        _seconds("delay_acks", seconds)
        self._arm("delay_acks", ack_delay=seconds)

    def lose_next(self, n: int = 1, *, to_clients: bool = False) -> None:
        """Lose the next ``n`` PUBLISH packets from clients, without acknowledgements; ``to_clients``: to clients."""
        self._arm("lose_next", **{"lose_out" if to_clients else "lose_in": _count("lose_next", n)})

    def duplicate_next(self, n: int = 1) -> None:
        """Send the next ``n`` PUBLISH packets to clients twice; at QoS 1 and 2, the second one has DUP."""
        self._arm("duplicate_next", duplicate=_count("duplicate_next", n))

    def malformed(self, client_id: str) -> None:
        """Send a client bytes that are not a packet. Raises Misuse if it is not connected."""

        def write() -> list[str] | None:
            wire = self._faults.of(client_id)
            if wire is None:
                return sorted(each.client_id for each in self._faults.wires)
            wire.write(NO_PACKET)
            return None

        self._absent("malformed", client_id, self._do("malformed", write))

    def clear_faults(self) -> None:
        """End all faults."""
        self._do("clear_faults", self._faults.clear)

    def restart(self, keep_state: bool = True) -> None:
        """End all connections and restart at the same port.

        ``keep_state``: keep the sessions that outlive their connection, their queues, and retained messages; otherwise
        start empty.
        """
        if not self._background.running:
            raise Misuse("restart: the broker does not run")
        if keep_state:
            self._background.call(self._reopen())
            return
        binds = [f"{listener.listen_on}" for listener in self._background.node._listeners]
        settings = dict(self._settings)
        made = []
        for listener, bind in zip(self._background.node._listeners, binds, strict=True):
            made.append({"name": listener.name, "type": listener.type, "bind": bind})
        given = list(settings["listeners"])
        settings["listeners"] = [
            {**(each if isinstance(each, Mapping) else {}), **table} for each, table in zip(given, made, strict=True)
        ]
        for table, listener in zip(settings["listeners"], self._background.node._listeners, strict=True):
            if listener.kind.websocket:
                table["path"] = listener.settings.path
        self._background.call(self._close())
        self._background.stop()
        self._background = self._make(settings)
        self.start()

    async def _close(self) -> None:
        for listener in self._background.node._listeners:
            await listener.stop()
        for wire in list(self._faults.wires):
            wire.abort()
        async with asyncio.timeout(_CLOSED):
            while self._faults.wires:
                await asyncio.sleep(0.001)

    async def _reopen(self) -> None:
        await self._close()
        for listener in self._background.node._listeners:
            await listener.start()


def _blocked_loop() -> str:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ""
    return "; result() stops the event loop that it is called on, and the clients on it: await the expect instead"


def _count(what: str, n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise Misuse(f"{what}: expected a number of at least 1, got {n!r}")
    return n


def _seconds(what: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise Misuse(f"{what}: expected a number of seconds, got {given!r}")


def _one_of() -> str:
    return f"one of {', '.join(REFUSALS)}"


class _Watched:
    def __init__(
        self, lock: threading.Lock, watchers: list[Callable[[], object]], watcher: Callable[[], object]
    ) -> None:
        self._lock, self._watchers, self._watcher = lock, watchers, watcher

    def __enter__(self) -> None:
        with self._lock:
            self._watchers.append(self._watcher)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._watchers.remove(self._watcher)


class MqttTestCase(unittest.TestCase):
    """A ``unittest.TestCase`` with a new ``Broker`` for each test: ``self.broker``. ``mqtt``: its keywords."""

    mqtt: ClassVar[Mapping[str, Any]] = {}
    broker: Broker

    def setUp(self) -> None:
        super().setUp()
        self.broker = Broker(**self.mqtt).start()
        self.addCleanup(self.broker.stop)
