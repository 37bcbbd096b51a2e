"""Annotations: moments with text, such as deployments, which charts mark. All nodes share them."""

import secrets
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from taipan.broker.server import Server

from .durable_answer import check_store_writable, wait_until_stored
from .refusal import not_found, wrong
from .times import local_text

MAX_ANNOTATIONS: Final = 1_000
"""Maximum number of annotations; the one with the earliest time is removed."""
MAX_TEXT: Final = 512
MAX_TIME: Final = 253_402_300_799

UnixSeconds = Annotated[int, Meta(ge=0, le=MAX_TIME)]


class Annotation(msgspec.Struct, frozen=True, array_like=True):
    """The key of the row is the identifier. ``at``: Unix seconds. ``by``: who created it."""

    at: float
    text: str
    by: str


class AnnotationRecord(msgspec.Struct):
    """``time``: Unix milliseconds; ``at``: the same as text. ``created_by``: empty for the local socket."""

    id: str
    time: int
    at: str
    text: str
    created_by: str


class AnnotationsQuery(msgspec.Struct, kw_only=True):
    """``gte_at``, ``lte_at``: Unix seconds."""

    gte_at: UnixSeconds = msgspec.field(default=0, name="_gte_at")
    lte_at: UnixSeconds = msgspec.field(default=MAX_TIME, name="_lte_at")
    limit: Annotated[int, Meta(ge=1, le=MAX_ANNOTATIONS)] = msgspec.field(default=MAX_ANNOTATIONS, name="_limit")


class Annotations:
    """The annotations of all nodes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._table = server.tables.open("annotations", Annotation, shared=True)

    def listing(self, query: AnnotationsQuery) -> list[AnnotationRecord]:
        """Return the matching annotations, latest first."""
        found = [(name, row) for name, row in self._table.items() if query.gte_at <= row.at <= query.lte_at]
        found.sort(key=lambda each: (-each[1].at, each[0]))
        return [_record(name, row) for name, row in found[: query.limit]]

    def lookup(self, name: str) -> AnnotationRecord:
        """Return an annotation. Raises Refusal."""
        row = self._table.get(name)
        if row is None:
            raise not_found("annotation", name)
        return _record(name, row)

    async def add(self, text: str, at: float | None, by: str) -> str:
        """Create an annotation, for now if no time is given; return its identifier when it is on disk. Raises
        Refusal."""
        text = text.strip()
        if not text:
            raise wrong("text", "expected text that is not blank")
        if len(text) > MAX_TEXT:
            raise wrong("text", f"expected at most {MAX_TEXT} characters, got {len(text)}")
        tables = self._server.tables
        check_store_writable(tables)
        while len(self._table) >= MAX_ANNOTATIONS:
            self._table.remove(min(self._table.items(), key=lambda each: each[1].at)[0])
        name = secrets.token_hex(8)
        self._table.put(name, Annotation(self._server.clock.wall() if at is None else at, text, by))
        await wait_until_stored(tables)
        return name

    async def delete(self, name: str) -> None:
        """Delete an annotation. Raises Refusal."""
        self.lookup(name)
        check_store_writable(self._server.tables)
        self._table.remove(name)
        await wait_until_stored(self._server.tables)


def _record(name: str, row: Annotation) -> AnnotationRecord:
    return AnnotationRecord(name, round(row.at * 1000), local_text(row.at), row.text, row.by)
