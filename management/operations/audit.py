"""Audit: who changed what, from where, and through which door; in a bounded table that survives a restart.

An entry is written after the change and before its answer, and the answer waits until the entry is on disk. If the
node is killed in between, the change may exist without an entry; its caller has no answer then."""

import logging
from collections import deque
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.observability.masking import mask
from taipan.broker.server import Server

from .listing import PageQuery
from .node_calls import Gathered, NodeCalls
from .node_listing import SortedListing
from .refusal import wrong
from .times import local_text

logger = logging.getLogger(__name__)

MAX_ENTRIES: Final = 10_000
"""Maximum number of entries that a node keeps; ``_Ages`` chooses those that are removed."""
_MAX_VALUE: Final = 4_096
"""Maximum size of a stored value in bytes of JSON; longer values are replaced by their size."""
_MAX_UNMASKED: Final = 4 * _MAX_VALUE
"""Maximum size of a value in which secrets are masked, in bytes of JSON: that of 100,000 users would hold the loop."""
_MAX_TEXT: Final = 512

Door = Literal["api", "dashboard", "ctl", "reload"]
_When = Annotated[int, Meta(ge=0)]


class AuditEntry(msgspec.Struct, frozen=True, gc=False):
    """A change as it is stored. ``at``: Unix seconds. ``before``, ``after``: JSON, without secrets; empty: unknown."""

    at: float
    door: str
    who: str
    address: str
    what: str
    target: str
    before: bytes
    after: bytes


class AuditQuery(PageQuery, kw_only=True):
    """Conditions, which all must hold. ``who``: the exact name. ``like_what``: a part of ``what`` or ``target``.
    ``gte_at``, ``lte_at``: Unix seconds."""

    door: Door | None = None
    who: str | None = None
    like_what: str | None = msgspec.field(default=None, name="_like_what")
    gte_at: _When | None = msgspec.field(default=None, name="_gte_at")
    lte_at: _When | None = msgspec.field(default=None, name="_lte_at")


class AuditRecord(msgspec.Struct):
    """A change. ``door``: ``api`` (an application), ``dashboard``, ``ctl`` or ``reload``. ``who``: the application, the
    dashboard user, or empty for the local socket. ``what``: method and endpoint, or the command. ``target``: the path
    that was requested. ``before``, ``after``: the object and the request, with secrets masked; null: unknown.
    ``time``: Unix milliseconds."""

    time: int
    at: str
    door: Door
    who: str
    address: str
    what: str
    target: str
    before: Any
    after: Any
    node: str


class Audit:
    """The changes of this node, and the listing of all nodes."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self._table = server.tables.open("audit", AuditEntry)
        self._next = 0
        self._ages = _Ages()
        calls.serve(self.latest_here)

    async def record(
        self,
        door: Door,
        who: str,
        address: str,
        what: str,
        target: str = "",
        before: object = None,
        after: object = None,
    ) -> None:
        """Add an entry, and return when it is on disk. ``before``, ``after``: any values that are JSON; their secrets
        are masked here."""
        self.add(door, who, address, what, target, before, after)
        tables = self._server.tables
        if tables.in_trouble or not await tables.stored():
            logger.error("audit_not_stored door=%s who=%s what=%s target=%s", door, who, what, target)

    def add(
        self, door: Door, who: str, address: str, what: str, target: str, before: object = None, after: object = None
    ) -> None:
        """Add an entry, which is on disk after the next batch."""
        table = self._table
        if not self._next:
            for key, stored in table.items():
                self._ages.add(key, stored)
                self._next = max(self._next, int(key))
            self._next += 1
        entry = AuditEntry(
            self._server.clock.wall(), door, who[:_MAX_TEXT], address, what[:_MAX_TEXT], target[:_MAX_TEXT],
            _stored(before), _stored(after),
        )  # fmt: skip
        key = f"{self._next:012}"
        table.put(key, entry)
        self._ages.add(key, entry)
        self._next += 1
        while len(table) > MAX_ENTRIES:
            table.remove(self._ages.pop())
        logger.info("changed door=%s who=%s address=%s what=%s target=%s", door, who, address, what, target)

    async def listing(self, query: AuditQuery, max_rows: int) -> SortedListing[AuditRecord]:
        """Return one page of the changes on all nodes, latest first."""
        limit = query.rows(max_rows)
        start = (max(query.page, 1) - 1) * limit
        if start + limit > MAX_ENTRIES:
            raise wrong("_page", f"the listing ends at row {MAX_ENTRIES}: use conditions")
        latest: Gathered[list[AuditRecord]] = await self._calls.everywhere(self.latest_here, query, start + limit + 1)
        rows = [row for _, of_node in latest.found for row in of_node]
        rows.sort(key=lambda row: -row.time)
        page = rows[start : start + limit]
        more = len(rows) > start + limit
        return SortedListing(page, query.page, limit, -1, more, self._calls.may_lack(latest.missing))

    async def latest_here(self, query: AuditQuery, wanted: int) -> list[AuditRecord]:
        """Return the latest matching changes of this node."""
        found: list[AuditRecord] = []
        work = CooperativeSlice()
        for _, entry in reversed(list(self._table.items())):
            await work.checkpoint()
            if _matches(entry, query):
                found.append(self._record(entry))
                if len(found) == wanted:
                    break
        return found

    def _record(self, entry: AuditEntry) -> AuditRecord:
        door: Door = entry.door  # type: ignore[assignment]
        return AuditRecord(
            round(entry.at * 1000), local_text(entry.at), door, entry.who, entry.address, entry.what, entry.target,
            _shown(entry.before), _shown(entry.after), self._calls.name,
        )  # fmt: skip


class _Ages:
    """Which entry is removed next: of the caller with most entries, and of the change that this caller has made most
    often, the oldest one. So very many entries of one kind remove neither what others did nor the caller's other
    changes."""

    def __init__(self) -> None:
        self._callers: dict[tuple[str, str], dict[str, deque[str]]] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, key: str, entry: AuditEntry) -> None:
        """Add an entry, which is the latest one."""
        caller = (entry.door, entry.who)
        self._callers.setdefault(caller, {}).setdefault(entry.what, deque()).append(key)
        self._counts[caller] = self._counts.get(caller, 0) + 1

    def pop(self) -> str:
        """Forget the entry that is removed next, and return its key."""
        counts = self._counts
        caller = max(counts, key=counts.__getitem__)
        changes = self._callers[caller]
        what = max(changes, key=lambda each: len(changes[each]))
        key = changes[what].popleft()
        counts[caller] -= 1
        if not changes[what]:
            del changes[what]
        if not changes:
            del self._callers[caller], counts[caller]
        return key


def _matches(entry: AuditEntry, query: AuditQuery) -> bool:
    return (
        query.door in (None, entry.door)
        and query.who in (None, entry.who)
        and (query.like_what is None or query.like_what in entry.what or query.like_what in entry.target)
        and (query.gte_at is None or entry.at >= query.gte_at)
        and (query.lte_at is None or entry.at <= query.lte_at)
    )


def _stored(value: object) -> bytes:
    if value is None:
        return b""
    try:
        plain = msgspec.json.encode(value, enc_hook=str)
        if len(plain) > _MAX_UNMASKED:
            return msgspec.json.encode({"bytes": len(plain)})
        text = msgspec.json.encode(mask(msgspec.json.decode(plain)))
    except (TypeError, ValueError, RecursionError):
        return b""
    return text if len(text) <= _MAX_VALUE else msgspec.json.encode({"bytes": len(text)})


def _shown(text: bytes) -> Any:
    return msgspec.json.decode(text) if text else None
