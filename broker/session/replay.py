"""Replay: retained messages that a session is still to be sent because of its SUBSCRIBEs."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from ..mqtt.message import Message
from .subscription import Subscription

# So many retained messages, or so many bytes of them, go to a client before its output is written.
REPLAY_SLICE: Final = 512
REPLAY_BYTES: Final = 262_144


class Replay:
    """What is left to send, filter by filter, fetched as the client keeps up. ``None`` from an iterator: not now."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[Iterator[Message | None], Subscription]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, messages: Iterator[Message | None], subscription: Subscription) -> None:
        """All of a filter comes again, so there is one for each at most."""
        self._left.pop(subscription.filter, None)
        self._left[subscription.filter] = (messages, subscription)

    def stop(self, filter: str) -> None:
        """What is left of this filter is not sent."""
        self._left.pop(filter, None)

    def advance(self, send: Callable[[Message, Subscription], bool]) -> None:
        """Give ``send`` the next ones until a slice is full, or it says that no other may follow at once."""
        messages_left = REPLAY_SLICE
        octets_left = REPLAY_BYTES
        left = self._left
        while left:
            filter = next(iter(left))
            messages, subscription = left[filter]
            for message in messages:
                if message is None:
                    return
                messages_left -= 1
                octets_left -= message.payload_size
                if not send(message, subscription) or messages_left == 0 or octets_left <= 0:
                    return
            left.pop(filter, None)
