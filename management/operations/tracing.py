"""Traces: create, list, read and delete."""

import asyncio
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import UNSET, UnsetType

from taipan.broker.extensions.tracing import Kind, Trace, TraceError
from taipan.broker.mqtt.constants import MAX_STRING
from taipan.broker.mqtt.topics import valid_filter
from taipan.broker.server import Server
from taipan.broker.session.client_info import is_local_user

from .durable_answer import check_store_writable, wait_until_stored
from .node_calls import NodeCalls, NodeDoesNotAnswer
from .refusal import EXISTS, RPC_ERROR, Refusal, missing, not_found, wrong
from .times import LATEST, rfc3339

DEFAULT_SECONDS: Final = 600.0
MAX_READ: Final = 1_048_576
"""Maximum bytes of a trace's file in one answer."""


class TraceRecord(msgspec.Struct, kw_only=True):
    """One trace; its condition is in the field named after its type."""

    name: str
    type: Kind
    clientid: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    ip_address: str | UnsetType = UNSET
    start_at: str
    end_at: str
    status: str
    log_size: dict[str, int]

    @property
    def condition(self) -> str:
        """Return the condition of the trace: a client ID, a topic filter or an address."""
        condition: str = getattr(self, self.type)
        return condition


class Traces:
    """Operations on traces. Raise Refusal for unknown names and invalid conditions."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._tracing = server.tracing
        self._calls = calls
        calls.serve(self.sizes, self.log_here, self.piece)

    async def listing(self) -> tuple[list[TraceRecord], list[str]]:
        """Return all traces, with the size on each node; and the nodes that did not answer."""
        records = [self.record(trace) for trace in self._tracing.traces()]
        found, missing = await self._calls.everywhere(self.sizes)
        for record in records:
            record.log_size = {node: sizes[record.name] for node, sizes in found if record.name in sizes}
        return records, self._calls.may_lack(missing)

    def sizes(self) -> dict[str, int]:
        """Return the size of the file of each trace on this node, in bytes."""
        return {trace.name: self._tracing.size(trace.name) for trace in self._tracing.traces()}

    def record(self, trace: Trace) -> TraceRecord:
        """Return EMQX's record: the condition is in the field named after its kind; ``log_size`` is in bytes by
        node."""
        return TraceRecord(
            name=trace.name,
            type=trace.kind,
            clientid=trace.filter if trace.kind == "clientid" else UNSET,
            topic=trace.filter if trace.kind == "topic" else UNSET,
            ip_address=trace.filter if trace.kind == "ip_address" else UNSET,
            start_at=rfc3339(trace.start_at),
            end_at=rfc3339(trace.end_at),
            status=trace.status(self._server.clock.wall()),
            log_size={self._server.settings.node.name: self._tracing.size(trace.name)},
        )

    async def create(
        self, name: str, kind: Kind, condition: str | None, start_at: float | None = None, end_at: float | None = None
    ) -> TraceRecord:
        """Start a trace now or at ``start_at``, for ten minutes unless ``end_at`` is given (Unix seconds)."""
        if not condition:
            raise missing(kind)
        if len(condition.encode()) > MAX_STRING:
            raise wrong(kind, f"longer than {MAX_STRING} bytes")
        if kind == "topic" and not valid_filter(condition):
            raise wrong("topic", "expected a topic filter")
        if kind == "ip_address" and not _is_address(condition):
            raise wrong("ip_address", "expected an IPv4 or IPv6 address")
        start = self._server.clock.wall() if start_at is None else start_at
        end = start + DEFAULT_SECONDS if end_at is None else end_at
        trace = Trace(name, kind, condition, start, min(end, LATEST))
        check_store_writable(self._server.tables)
        try:
            with _file_trouble():
                self._tracing.create(trace)
        except TraceError as error:
            if error.exists:
                raise Refusal(EXISTS, str(error)) from None
            raise wrong("trace", str(error)) from None
        await wait_until_stored(self._server.tables)
        return self.record(trace)

    async def stop(self, name: str) -> None:
        check_store_writable(self._server.tables)
        if not self._tracing.stop(name):
            raise not_found("trace", name)
        await wait_until_stored(self._server.tables)

    async def delete(self, name: str) -> None:
        check_store_writable(self._server.tables)
        with _file_trouble():
            found = self._tracing.delete(name)
        if not found:
            raise not_found("trace", name)
        await wait_until_stored(self._server.tables)

    async def clear(self) -> None:
        """Delete all traces."""
        check_store_writable(self._server.tables)
        with _file_trouble():
            for trace in self._tracing.traces():
                self._tracing.delete(trace.name)
        await wait_until_stored(self._server.tables)

    async def log(self, name: str, position: int, size: int, node: str | None = None) -> tuple[str, int]:
        """Return a piece of a node's file from byte ``position`` on, and the position after it. A character is never
        divided."""
        return await self._calls.on(node or self._calls.name, self.log_here, name, position, size)

    def log_here(self, name: str, position: int, size: int) -> tuple[str, int]:
        """Return a piece of this node's file in the same way."""
        with _file_trouble(), self._path(name).open("rb") as file:
            position = min(position, os.fstat(file.fileno()).st_size)
            file.seek(position)
            data = file.read(min(size, MAX_READ))
        text = data.decode("utf-8", "ignore")
        return text, position + (len(text.encode()) if text else len(data))

    def piece(self, name: str, position: int) -> bytes:
        """Return some bytes of this node's file from ``position`` on, none at its end."""
        with _file_trouble(), self._path(name).open("rb") as file:
            file.seek(position)
            return file.read(MAX_READ)

    async def archive(self, name: str) -> bytes:
        """Return the file as a zip archive; in a cluster, the files of all nodes that answer. Raises Refusal."""
        with _file_trouble():
            path = self._path(name)
            if not self._calls.clustered:
                return await asyncio.to_thread(_zip, path)
        made = io.BytesIO()
        missing = []
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for node in self._calls.running():
                try:
                    with archive.open(f"{node}_{path.name}", "w") as file:
                        await self._copy(node, name, file)
                except NodeDoesNotAnswer:
                    missing.append(node)
        self._calls.may_lack(missing)
        return made.getvalue()

    async def _copy(self, node: str, name: str, file: IO[bytes]) -> None:
        position = 0
        while data := await self._calls.on(node, self.piece, name, position):
            await asyncio.to_thread(file.write, data)
            position += len(data)

    def _path(self, name: str) -> Path:
        if self._tracing.get(name) is None:
            raise not_found("trace", name)
        self._tracing.flush()
        path = self._tracing.path(name)
        path.touch(mode=0o600)
        return path


@contextmanager
def _file_trouble() -> Iterator[None]:
    """Context manager that turns errors of creating, reading or deleting a file into Refusal: the disk is full, has no
    free inode or is read-only, or this user has no permission."""
    try:
        yield
    except OSError as error:
        raise Refusal(RPC_ERROR, f"{error.filename or 'the file'}: {error.strerror or error}") from None


def _zip(path: Path) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, path.name)
    return made.getvalue()


def _is_address(text: str) -> bool:
    if is_local_user(text):
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
