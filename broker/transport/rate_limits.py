"""Rate limits: how fast one connection is read, in PUBLISH packets and in bytes; and the token bucket of any limit."""

from typing import Final

from ..mqtt.decoder import Packet
from ..mqtt.message import Message

_ROUNDING: Final = 1e-6


class TokenBucket:
    """Allows ``amount`` every ``seconds``, all of it at once if nothing was used before.

    Time is an argument, in seconds of any clock that does not run backwards; the bucket is full at its first use."""

    __slots__ = ("_at", "_most", "_tokens", "amount", "rate")

    def __init__(self, amount: float, seconds: float, least: float = 0.0) -> None:
        """``least``: the bucket holds at least the amount of this many seconds."""
        if amount <= 0 or seconds <= 0:
            raise ValueError(f"a limit needs an amount and seconds above 0, not [{amount}, {seconds}]")
        self.amount = amount
        self.rate = amount / seconds
        self._most = max(amount, self.rate * least)
        self._tokens = float(amount)
        self._at: float | None = None

    @property
    def bound(self) -> tuple[float, float]:
        """The amount and its seconds."""
        return self.amount, self.amount / self.rate

    def _refill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._tokens = min(self._most, self._tokens + (now - self._at) * self.rate)
        if self._at is None or now > self._at:
            self._at = now

    def consume(self, n: float, now: float) -> float:
        """Use ``n`` that has already passed; return the seconds to pause until the debt is paid, 0.0 if there is none.

        More than ``amount`` at once causes a longer pause, not an error, because data that was read cannot be
        unread."""
        self._refill(now)
        self._tokens -= n
        return 0.0 if self._tokens >= 0 else -self._tokens / self.rate

    def has(self, n: float, now: float) -> bool:
        """Return whether ``n`` may pass now. If it is more than the bucket can hold, it may pass when the bucket is
        half full, and leaves a debt."""
        self._refill(now)
        return self._tokens >= self._needed(n) - _ROUNDING

    def wait(self, n: float, now: float) -> float:
        """Return the seconds until ``has``, if nothing passes before."""
        self._refill(now)
        return max(0.0, self._needed(n) - self._tokens) / self.rate

    def _needed(self, n: float) -> float:
        return n if n <= self._most else self._most / 2

    def take(self, n: float, now: float) -> bool:
        """Use ``n`` if there is enough; otherwise use nothing and return False."""
        self._refill(now)
        if self._tokens < n:
            return False
        self._tokens -= n
        return True


Rate = tuple[float, float]
"""An amount, and the seconds in which it may pass."""

_TICK: Final = 0.2
"""In seconds: two ticks of the node's timers, which process waiting packets. A bucket always holds the amount of this
time; otherwise one with a small amount for a short time would allow less than its limit."""


class RateLimits:
    """The limits of messages and of bytes; at least one of them is set.

    PUBLISH packets are charged when they are processed, and wait until they can be. Bytes of all other packets, and of
    an incomplete packet, are charged when they arrive: ``received`` returns how long reading has to pause."""

    __slots__ = ("_begun", "_bytes", "_messages", "_paid_bytes")

    def __init__(self, message_rate: Rate | None, byte_rate: Rate | None) -> None:
        self._messages = None if message_rate is None else TokenBucket(*message_rate, least=_TICK)
        self._bytes = None if byte_rate is None else TokenBucket(*byte_rate, least=_TICK)
        # Charged bytes of the incomplete packet; and bytes of waiting packets.
        self._begun = 0
        self._paid_bytes = 0

    @property
    def bounds(self) -> tuple[Rate | None, Rate | None]:
        """The limits of messages and of bytes."""
        messages, size = self._messages, self._bytes
        return (None if messages is None else messages.bound, None if size is None else size.bound)

    def received(self, size: int, packets: list[Packet], unfinished: int, now: float) -> float:
        """Charge ``size`` received bytes: these packets are complete, and ``unfinished`` bytes of the next one have
        arrived. Return the seconds until the part that does not wait is paid; 0.0: it is."""
        bucket = self._bytes
        if bucket is None:
            return 0.0
        if packets:
            waiting = sum([packet.wire_size for packet in packets if isinstance(packet, Message)])
            first = packets[0]
            if isinstance(first, Message):
                begun = min(self._begun, first.wire_size)  # a gateway creates small packets from large requests
                self._paid_bytes += begun
                size += begun
            size -= waiting
        self._begun = unfinished
        return bucket.consume(max(0, size), now)

    def admit(self, packets: list[Packet], paid: int, now: float) -> int:
        """Return how many of ``packets``, from the first one on, may be processed now; the first ``paid`` PUBLISHes are
        already paid."""
        messages, size = self._messages, self._bytes
        for at, packet in enumerate(packets):
            if not isinstance(packet, Message):
                continue
            if paid:
                paid -= 1
                continue
            if messages is not None and not messages.has(1, now):
                return at
            if size is not None:
                owed = packet.wire_size - self._paid_bytes
                if owed > 0 and not size.has(owed, now):
                    return at
                if owed > 0:
                    size.consume(owed, now)
                self._paid_bytes = max(0, -owed)
            if messages is not None:
                messages.consume(1, now)
        return len(packets)

    def wait(self, packet: Packet, now: float) -> float:
        """Return the seconds until ``admit`` allows this packet."""
        if not isinstance(packet, Message):
            return 0.0
        messages, size = self._messages, self._bytes
        wait = 0.0 if messages is None else messages.wait(1, now)
        return wait if size is None else max(wait, size.wait(packet.wire_size - self._paid_bytes, now))

    @property
    def patience(self) -> float:
        """Return how many seconds a full bucket of bytes lasts."""
        return 0.0 if self._bytes is None else self._bytes.bound[1]


def rate_limits(message_rate: Rate | None, byte_rate: Rate | None) -> RateLimits | None:
    """Return None if neither is limited."""
    return None if message_rate is None and byte_rate is None else RateLimits(message_rate, byte_rate)
