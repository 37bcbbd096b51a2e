"""Rate limits: how fast one connection is read, in PUBLISH packets and in bytes; and the token bucket of any limit."""

from ..mqtt.decoder import Packet
from ..mqtt.message import Message


class TokenBucket:
    """Lets ``amount`` pass every ``seconds``, all of it at once if nothing passed before.

    Time is an argument, in seconds of any clock that does not run backwards; the bucket is full at its first use.
    """

    __slots__ = ("_at", "_tokens", "amount", "rate")

    def __init__(self, amount: float, seconds: float) -> None:
        if amount <= 0 or seconds <= 0:
            raise ValueError(f"a limit needs an amount and seconds above 0, not [{amount}, {seconds}]")
        self.amount = amount
        self.rate = amount / seconds
        self._tokens = float(amount)
        self._at: float | None = None

    @property
    def bound(self) -> tuple[float, float]:
        """Amount and seconds."""
        return self.amount, self.amount / self.rate

    def _refill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._tokens = min(self.amount, self._tokens + (now - self._at) * self.rate)
        if self._at is None or now > self._at:
            self._at = now

    def consume(self, n: float, now: float) -> float:
        """Take ``n`` that has already passed; return the seconds to pause until the debt is paid, 0.0 if there is none.

        More than ``amount`` at once is a longer pause, not an error: what was read cannot be unread.
        """
        self._refill(now)
        self._tokens -= n
        return 0.0 if self._tokens >= 0 else -self._tokens / self.rate

    def take(self, n: float, now: float) -> bool:
        """Take ``n`` if there is so much; else take nothing and return False."""
        self._refill(now)
        if self._tokens < n:
            return False
        self._tokens -= n
        return True


Rate = tuple[float, float]
"""An amount, and the seconds it may pass in."""


class RateLimits:
    """A bound for each of the two, or for one of them."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, message_rate: Rate | None, byte_rate: Rate | None) -> None:
        self._messages = None if message_rate is None else TokenBucket(*message_rate)
        self._bytes = None if byte_rate is None else TokenBucket(*byte_rate)

    @property
    def bounds(self) -> tuple[Rate | None, Rate | None]:
        """Of messages and of bytes."""
        messages, size = self._messages, self._bytes
        return (None if messages is None else messages.bound, None if size is None else size.bound)

    def pause_after(self, size: int, packets: list[Packet], now: float) -> float:
        """How many seconds to read nothing, these ``packets`` in ``size`` bytes having been read."""
        pause = 0.0
        if self._messages is not None:
            # PUBLISH alone: acknowledgements come as fast as we send
            count = sum([type(packet) is Message for packet in packets])
            if count:
                pause = self._messages.consume(count, now)
        if self._bytes is not None:
            pause = max(pause, self._bytes.consume(size, now))
        return pause


def rate_limits(message_rate: Rate | None, byte_rate: Rate | None) -> RateLimits | None:
    """None where neither is bounded."""
    return None if message_rate is None and byte_rate is None else RateLimits(message_rate, byte_rate)
