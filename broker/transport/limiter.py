"""TokenBucket: how much of something (connections, messages, bytes) may pass in a time."""


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
