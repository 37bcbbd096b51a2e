"""The one face that all client libraries get here: blocking calls and a queue of received messages."""

import asyncio
import queue
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 40.0
"""Seconds after which an answer that did not come is a failure."""


@dataclass(frozen=True)
class Address:
    """Where the node under test listens, over TCP and over WebSocket."""

    host: str
    port: int
    ws_host: str
    ws_port: int
    ws_path: str = "/mqtt"


@dataclass(frozen=True)
class Received:
    """One message as the library handed it over. ``properties`` has the neutral names of ``InteropClient.publish``."""

    topic: str
    payload: bytes
    qos: int
    retain: bool | None
    properties: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Will:
    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False


class InteropClient(ABC):
    """One client of one library. Calls block until the broker has answered, and raise where it refuses.

    ``version`` is 3, 4 or 5; ``transport`` is ``tcp`` or ``ws``. A persistent client asks for a session that outlives
    its connection. Properties have neutral names: ``user`` (list of pairs), ``content_type``, ``response_topic``,
    ``correlation``, ``payload_format``, ``expiry``.
    """

    library = ""
    largest_payload = 1_048_576
    """Bytes, where the library takes no more."""

    def __init__(
        self,
        address: Address,
        version: int,
        transport: str,
        client_id: str,
        persistent: bool = False,
        clean: bool = True,
        will: Will | None = None,
    ) -> None:
        self.address = address
        self.version = version
        self.transport = transport
        self.client_id = client_id
        self.persistent = persistent
        self.clean = clean
        self.will = will
        self.received: queue.Queue[Received] = queue.Queue()

    @abstractmethod
    def connect(self) -> bool | None:
        """Connect; whether the session was present, ``None`` where the library does not tell."""

    @abstractmethod
    def disconnect(self) -> None:
        """Leave with a DISCONNECT."""

    @abstractmethod
    def drop(self) -> None:
        """Cut the network connection without a DISCONNECT."""

    @abstractmethod
    def subscribe(self, topic_filter: str, qos: int) -> None: ...

    @abstractmethod
    def unsubscribe(self, topic_filter: str) -> None: ...

    @abstractmethod
    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: dict[str, Any] | None = None
    ) -> None: ...

    def next(self, timeout: float = PATIENCE) -> Received:
        """The next message; ``queue.Empty`` when none comes."""
        return self.received.get(timeout=timeout)


def cut(sock: Any) -> None:
    """Shut a library's socket down under it, in both directions."""
    while not isinstance(sock, socket.socket):
        sock = sock._socket
    sock.shutdown(socket.SHUT_RDWR)


class LoopThread:
    """An event loop in a thread of its own, for the libraries that want one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: "Coroutine[Any, Any, T]", timeout: float = PATIENCE) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()
