"""Banned: who may not connect, by client identifier, user name or address, until when and why."""

import heapq
import ipaddress
import logging
from typing import Final
from urllib.parse import quote

import msgspec

from ..loop.clock import Clock
from ..persistence.tables import Tables
from ..session.client_info import ClientInfo, ip_address_of, unmapped

logger = logging.getLogger(__name__)

TABLE: Final = "banned"
CLIENT_ID: Final = "clientid"
USERNAME: Final = "username"
PEER_HOST: Final = "peerhost"
KINDS: Final = (CLIENT_ID, USERNAME, PEER_HOST)
_EXPIRED_PER_SWEEP: Final = 1000


class Ban(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """``kind``: what ``who`` is, one of ``KINDS``. ``by``: who put it there. ``at``, ``until``: unix seconds; it is no
    longer in force at ``until``."""

    kind: str
    who: str
    by: str
    reason: str
    at: float
    until: float

    @property
    def setting(self) -> str:
        """Where it stands, for the log: the path that takes it away."""
        return f"/banned/{self.kind}/{quote(self.who, safe='')}"


class Banned:
    """All bans. A new one keeps clients from connecting; it ends no connection that is there."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._clock = clock
        self._table = tables.open(TABLE, Ban, access=True, shared=True)
        self._table.on_taken.append(self._taken)
        # (until, key), also of bans that were lifted or replaced since
        self._ends: list[tuple[float, str]] = []
        self._addresses = 0

    def index_restored(self) -> None:
        """Order what was restored."""
        self._order()
        self._addresses = sum(ban.kind == PEER_HOST for ban in self._table.values())

    def _order(self) -> None:
        self._ends = [(ban.until, key) for key, ban in self._table.items()]
        heapq.heapify(self._ends)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> list[Ban]:
        """A copy, the oldest first; for a second or so also of what has just ended."""
        return list(self._table.values())

    def find(self, client: ClientInfo) -> Ban | None:
        """The ban that keeps this client out."""
        if not len(self._table):
            return None
        found = self._in_force(CLIENT_ID, client.client_id) or self._in_force(USERNAME, client.username or "")
        if found is None and self._addresses:
            address = ip_address_of(client.peer_host)
            found = self._in_force(PEER_HOST, str(address)) if address is not None else None
        return found

    def _in_force(self, kind: str, who: str) -> Ban | None:
        ban = self._table.get(_key(kind, who)) if who else None
        return ban if ban is not None and ban.until > self._clock.wall() else None

    def get(self, kind: str, who: str) -> Ban | None:
        """``who`` as ``normal`` writes it; also one that has just ended."""
        return self._table.get(_key(kind, who))

    def put(self, ban: Ban) -> None:
        """Add a ban or replace the one of the same client. Its ``who`` is as ``normal`` writes it."""
        key = _key(ban.kind, ban.who)
        new = key not in self._table
        self._table.put(key, ban)
        if ban.kind == PEER_HOST and new:
            self._addresses += 1
        self._ends_later(key, ban)
        logger.info("banned as=%s who=%s by=%s reason=%s until=%s", ban.kind, ban.who, ban.by, ban.reason, ban.until)

    def remove(self, kind: str, who: str) -> bool:
        """Whether there was such a ban."""
        if not self._table.remove(_key(kind, who)):
            return False
        if kind == PEER_HOST:
            self._addresses -= 1
        return True

    def _ends_later(self, key: str, ban: Ban) -> None:
        heapq.heappush(self._ends, (ban.until, key))
        if len(self._ends) > 2 * len(self._table) + _EXPIRED_PER_SWEEP:
            self._order()

    def _taken(self, key: str, old: Ban | None, new: Ban | None) -> None:
        for ban, step in ((old, -1), (new, 1)):
            if ban is not None and ban.kind == PEER_HOST:
                self._addresses += step
        if new is not None:
            self._ends_later(key, new)

    def sweep(self, now: float) -> None:
        """Take away what has expired, a slice at a time."""
        for _ in range(_EXPIRED_PER_SWEEP):
            if not self._ends or self._ends[0][0] > now:
                return
            until, key = heapq.heappop(self._ends)
            ban = self._table.get(key)
            if ban is not None and ban.until == until:
                self.remove(ban.kind, ban.who)


def normal(kind: str, who: str) -> str:
    """``who`` as it is compared. ``ValueError`` for an address that is none, and for an empty name."""
    if not who:
        raise ValueError("must not be empty")
    if kind != PEER_HOST:
        return who
    address = ipaddress.ip_address(who.partition("%")[0])  # the scope of a link-local one is a name of ours
    return str(unmapped(address))


def _key(kind: str, who: str) -> str:
    return f"{kind}:{who}"
