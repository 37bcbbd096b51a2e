"""Subscription: the messages of a Topic Filter, inside the program that runs the node."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final

from .broker.config import ZoneSettings
from .broker.mqtt.message import Delivery
from .broker.mqtt.message import Message as BrokerMessage
from .broker.mqtt.run import Run
from .broker.mqtt.topics import is_exclusive, parse_filter
from .broker.session.client_info import ClientInfo
from .broker.session.limits import Limits
from .broker.session.session import Session
from .broker.session.subscription import Subscription as Subscribed
from .message import Message

if TYPE_CHECKING:
    from .broker.server import Server

PREFIX: Final = "\0subscriber:"
MAX_BYTES: Final = 67_108_864
_REASON: Final = "subscriber_queue_full"
_SETTING: Final = "max_queued of subscribe"


class _Receiver:
    """A ``ClientWriter`` that queues messages, up to its limits, until the program reads them."""

    def __init__(self, server: Server, name: str, most: int) -> None:
        self.messages: deque[tuple[BrokerMessage, bool]] = deque()
        self.arrived = asyncio.Event()
        self.over = False
        self.dropped = 0
        self._server = server
        self._name = name
        self._most = most
        self._bytes = 0
        self.writable = True

    def flush_now(self) -> None:
        pass

    def send_publish0(self, message: BrokerMessage) -> None:
        self._take(message, False)

    def send_run0(self, run: Run) -> None:
        for message in run.messages:
            self._take(message, False)

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        self._take(delivery.message, delivery.retain)
        return packet_id == 0  # what has an identifier is done: the program does not acknowledge

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        for delivery in deliveries:
            self._take(delivery.message, delivery.retain)
        return packet_ids

    def _take(self, message: BrokerMessage, retain: bool) -> None:
        if not self.writable:
            self.dropped += 1
            server = self._server
            server.metrics.refusals.add(_REASON)
            server.broker.throttled_log.warn(
                "delivery_dropped", self._name, message.topic, _REASON, _SETTING, server.clock.now()
            )
            return
        self.messages.append((message, retain))
        self._bytes += message.payload_size
        self._look()
        self.arrived.set()

    def pop(self) -> tuple[BrokerMessage, bool]:
        message, retain = self.messages.popleft()
        self._bytes -= message.payload_size
        self._look()
        return message, retain

    def _look(self) -> None:
        self.writable = len(self.messages) < self._most and self._bytes < MAX_BYTES


class Subscription:
    """An asynchronous iterator over the messages of a Topic Filter, retained messages first.

    The subscription is active from the call of ``Node.subscribe`` until ``close``, the end of ``async with``, or until
    the program no longer references it. At most ``max_queued`` messages wait; further ones are dropped, counted in
    ``dropped`` and logged. When the node stops, the iterator yields the messages that wait, and then ends.
    """

    def __init__(self, server: Server, number: int, topic_filter: str, max_queued: object) -> None:
        try:
            group, plain = parse_filter(topic_filter)
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"subscribe: {topic_filter!r} is not a Topic Filter") from None
        if is_exclusive(topic_filter):
            raise ValueError(f"subscribe: {topic_filter!r}: only clients can have exclusive subscriptions")
        if isinstance(max_queued, bool) or not isinstance(max_queued, int) or max_queued < 1:
            raise ValueError(f"subscribe: max_queued: expected a number of at least 1, got {max_queued!r}")
        self.filter: Final = topic_filter
        self._server = server
        self._receiver = _Receiver(server, f"subscriber:{number}", max_queued)
        now = server.clock.now()
        client = ClientInfo(server.settings.node.name, ZoneSettings(), client_id=f"{PREFIX}{number}")
        self._session = session = Session(client, Limits(), server.broker, now)
        server.broker.sessions.add(session)
        session.attach(self._receiver, 1, session.limits, now)
        # QoS 0: within one process, no message needs an acknowledgement.
        server.broker.subscribe(session, Subscribed(session, topic_filter, 0, group=group, topic_filter=plain))
        session.advance(now)
        self._end = weakref.finalize(self, _end_later, asyncio.get_running_loop(), server, session, self._receiver)
        self._end.atexit = False

    @property
    def dropped(self) -> int:
        """The number of messages dropped because ``max_queued`` messages, or too many bytes, were waiting."""
        return self._receiver.dropped

    def close(self) -> None:
        """End the subscription. The iterator yields the messages that wait, and then ends."""
        if self._end.detach() is not None:
            _end(self._server, self._session, self._receiver)

    def __aiter__(self) -> Subscription:
        return self

    def take(self) -> Message | None:
        """Return the next message that waits, or None."""
        return Message.of(*self._receiver.pop()) if self._receiver.messages else None

    async def __anext__(self) -> Message:
        receiver = self._receiver
        while not receiver.messages:
            if receiver.over:
                raise StopAsyncIteration
            receiver.arrived.clear()
            if self._session.busy:
                # Retained messages arrive in slices, as the program reads them.
                self._session.advance(self._server.clock.now())
                if not receiver.messages:
                    await asyncio.sleep(0)
            else:
                await receiver.arrived.wait()
        return Message.of(*receiver.pop())

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(server: Server, session: Session, receiver: _Receiver) -> None:
    server.broker.life.end_session(session, "normal", server.clock.now())
    receiver.over = True
    receiver.arrived.set()


def _end_later(loop: asyncio.AbstractEventLoop, server: Server, session: Session, receiver: _Receiver) -> None:
    """End a subscription that the program no longer references. May run in any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_end, server, session, receiver)
