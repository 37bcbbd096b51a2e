"""Replay: retained messages that a session is still to be sent because of its SUBSCRIBEs."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..mqtt.message import Delivery, Message
from .protocols import ClientWriter
from .subscription import Subscription

if TYPE_CHECKING:
    from .session import Session

# So many retained messages, or so many bytes of them, go to a client before its output is written.
REPLAY_SLICE: Final = 512
REPLAY_BYTES: Final = 262_144


class Replay:
    """What is left to send, filter by filter, fetched as the client keeps up. ``None`` from an iterator: not now."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[Iterator[Message | None], Subscription]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def __bool__(self) -> bool:
        return len(self._left) > 0

    def add(self, messages: Iterator[Message | None], subscription: Subscription) -> None:
        """All of a filter comes again, so there is one for each at most."""
        self._left.pop(subscription.filter, None)
        self._left[subscription.filter] = (messages, subscription)

    def filters(self) -> list[str]:
        """Of which something is still to be sent."""
        return list(self._left)

    def stop(self, filter: str) -> None:
        """What is left of this filter is not sent."""
        self._left.pop(filter, None)

    def advance(self, session: "Session", writer: ClientWriter) -> None:
        """Let ``session`` send the next ones until a slice is full, or no other may follow at once."""
        messages_left = REPLAY_SLICE
        bytes_left = REPLAY_BYTES
        left = self._left
        while left:
            filter = next(iter(left))
            messages, subscription = left[filter]
            for message in messages:
                if message is None:
                    return
                messages_left -= 1
                bytes_left -= message.payload_size
                qos = subscription.qos if session.limits.upgrade_qos else min(message.qos, subscription.qos)
                if session.durable and qos:
                    message = message.twin()  # it may be on its way to this session already
                delivery = Delivery(message, qos, True, subscription.identifiers)
                if not session.send_retained(writer, delivery) or messages_left == 0 or bytes_left <= 0:
                    return
            left.pop(filter, None)
