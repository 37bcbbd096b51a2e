"""Nats: what the cluster asks of NATS, and how that fails. ``nats_client`` does it."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

BUCKETS: Final = ("members", "routes", "sessions", "rows", "wills", "retained")
"""JetStream key-value buckets, each with the last value of a key; on the server their names begin with
``taipan-<cluster>-``."""

HEADROOM: Final = 512
"""Bytes of the headers of a write, which count for ``max_payload`` too."""
NEVER_THERE: Final = -1
"""Revision for ``write``: the key was never there, or it has been forgotten that it was deleted."""
MAX_PAYLOAD: Final = "max_payload of the NATS server"
"""What decides about ``TooLarge``, for the log."""


class BucketEntry(NamedTuple):
    """The value of a key; ``None``: it was deleted. ``revision`` is the bucket's: it grows with every change of any
    key. ``about``: what was written with the deletion."""

    key: str
    value: bytes | None
    revision: int
    about: bytes = b""


class WrongRevision(Exception):
    """A compare-and-set lost: another value is there."""


class Unknown(Exception):
    """No answer to a write: it may be applied already, later or never."""


class Unavailable(Exception):
    """Not connected, or no quorum: it was certainly not done."""


class TooLarge(Exception):
    """The value is more than the server takes, and will be: it was certainly not written."""


def fits(value: bytes, max_payload: int) -> bool:
    """Whether a bucket takes this value. ``max_payload``: of the server; 0: it is not known yet."""
    return not max_payload or len(value) + HEADROOM <= max_payload


class NoResponders(Exception):
    """Nobody listens on the subject of a request."""


class NoAnswer(Exception):
    """A request was not answered in time."""


class Watch(Protocol):
    """A running watch. ``revision``: of the last entry that was told. ``current``: all that was there at the start has
    been told."""

    revision: int
    current: bool

    async def reached(self, revision: int, timeout: float) -> bool:
        """Until an entry of this revision or a later one has been told; False: not in time."""

    def stop(self) -> None:
        """No entry is told any more."""


class Nats(Protocol):
    """One connection to NATS, which comes back by itself. Every callback is called on the event loop.

    ``max_payload``: bytes of the largest message that the server takes; 0 before the first connection. ``on_lost``:
    called with the name of a bucket whose data is gone from the servers; it was made again, and its watches begin anew:
    ``current`` is False, and what is there is told from the first revision on. ``on_unreadable``: called where a
    message cannot be handed on, since its subject or where to reply is no text.
    """

    connected: bool
    max_payload: int
    on_connected: list[Callable[[], None]]
    on_disconnected: list[Callable[[], None]]
    on_lost: list[Callable[[str], None]]
    on_unreadable: Callable[[], None]

    @property
    def quorum(self) -> bool:
        """Whether the buckets can be read and written, as far as it is known: by the last answer to this node."""

    async def start(self) -> None:
        """Connect, and make the buckets where they are missing.

        :raises NatsRefused: the server cannot be used, with the reason and the setting.
        """

    async def stop(self) -> None:
        """Close. Nothing is called back any more."""

    def publish(self, subject: str, data: bytes) -> None:
        """Send, at most once; dropped where there is no connection."""

    def subscribe(self, subject: str, handler: Callable[[bytes, str], None]) -> None:
        """Call with each message: its data and its reply subject, which may be empty. Lasts over reconnects."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send and wait for one reply.

        :raises NoResponders: nobody listens.
        :raises NoAnswer: no reply in time.
        :raises Unavailable: there is no connection.
        """

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
        """Put a value, or delete the key (``value`` None), with ``about`` as in ``BucketEntry``; the revision of that.

        ``revision``: 0, the key must not be there; ``NEVER_THERE``, nor may its deletion be; n, it must be at n, which
        may be a deletion; None, whatever is there. It is sent again, with the same ``nonce`` and so with effect once,
        until there is an answer.

        :raises WrongRevision: the key is not at ``revision``.
        :raises Unknown: no answer within ``timeout``.
        :raises Unavailable: it was certainly not written.
        :raises TooLarge: nor will it be; see ``fits``.
        """

    async def read(self, bucket: str, key: str) -> BucketEntry | None:
        """What the leader has, deletions included; ``None``: no such key was ever there.

        :raises Unavailable: no connection or no leader.
        :raises NoAnswer: no reply in time.
        """

    def watch(self, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]) -> Watch:
        """Tell every entry that is there, in order of revision, then each change once, also over reconnects."""


class NatsRefused(Exception):
    """This server cannot be used, or rejects this node; ``setting`` is the key of the configuration."""

    def __init__(self, reason: str, setting: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
