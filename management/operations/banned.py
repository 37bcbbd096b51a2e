"""Bans: clients that may not connect, with expiry and reason."""

from typing import Final

import msgspec

from taipan.broker.access.banned import CLIENT_ID, KINDS, Ban, normal
from taipan.broker.server import Server

from .durable_answer import check_store_writable, rows_of_a_size, wait_until_stored
from .listing import Listing, searched
from .refusal import Refusal, wrong

DEFAULT_SECONDS: Final = 300
"""How long a ban lasts if its end is not given."""


class BanRecord(msgspec.Struct):
    """``at``, ``until``: Unix seconds."""

    kind: str = msgspec.field(name="as")
    who: str
    by: str
    reason: str
    at: int
    until: int
    kick: bool


class Bans:
    """``kind`` is the kind of ``who``: ``clientid``, ``username`` or ``peerhost`` (an address)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._banned = server.banned

    def listing(self, page: int, limit: int) -> Listing[BanRecord]:
        """Return a page of the active bans, oldest first."""
        now = self._server.clock.wall()
        in_force = searched(self._banned.all(), lambda ban: ban.until > now)
        return Listing(in_force, page, limit, ban_record, len(self._banned))

    async def add(
        self,
        kind: str,
        who: str,
        by: str = "user",
        reason: str = "",
        at: int | None = None,
        until: int | None = None,
        kick: bool | None = None,
    ) -> Ban:
        """Add a ban, or change an existing one. ``at``, ``until``: Unix seconds; by default, now and 300 s later.

        ``kick``: close connections and delete sessions; messages that the clients sent before are not published while
        the ban lasts. By default this applies to client IDs but not to usernames and addresses, as in EMQX 4.4."""
        now = int(self._server.clock.wall())
        ban = Ban(
            kind,
            self._normal(kind, who),
            by,
            reason,
            now if at is None else at,
            now + DEFAULT_SECONDS if until is None else until,
            kind == CLIENT_ID if kick is None else kick,
        )
        check_store_writable(self._server.tables)
        with rows_of_a_size():
            self._banned.put(ban)
        await self._server.banned_clients.carried_out()
        await wait_until_stored(self._server.tables)
        return ban

    def lookup(self, kind: str, who: str) -> BanRecord | None:
        """Return a ban; None: there is none. Raises Refusal."""
        ban = self._banned.get(kind, self._normal(kind, who))
        return None if ban is None else ban_record(ban)

    async def delete(self, kind: str, who: str) -> bool:
        """Lift a ban; return whether it existed."""
        who = self._normal(kind, who)
        check_store_writable(self._server.tables)
        lifted = self._banned.remove(kind, who)
        await wait_until_stored(self._server.tables)
        return lifted

    def _normal(self, kind: str, who: str) -> str:
        if kind not in KINDS:
            raise wrong("as", f"expected one of {', '.join(KINDS)}")
        try:
            return normal(kind, who)
        except ValueError:
            raise self._bad(kind, who) from None

    @staticmethod
    def _bad(kind: str, who: str) -> Refusal:
        return wrong("who", f"{who} is not an address" if kind == "peerhost" else "expected 1 character or more")


def ban_record(ban: Ban) -> BanRecord:
    return BanRecord(ban.kind, ban.who, ban.by, ban.reason, int(ban.at), int(ban.until), ban.kick)
