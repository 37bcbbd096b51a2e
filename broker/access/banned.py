"""Banned: bans by client ID, username or address, with expiry and reason."""

import heapq
import ipaddress
import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec

from ..loop.clock import Clock
from ..mqtt.message import Publisher
from ..persistence.tables import Tables
from ..session.client_info import ip_address_of, unmapped

logger = logging.getLogger(__name__)

TABLE: Final = "banned"
CLIENT_ID: Final = "clientid"
USERNAME: Final = "username"
PEER_HOST: Final = "peerhost"
KINDS: Final = (CLIENT_ID, USERNAME, PEER_HOST)
_EXPIRED_PER_SWEEP: Final = 1000


class Ban(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """``kind``: the kind of ``who``, one of ``KINDS``. ``by``: the user who created it. ``at``, ``until``: Unix
    seconds; the ban expires at ``until``. ``kick``: the ban also ends sessions, and stops messages that were sent
    before."""

    kind: str
    who: str
    by: str
    reason: str
    at: float
    until: float
    kick: bool = False

    @property
    def setting(self) -> str:
        """The place of the ban for the log: the API path that deletes it."""
        return f"/banned/{self.kind}/{quote(self.who, safe='')}"

    @property
    def detail(self) -> str:
        """Creator, expiry and reason of the ban, for the log."""
        return f"by {self.by} until {self.until:.0f}: {self.reason}"


class Banned:
    """All bans. Each prevents clients from connecting; ``channel.banned_clients`` ends sessions if ``kick`` is set.

    ``on_kick``: called with each new ban with ``kick``, whichever node it was created on."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._clock = clock
        self._table = tables.open(TABLE, Ban, access=True, shared=True)
        self._table.on_taken.append(self._taken)
        # (until, key), including bans that were lifted or replaced since
        self._ends: list[tuple[float, str]] = []
        self._addresses = 0
        self._kicking = 0
        self.on_kick: list[Callable[[Ban], None]] = []

    def index_restored(self) -> None:
        """Index the restored bans."""
        self._order()
        self._addresses = sum(ban.kind == PEER_HOST for ban in self._table.values())
        self._kicking = sum(ban.kick for ban in self._table.values())

    def _order(self) -> None:
        self._ends = [(ban.until, key) for key, ban in self._table.items()]
        heapq.heapify(self._ends)

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> list[Ban]:
        """Return a copy, oldest first; for about a second it includes bans that have just expired."""
        return list(self._table.values())

    def find(self, client: Publisher) -> Ban | None:
        """Return the ban that prevents this client from connecting."""
        return self._find(client, False) if len(self._table) else None

    def find_kicking(self, client: Publisher) -> Ban | None:
        """Return the ban that ends the session of this client, and withholds messages that it has sent before."""
        return self._find(client, True) if self._kicking else None

    @property
    def any_kicking(self) -> bool:
        """Whether there may be a ban that ends sessions."""
        return self._kicking > 0

    def _find(self, client: Publisher, kick: bool) -> Ban | None:
        found = self._in_force(CLIENT_ID, client.client_id, kick)
        found = found or self._in_force(USERNAME, client.username or "", kick)
        if found is None and self._addresses:
            address = ip_address_of(client.peer_host)
            found = self._in_force(PEER_HOST, str(address), kick) if address is not None else None
        return found

    def _in_force(self, kind: str, who: str, kick: bool) -> Ban | None:
        ban = self._table.get(_key(kind, who)) if who else None
        if ban is None or (kick and not ban.kick):
            return None
        return ban if ban.until > self._clock.wall() else None

    def get(self, kind: str, who: str) -> Ban | None:
        """``who``: in the form of ``normal``. The result may have just expired."""
        return self._table.get(_key(kind, who))

    def put(self, ban: Ban) -> None:
        """Add a ban or replace that of the same client. Its ``who`` is in the form of ``normal``."""
        key = _key(ban.kind, ban.who)
        old = self._table.get(key)
        self._table.put(key, ban)
        self._count(old, -1)
        self._count(ban, 1)
        self._ends_later(key, ban)
        logger.info(
            "banned as=%s who=%s by=%s reason=%s until=%s kick=%s",
            *(ban.kind, ban.who, ban.by, ban.reason, ban.until, str(ban.kick).lower()),
        )
        self._kick(ban)

    def as_imported(self, ban: Ban, has_kick: bool) -> Ban:
        """Return a ban from a file. A ban without ``kick`` inherits it from the ban that it replaces."""
        old = None if has_kick else self._table.get(_key(ban.kind, ban.who))
        return ban if old is None else msgspec.structs.replace(ban, kick=old.kick)

    def remove(self, kind: str, who: str) -> bool:
        """Remove a ban; return whether it existed."""
        old = self._table.get(_key(kind, who))
        if old is None:
            return False
        self._table.remove(_key(kind, who))
        self._count(old, -1)
        return True

    def _count(self, ban: Ban | None, step: int) -> None:
        if ban is not None:
            self._addresses += step * (ban.kind == PEER_HOST)
            self._kicking += step * ban.kick

    def _kick(self, ban: Ban) -> None:
        if ban.kick and ban.until > self._clock.wall():
            for call in self.on_kick:
                call(ban)

    def _ends_later(self, key: str, ban: Ban) -> None:
        heapq.heappush(self._ends, (ban.until, key))
        if len(self._ends) > 2 * len(self._table) + _EXPIRED_PER_SWEEP:
            self._order()

    def _taken(self, key: str, old: Ban | None, new: Ban | None) -> None:
        self._count(old, -1)
        self._count(new, 1)
        if new is not None:
            self._ends_later(key, new)
            self._kick(new)

    def sweep(self, now: float) -> None:
        """Remove expired bans, one slice at a time."""
        for _ in range(_EXPIRED_PER_SWEEP):
            if not self._ends or self._ends[0][0] > now:
                return
            until, key = heapq.heappop(self._ends)
            ban = self._table.get(key)
            if ban is not None and ban.until == until:
                self.remove(ban.kind, ban.who)


def normal(kind: str, who: str) -> str:
    """Return ``who`` in the form for comparisons. Raises ``ValueError`` for an invalid address, and for an empty
    name."""
    if not who:
        raise ValueError("must not be empty")
    if kind != PEER_HOST:
        return who
    address = ipaddress.ip_address(who.partition("%")[0])  # the scope of a link-local address is only a local name
    return str(unmapped(address))


def _key(kind: str, who: str) -> str:
    return f"{kind}:{who}"
