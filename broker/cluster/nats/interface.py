"""Nats: the cluster's interface to NATS, and its errors. ``client`` implements it."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

BUCKETS: Final = ("members", "routes", "sessions", "rows", "wills", "retained")
"""JetStream key-value buckets, which store the last value of each key; on the server their names begin with
``taipan-<cluster>-``."""
REPLICAS: Final = "replicas"
"""The bucket that exists only if nodes keep copies."""

ATTEMPT: Final = 1.0
"""Seconds after which a write, or any other request to the buckets, is repeated."""
HEADROOM: Final = 512
"""Bytes for the headers of a write, which are included in ``max_payload``."""
NEVER_THERE: Final = -1
"""A revision for ``write``: the key never existed, or its deletion was forgotten."""
MAX_PAYLOAD: Final = "max_payload of the NATS server"
"""The name of the exceeded limit (``TooLarge``) in the log."""


class BucketEntry(NamedTuple):
    """The value of a key, or ``None`` if it was deleted. ``revision`` grows with every change of any key of the bucket.
    ``about`` is data that was written with the deletion."""

    key: str
    value: bytes | None
    revision: int
    about: bytes = b""


class BucketWrite(NamedTuple):
    """A value for a key that is at ``revision``, as in ``Nats.write``, but never None."""

    key: str
    value: bytes
    revision: int


class WrongRevision(Exception):
    """A compare-and-set failed: the key has another value."""


class Unknown(Exception):
    """There was no answer to a write: it may have been applied, or be applied later or never."""


class Unavailable(Exception):
    """There is no connection or no quorum: the write certainly did not take place."""


class TooLarge(Exception):
    """The value is larger than the server allows: it was certainly not written."""


def fits(value: bytes, max_payload: int) -> bool:
    """Return whether a bucket accepts a value of this size. ``max_payload`` is the server's limit, or 0 if it is not
    known yet."""
    return not max_payload or len(value) + HEADROOM <= max_payload


class NoResponders(Exception):
    """There is no subscriber for the subject of a request."""


class NoAnswer(Exception):
    """A request was not answered in time."""


class Watch(Protocol):
    """A running watch. ``revision`` is the revision of the last reported entry. ``current`` is set when all entries
    from the start have been reported."""

    revision: int
    current: bool

    async def reached(self, revision: int, timeout: float) -> bool:
        """Wait until an entry with this revision or a later one has been reported; return False after the timeout."""

    def stop(self) -> None:
        """Report no more entries."""


class Nats(Protocol):
    """One connection to NATS, which reconnects automatically. All callbacks are called on the event loop.

    ``max_payload`` is the maximum size of a message on the server, or 0 before the first connection. ``on_lost`` is
    called with the name of a bucket whose data was lost on the servers. The bucket was created again, and its watches
    start again: ``current`` is not set, and all entries are reported from the first revision on. ``on_unreadable`` is
    called for a message that cannot be passed on, because its subject or reply subject is not text.
    """

    connected: bool
    max_payload: int
    on_connected: list[Callable[[], None]]
    on_disconnected: list[Callable[[], None]]
    on_lost: list[Callable[[str], None]]
    on_unreadable: Callable[[], None]

    @property
    def quorum(self) -> bool:
        """Whether the buckets can be read and written, according to the last answer to this node."""

    def another(self, node: str) -> "Nats":
        """Return a new connection to the same servers, not started, for another node in this process."""

    async def start(self) -> None:
        """Connect, and create missing buckets.

        :raises NatsRefused: the server cannot be used; with the reason and the setting."""

    async def stop(self) -> None:
        """Close the connection. There are no callbacks afterwards."""

    def publish(self, subject: str, data: bytes) -> None:
        """Send a message at most once; it is dropped if there is no connection."""

    def subscribe(self, subject: str, handler: Callable[[bytes, str], None]) -> None:
        """Call the handler for each message with its data and its reply subject, which may be empty. The subscription
        survives reconnects."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Send a request and wait for one reply.

        :raises NoResponders: there is no subscriber. :raises NoAnswer: no reply in time. :raises Unavailable: there is
        no connection."""

    def send_request(self, subject: str, data: bytes, timeout: float) -> Coroutine[Any, Any, bytes]:
        """Send a request now, before everything that is sent later. The coroutine waits for the reply, as ``request``
        does.

        :raises Unavailable: there is no connection."""

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
        """Write a value, or delete the key if ``value`` is ``None``; ``about`` is that of ``BucketEntry``. Return the
        revision.

        The write takes effect only if the key has the state given by ``revision``::

            0             the key does not exist; it may have been deleted
            NEVER_THERE   the key has never existed, or NATS has forgotten its deletion
            n             the value, or the deletion, has revision n
            None          any state

        The write is repeated with the same ``nonce`` until there is an answer, and takes effect once.

        :raises WrongRevision: the key is not at ``revision``. :raises Unknown: no answer within ``timeout``. :raises
        Unavailable: it was certainly not written. :raises TooLarge: it cannot be written; see ``fits``.
        """

    async def write_many(self, bucket: str, writes: Sequence[BucketWrite]) -> list[int | None]:
        """Send writes to different keys together, each once. Return for each the revision, or ``None`` if it was not
        written or was not answered (``Unknown``).

        :raises Unavailable: none was written.
        """

    async def read(self, bucket: str, key: str) -> BucketEntry | None:
        """Return the leader's entry, including deletions, or ``None`` if the key never existed.

        :raises Unavailable: no connection or no leader. :raises NoAnswer: no reply in time."""

    def watch(self, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]) -> Watch:
        """Report every existing entry in the order of revisions, then each change once, also across reconnects."""


class NatsRefused(Exception):
    """This server cannot be used, or rejects this node; ``setting`` is the key of the setting."""

    def __init__(self, reason: str, setting: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
