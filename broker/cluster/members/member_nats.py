"""MemberNats: NATS for the parts of the cluster. A node that is not a member behaves as if it had no connection: it
asks no node, and changes nothing in the buckets. Its watches continue."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from ..nats.interface import ATTEMPT, BucketEntry, BucketWrite, Nats, Unavailable, Watch

_LEAST: Final = 0.05
"""Minimum time in seconds for a write, however long it waited for permission."""


async def _always(timeout: float) -> float:
    return timeout


class MemberNats:
    """NATS as the parts of the cluster use it: ``nats.interface.Nats``, implemented by ``raw``.

    ``outside``, set by ``Members``, is the reason why this node is not a member; it is empty if this node is a member,
    or may be one. ``certain`` is called before each write with the write's timeout, and returns the remaining time. It
    raises ``Unavailable`` if this node may have been removed. ``MembershipCheck`` sets it.
    """

    def __init__(self, raw: Nats) -> None:
        self.raw = raw
        self.outside = ""
        self.certain: Callable[[float], Awaitable[float]] = _always
        self.on_connected = raw.on_connected
        self.on_disconnected = raw.on_disconnected
        self.on_lost = raw.on_lost

    @property
    def connected(self) -> bool:
        return self.raw.connected and not self.outside

    @property
    def max_payload(self) -> int:
        return self.raw.max_payload

    @property
    def quorum(self) -> bool:
        return self.raw.quorum and not self.outside

    def check(self) -> None:
        """:raises Unavailable: this node is not a member."""
        if self.outside:
            raise Unavailable(self.outside)

    async def start(self) -> None:
        await self.raw.start()

    async def stop(self) -> None:
        await self.raw.stop()

    def publish(self, subject: str, data: bytes) -> None:
        if not self.outside:
            self.raw.publish(subject, data)

    def subscribe(self, subject: str, handler: Callable[[bytes, str], None]) -> None:
        self.raw.subscribe(subject, handler)

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        return await self.send_request(subject, data, timeout)

    def send_request(self, subject: str, data: bytes, timeout: float) -> Coroutine[Any, Any, bytes]:
        self.check()
        return self.raw.send_request(subject, data, timeout)

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
        left = await self.certain(timeout)
        self.check()
        return await self.raw.write(bucket, key, value, revision, nonce, max(left, _LEAST), about)

    async def write_many(self, bucket: str, writes: Sequence[BucketWrite]) -> list[int | None]:
        await self.certain(ATTEMPT)
        self.check()
        return await self.raw.write_many(bucket, writes)

    async def read(self, bucket: str, key: str) -> BucketEntry | None:
        self.check()
        return await self.raw.read(bucket, key)

    def watch(self, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]) -> Watch:
        return self.raw.watch(bucket, on_entry, on_current)
