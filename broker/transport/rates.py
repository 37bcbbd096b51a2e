"""Rates: how fast one connection is read, in PUBLISH packets and in bytes."""

from ..mqtt.decoder import Packet
from ..mqtt.message import Message
from .limiter import TokenBucket

Rate = tuple[float, float]
"""An amount, and the seconds it may pass in."""


class Rates:
    """A bound for each of the two, or for one of them."""

    __slots__ = ("_messages", "_octets")

    def __init__(self, message_rate: Rate | None, byte_rate: Rate | None) -> None:
        self._messages = None if message_rate is None else TokenBucket(*message_rate)
        self._octets = None if byte_rate is None else TokenBucket(*byte_rate)

    @property
    def bounds(self) -> tuple[Rate | None, Rate | None]:
        """Of messages and of bytes."""
        messages, octets = self._messages, self._octets
        return (None if messages is None else messages.bound, None if octets is None else octets.bound)

    def pause_after(self, octets: int, packets: list[Packet], now: float) -> float:
        """How many seconds to read nothing, these ``packets`` in ``octets`` bytes having been read."""
        pause = 0.0
        if self._messages is not None:
            # PUBLISH alone: acknowledgements come as fast as we send
            count = sum([type(packet) is Message for packet in packets])
            if count:
                pause = self._messages.consume(count, now)
        if self._octets is not None:
            pause = max(pause, self._octets.consume(octets, now))
        return pause


def rates_of(message_rate: Rate | None, byte_rate: Rate | None) -> Rates | None:
    """None where neither is bounded."""
    return None if message_rate is None and byte_rate is None else Rates(message_rate, byte_rate)
