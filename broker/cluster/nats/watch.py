"""NatsWatch: all entries of a bucket and their changes, in order, over successive connections."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from .api import NO_STREAM, PAUSE, ApiFailed, ask, decode_consumer
from .connection import ConnectionLost, Msg, NatsConnection
from .interface import BucketEntry, NoAnswer, NoResponders, Unavailable
from .protocol import delivered, headers_of

logger = logging.getLogger(__name__)

_HEARTBEAT: Final = 1.0
"""Seconds between heartbeats of a watch's consumer, which is created again after three missing heartbeats."""
_AFTER_A_FAILURE: Final = 1.0


class WatchedBuckets(Protocol):
    """The buckets, as a watch uses them; see ``NatsBuckets``."""

    def stream(self, bucket: str) -> str: ...
    def subject(self, bucket: str, key: str) -> str: ...
    async def ready(self) -> NatsConnection: ...
    def missing(self, connection: NatsConnection) -> None: ...
    def no_quorum(self, connection: NatsConnection, error: Exception) -> None: ...
    def may_have_forgotten(self, seconds: float) -> bool: ...
    def begin_anew(self, bucket: str) -> None: ...
    def forget_later(self, bucket: str, subject: str, revision: int) -> None: ...
    def remove(self, watch: "NatsWatch") -> None: ...


class NatsWatch:
    """A running watch: a consumer of the bucket's stream on successive connections."""

    def __init__(
        self,
        buckets: WatchedBuckets,
        bucket: str,
        on_entry: Callable[[BucketEntry], None],
        on_current: Callable[[], None],
    ) -> None:
        self.revision = 0
        self.current = False
        self._buckets = buckets
        self.bucket = bucket
        self._on_entry = on_entry
        self._on_current = on_current
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._broken = asyncio.Event()
        self._consumed = 0  # messages of the current consumer
        self._failure = ""  # why there is no consumer, as logged
        self._heard = 0.0
        self._loop = asyncio.get_running_loop()
        self._prefix = len(buckets.subject(bucket, ""))
        self._task = asyncio.create_task(self._run())

    async def reached(self, revision: int, timeout: float) -> bool:
        if self.revision >= revision:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (revision, future)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(waiting)
        return True

    def stop(self) -> None:
        self._task.cancel()
        self._broken.set()
        self._buckets.remove(self)

    def begin_anew(self, bucket: str) -> None:
        """Read the bucket again from the beginning, because its data was lost."""
        if bucket == self.bucket:
            self.revision = 0
            self.current = False
            self._broken.set()

    async def _run(self) -> None:
        while True:
            connection = await self._buckets.ready()
            try:
                await self._follow(connection)
            except (ConnectionLost, NoAnswer, NoResponders, Unavailable):
                await asyncio.sleep(PAUSE)
            except ApiFailed as error:
                if error.err_code == NO_STREAM:
                    self._buckets.missing(connection)
                    await asyncio.sleep(PAUSE)
                    continue
                if error.no_leader:
                    self._buckets.no_quorum(connection, error)
                elif str(error) != self._failure:
                    self._failure = str(error)
                    logger.warning("nats_watch_failed bucket=%s error=%s", self.bucket, error)
                await asyncio.sleep(_AFTER_A_FAILURE)
            except Exception:
                logger.exception("nats_watcher_failed bucket=%s", self.bucket)
                await asyncio.sleep(_AFTER_A_FAILURE)

    async def _follow(self, connection: NatsConnection) -> None:
        """Report entries until the connection breaks, a message is missing, or the consumer is silent."""
        buckets, loop = self._buckets, asyncio.get_running_loop()
        if self.revision and buckets.may_have_forgotten(loop.time() - self._heard):
            buckets.begin_anew(self.bucket)
        self._broken = broken = asyncio.Event()
        self._consumed = 0
        inbox = connection.inbox()

        def on_message(message: Msg) -> None:
            if not broken.is_set() and not self._on_message(connection, message):
                broken.set()

        subscription = await connection.subscribe(inbox, on_message)
        name = ""
        try:
            config: dict[str, object] = {
                "deliver_subject": inbox,
                "deliver_policy": "by_start_sequence" if self.revision else "all",
                "ack_policy": "none",
                "max_deliver": 1,
                "flow_control": True,
                "idle_heartbeat": int(_HEARTBEAT * 1e9),
                "inactive_threshold": int(5e9),
                "mem_storage": True,
                "num_replicas": 1,
            }
            if self.revision:
                config["opt_start_seq"] = self.revision + 1
            stream = buckets.stream(self.bucket)
            asked = {"stream_name": stream, "config": config}
            self._heard = loop.time()
            made = decode_consumer(await ask(connection, f"CONSUMER.CREATE.{stream}", asked))
            if made.error is not None:
                raise ApiFailed(made.error)
            name, self._failure = made.name, ""
            if made.num_pending == 0:
                self._is_current()
            while not broken.is_set() and not connection.lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HEARTBEAT / 2):
                        await broken.wait()
                if loop.time() - self._heard > 3 * _HEARTBEAT:
                    logger.info("nats_watch_silent bucket=%s revision=%s", self.bucket, self.revision)
                    break
        finally:
            broken.set()
            if name:
                connection.publish(f"$JS.API.CONSUMER.DELETE.{buckets.stream(self.bucket)}.{name}", b"")
            await connection.unsubscribe(subscription)

    def _on_message(self, connection: NatsConnection, message: Msg) -> bool:
        """Return whether the consumer continues."""
        self._heard = self._loop.time()
        if message.has_status:
            headers = message.headers or {}
            if headers.get("Status") != "100":
                return False
            if message.reply:  # flow control: report the progress
                connection.publish(message.reply, b"")
                return True
            stalled = headers.get("Nats-Consumer-Stalled")
            if stalled:
                connection.publish(stalled, b"")
            elif int(headers.get("Nats-Last-Consumer", 0)) != self._consumed:
                return False
            else:
                self._is_current()
            return True
        revision, consumed, pending = delivered(message.reply)
        if consumed != self._consumed + 1:
            return False
        self._consumed = consumed
        if revision > self.revision:
            self.revision = revision
            entry = entry_of(message.subject[self._prefix :], message.data, revision, message.head)
            if entry.value is None and not self.current:
                self._buckets.forget_later(self.bucket, message.subject, revision)  # its node may no longer exist
            try:
                self._on_entry(entry)
            except Exception:
                logger.exception("nats_watcher_failed bucket=%s key=%s", self.bucket, entry.key)
            for wanted, future in self._waiting:
                if revision >= wanted and not future.done():
                    future.set_result(None)
        if pending == 0:
            self._is_current()
        return True

    def _is_current(self) -> None:
        if not self.current:
            self.current = True
            try:
                self._on_current()
            except Exception:
                logger.exception("nats_watcher_failed bucket=%s", self.bucket)


def entry_of(key: str, data: bytes, revision: int, head: bytes) -> BucketEntry:
    """Return the entry for a message of a bucket's stream. ``head``: its headers."""
    if b"KV-Operation" in head or b"Nats-Marker-Reason" in head:
        headers = headers_of(head)
        if "KV-Operation" in headers or "Nats-Marker-Reason" in headers:
            return BucketEntry(key, None, revision, data)
    return BucketEntry(key, data, revision)
