"""NatsBuckets: the buckets of NATS: created if missing, written, read and watched.

They are used through messages of JetStream's API, so that each answer shows with certainty what was done."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from ...config import ClusterSettings
from .api import (
    NAME_IN_USE,
    NO_MESSAGE,
    NO_STREAM,
    NOT_CLUSTERED,
    PAUSE,
    SAME_ID_UNDER_WAY,
    WRONG_SEQUENCE,
    ApiError,
    ApiFailed,
    PublishAck,
    StreamInfo,
    ask,
    decode_ack,
    decode_stored,
    decode_stream,
    find_leader,
    has_no_quorum,
    no_jetstream,
    not_clustered,
    refusal,
)
from .connection import ConnectionLost, NatsConnection
from .interface import (
    ATTEMPT,
    BUCKETS,
    NEVER_THERE,
    REPLICAS,
    BucketEntry,
    BucketWrite,
    NoAnswer,
    NoResponders,
    TooLarge,
    Unavailable,
    Unknown,
    WrongRevision,
    fits,
)
from .protocol import headers_of
from .watch import NatsWatch, entry_of

logger = logging.getLogger(__name__)

DELETIONS_KEPT: Final = 3600.0
"""Seconds after which a deletion itself is removed. A watch that was interrupted for half of this time starts again."""
_FORGOTTEN_AT_ONCE: Final = 100
_MAX_DELETIONS: Final = 1_000_000
LONGEST_WRITE: Final = 60.0
_UNDER_WAY: Final = 0.01
"""Seconds until the result of a write is requested again."""
_DUPLICATE_WINDOW: Final = 2 * LONGEST_WRITE
STARTING: Final = 15.0
"""Seconds that a start waits for buckets, unless the servers report that they have no quorum."""


class NatsBuckets:
    """The buckets of the cluster, over one connection at a time. ``quorum`` is set while they can be written.
    ``on_lost`` is that of ``Nats``. ``on_settled`` is called when all buckets exist, or when there is no quorum to
    create them: a start does not have to wait any longer."""

    def __init__(self, settings: ClusterSettings, on_settled: Callable[[], None]) -> None:
        self.quorum = False
        self.on_lost: list[Callable[[str], None]] = []
        self._settings = settings
        self._names = (*BUCKETS, REPLICAS) if settings.replicas else BUCKETS
        self._on_settled = on_settled
        self._said_no_quorum = False
        self._connection: NatsConnection | None = None
        self._watches: list[NatsWatch] = []
        self._deletions: deque[tuple[float, str, str, int]] = deque()  # when to forget it, bucket, subject, revision
        self._created: dict[str, str] = {}  # when the bucket's stream was created
        self._missing = asyncio.Event()
        self._ready = asyncio.Event()  # connected, and the buckets exist
        self._attached = asyncio.Event()

    def attach(self, connection: NatsConnection) -> None:
        """Attach a new connection; ``keep`` must run as long as the connection exists."""
        self._connection = connection
        self._attached.set()

    def detach(self) -> None:
        """Detach the connection."""
        self._connection = None
        self.quorum = False
        self._ready.clear()
        self._attached.clear()

    def stop(self) -> None:
        """Stop all watches."""
        for watch in list(self._watches):
            watch.stop()

    def stream(self, bucket: str) -> str:
        return f"KV_taipan-{self._settings.name}-{bucket}"

    def subject(self, bucket: str, key: str) -> str:
        return f"$KV.taipan-{self._settings.name}-{bucket}.{key}"

    async def ready(self) -> NatsConnection:
        """Return the connection when its buckets exist."""
        while True:
            await self._ready.wait()
            if self._connection is not None and not self._connection.lost.is_set():
                return self._connection
            await asyncio.sleep(PAUSE)

    def missing(self, connection: NatsConnection) -> None:
        """Note that a bucket no longer exists."""
        if connection is self._connection:
            self._missing.set()

    def remove(self, watch: NatsWatch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)

    async def keep(self, connection: NatsConnection) -> None:
        """Create missing buckets, now and whenever one disappears; monitor whether there is a quorum."""
        since = asyncio.get_running_loop().time()
        number = failures = servers = 0
        while True:
            if not self._ready.is_set():
                servers = self._servers(connection)
                try:
                    # A bucket may have a leader while JetStream has none, and could not be watched.
                    await find_leader(connection)
                    await self._make_buckets(connection, servers, asyncio.get_running_loop().time() - since)
                except (NoResponders, NoAnswer, Unavailable, ApiFailed) as error:
                    await self._not_yet(connection, error, asyncio.get_running_loop().time() - since)
                    continue
                self._missing.clear()
                self.quorum = True
                self._ready.set()
                self._say_quorum(connection)
                self._on_settled()
            elif self._servers(connection) > servers:  # one was added, or was not known when the buckets were created
                with suppress(NoResponders, NoAnswer, Unavailable, ApiFailed):
                    await self._make_buckets(connection, self._servers(connection), 0.0)
                    servers = self._servers(connection)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._missing.wait()
            await self._forget_deletions(connection)
            number += 1
            bucket = self._names[number % len(self._names)]
            try:
                stream = decode_stream(await ask(connection, f"STREAM.INFO.{self.stream(bucket)}", None))
            except (NoResponders, NoAnswer, Unavailable):
                failures += 1
                self.quorum = self.quorum and failures < 2
                continue
            if stream.error is None:
                failures = 0
                self.quorum = stream.has_quorum()
                if self.quorum and self._said_no_quorum:
                    with suppress(NoResponders, NoAnswer, Unavailable, ApiFailed):
                        await find_leader(connection)
                        self._say_quorum(connection)
            if self._missing.is_set() or (stream.error is not None and stream.error.err_code == NO_STREAM):
                since = asyncio.get_running_loop().time()
                self._ready.clear()

    def no_quorum(self, connection: NatsConnection, error: Exception) -> None:
        """Note that the servers are reachable but have no leader. This is logged once."""
        if not self._said_no_quorum:
            self._said_no_quorum = True
            logger.warning("nats_no_quorum server=%s error=%s setting=cluster.servers", connection.server.url, error)

    def _say_quorum(self, connection: NatsConnection) -> None:
        if self._said_no_quorum:
            self._said_no_quorum = False
            logger.info("nats_quorum_back server=%s", connection.server.url)

    def forget_later(self, bucket: str, subject: str, revision: int) -> None:
        """Remove a deletion from its bucket later, when every node has received it."""
        if len(self._deletions) < _MAX_DELETIONS:  # further ones are noticed at the next start of a node
            due = asyncio.get_running_loop().time() + DELETIONS_KEPT
            self._deletions.append((due, bucket, subject, revision))

    @staticmethod
    def may_have_forgotten(seconds: float) -> bool:
        """Return whether a node that has heard nothing for this long may have missed a deletion."""
        return seconds > DELETIONS_KEPT / 2

    async def _forget_deletions(self, connection: NatsConnection) -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(_FORGOTTEN_AT_ONCE):
            if not self._deletions or self._deletions[0][0] > now:
                return
            _, bucket, subject, revision = self._deletions[0]
            # A later write to the key has a greater number and stays.
            asked = {"filter": subject, "seq": revision + 1}
            try:
                await ask(connection, f"STREAM.PURGE.{self.stream(bucket)}", asked)
            except (NoResponders, NoAnswer, Unavailable):
                return
            self._deletions.popleft()

    async def _not_yet(self, connection: NatsConnection, error: Exception, waited: float) -> None:
        """Handle buckets that could not be created: wait a moment, or raise if a later attempt cannot succeed."""
        refused = refusal(connection, self._settings, error)
        if refused is not None:
            raise refused
        if isinstance(error, NoResponders) and waited > 3.0:
            raise no_jetstream(connection)
        if isinstance(error, ApiFailed) and error.err_code == NOT_CLUSTERED:
            raise not_clustered(connection, self._settings)
        if has_no_quorum(error, waited):
            self.no_quorum(connection, error)
            self._on_settled()
        logger.debug("nats_buckets_not_there error=%r waited=%.1f", error, waited)
        await asyncio.sleep(PAUSE)

    def _servers(self, connection: NatsConnection) -> int:
        """Return the number of servers. A server with a hostname in the settings counts twice if the other servers know
        it by its address."""
        return max(len(self._settings.servers), 1 + len(connection.servers))

    async def _make_buckets(self, connection: NatsConnection, servers: int, waited: float) -> None:
        wanted = min(3, servers)
        fewer = min(wanted, max(1, len(connection.servers)))
        made, replicas = [], set()
        for bucket in self._names:
            stream = await self._stream(connection, bucket)
            if stream is None:
                # Servers that were counted twice, or never appear: fewer replicas are better than none.
                stream = await self._make_bucket(connection, bucket, wanted if waited < STARTING / 2 else fewer)
                made.append(bucket)
            elif stream.config.num_replicas < wanted:
                stream = await self._raise_replicas(connection, bucket, stream, wanted)
            replicas.add(stream.config.num_replicas)
            self._note_life(bucket, stream)
        if made or min(replicas) < wanted:
            logger.info(
                "nats_buckets created=%s replicas=%s servers=%s", ",".join(made) or "none", min(replicas), servers
            )

    async def _stream(self, connection: NatsConnection, bucket: str) -> StreamInfo | None:
        stream = decode_stream(await ask(connection, f"STREAM.INFO.{self.stream(bucket)}", None))
        if stream.error is None:
            return stream
        if stream.error.err_code == NO_STREAM:
            return None
        raise ApiFailed(stream.error)

    async def _make_bucket(self, connection: NatsConnection, bucket: str, replicas: int) -> StreamInfo:
        config = self._config(bucket, replicas)
        made = decode_stream(await ask(connection, f"STREAM.CREATE.{self.stream(bucket)}", config))
        if made.error is None:
            return made
        if made.error.err_code == NAME_IN_USE:  # another node was faster
            stream = await self._stream(connection, bucket)
            if stream is not None:
                return stream
        raise ApiFailed(made.error)

    async def _raise_replicas(
        self, connection: NatsConnection, bucket: str, stream: StreamInfo, wanted: int
    ) -> StreamInfo:
        config = self._config(bucket, wanted)
        changed = decode_stream(await ask(connection, f"STREAM.UPDATE.{self.stream(bucket)}", config))
        if changed.error is None:
            return changed
        logger.warning(
            "nats_replicas_not_raised bucket=%s replicas=%s wanted=%s error=%s",
            bucket, stream.config.num_replicas, wanted, changed.error.description,
        )  # fmt: skip
        return stream

    def _config(self, bucket: str, replicas: int) -> dict[str, object]:
        """Return a key-value bucket as NATS's own tools create it, with one value for each key."""
        return {
            "name": self.stream(bucket),
            "subjects": [self.subject(bucket, ">")],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "num_replicas": replicas,
            "duplicate_window": int(_DUPLICATE_WINDOW * 1e9),
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }

    def _note_life(self, bucket: str, stream: StreamInfo) -> None:
        """Return whether this is the same stream as before, with all reported entries."""
        before = self._created.get(bucket)
        self._created[bucket] = stream.created
        told = max((each.revision for each in self._watches if each.bucket == bucket), default=0)
        if before is None or (before == stream.created and told <= stream.state.last_seq):
            return
        logger.error("nats_bucket_lost bucket=%s", bucket)
        self.begin_anew(bucket)

    def begin_anew(self, bucket: str) -> None:
        """Discard everything that was reported of a bucket."""
        call_each([partial(call, bucket) for call in self.on_lost])
        for watch in list(self._watches):
            watch.begin_anew(bucket)

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
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(timeout, LONGEST_WRITE)
        data = about if value is None else value
        headers = {"Nats-Msg-Id": nonce}
        if value is None:
            headers["KV-Operation"] = "DEL"
        expected = 0 if revision == NEVER_THERE else revision
        unanswered = False
        reason = "not connected"
        while (left := deadline - loop.time()) > 0:
            connection = self._connection
            if connection is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._attached.wait()
                continue
            if not fits(data, connection.max_payload):
                raise TooLarge(f"{len(data)} bytes are more than max_payload of the NATS server allows")
            if expected is not None:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
            try:
                subject = self.subject(bucket, key)
                ack = decode_ack(await connection.request(subject, data, min(ATTEMPT, left), headers))
            except (NoAnswer, ConnectionLost):
                unanswered = True
                continue
            except NoResponders:
                ack = PublishAck(error=ApiError(description="no quorum"))
            except Unavailable as error:
                ack = PublishAck(error=ApiError(description=str(error)))
            if ack.error is None:
                self.quorum = True
                if value is None:
                    self.forget_later(bucket, subject, ack.seq)
                return ack.seq
            reason = ack.error.description
            if ack.error.err_code in WRONG_SEQUENCE:
                # The server compares the revision before it checks whether it has had this nonce.
                try:
                    there, by = await self._last(connection, bucket, key)
                except (NoAnswer, NoResponders, ConnectionLost, Unavailable, ApiFailed):
                    pass
                else:
                    if there is not None and by == nonce:
                        return there.revision
                    if (there.revision if there is not None else 0) == expected:
                        # A write is in progress, maybe this one, sent earlier: its result decides.
                        await asyncio.sleep(min(_UNDER_WAY, max(deadline - loop.time(), 0.0)))
                        continue
                    if revision != 0 or (there is not None and there.value is not None):
                        raise WrongRevision(f"{key} is at {there.revision if there else 0}, not {revision}")
                    expected = there.revision if there is not None else 0  # of the deletion
                    continue
            elif ack.error.err_code == SAME_ID_UNDER_WAY:
                unanswered = True
            else:
                self.quorum = False
            await asyncio.sleep(min(PAUSE, max(deadline - loop.time(), 0.0)))
        if unanswered:
            raise Unknown(f"no answer in {timeout:g} s")
        raise Unavailable(reason)

    async def write_many(self, bucket: str, writes: Sequence[BucketWrite]) -> list[int | None]:
        connection = self._connection
        if connection is None:
            raise Unavailable("not connected")
        frames = [(each.key, 0 if each.revision == NEVER_THERE else each.revision, each.value) for each in writes]
        answers = await connection.request_many(self.subject(bucket, ""), frames, ATTEMPT)
        revisions: list[int | None] = []
        for answer in answers:
            try:
                ack = None if answer is None else decode_ack(answer)
            except NoAnswer:
                ack = None
            revisions.append(None if ack is None or ack.error is not None else ack.seq)
        self.quorum = self.quorum or any(revisions)
        return revisions

    async def read(self, bucket: str, key: str) -> BucketEntry | None:
        connection = self._connection
        if connection is None:
            raise Unavailable("not connected")
        try:
            entry, _ = await self._last(connection, bucket, key)
        except (NoResponders, ApiFailed) as error:
            if bucket not in self._names and isinstance(error, ApiFailed) and error.err_code == NO_STREAM:
                return None  # no node uses this bucket
            self.quorum = False
            raise Unavailable(f"no quorum: {error}") from error
        except ConnectionLost:
            raise NoAnswer("the connection broke") from None
        return entry

    async def _last(self, connection: NatsConnection, bucket: str, key: str) -> tuple[BucketEntry | None, str]:
        """Return the leader's entry and the nonce with which it was written."""
        asked = {"last_by_subj": self.subject(bucket, key)}
        reply = decode_stored(await ask(connection, f"STREAM.MSG.GET.{self.stream(bucket)}", asked))
        if reply.error is not None:
            if reply.error.err_code == NO_MESSAGE:
                return None, ""
            raise ApiFailed(reply.error)
        assert reply.message is not None
        stored = reply.message
        headers = headers_of(stored.hdrs) if stored.hdrs else {}
        return entry_of(key, stored.data, stored.seq, stored.hdrs), headers.get("Nats-Msg-Id", "")

    def watch(self, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]) -> NatsWatch:
        if bucket not in self._names:
            self._names = (*self._names, bucket)
        made = NatsWatch(self, bucket, on_entry, on_current)
        self._watches.append(made)
        return made


def call_each(calls: Iterable[Callable[[], None]]) -> None:
    """Make all calls; an error in one does not affect the others."""
    for call in list(calls):
        try:
            call()
        except Exception:
            logger.exception("nats_callback_failed")
