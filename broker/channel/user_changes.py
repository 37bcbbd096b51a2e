"""Changes for connected clients when their user is deleted, or gets another right."""

import asyncio
import logging
from collections.abc import Set
from typing import TYPE_CHECKING

from ..access.stored.users import USERNAME, StoredUser
from ..loop.cooperative_slice import CooperativeSlice
from ..session.client_info import DELETED
from .channel import Channel
from .closing import NONE, user_deleted

if TYPE_CHECKING:
    from .context import ChannelContext

logger = logging.getLogger(__name__)


def proved_to_be(context: "ChannelContext", kind: str, names: Set[str], source: str) -> list[Channel]:
    """Return the clients that have authenticated as one of these deleted users of ``source``: they have no user from
    now on."""
    gone = []
    for channel in context.channels.values():
        client = channel.client
        if kind == USERNAME:
            if client.username in names and client.proved_by == source:
                # A later user with this name is another user.
                client.proved_by = DELETED
                gone.append(channel)
        elif client.client_id in names and client.proved_client_id and not client.proved_by:
            gone.append(channel)
    return gone


async def disconnect(channels: list[Channel], setting: str = NONE) -> None:
    """Disconnect clients whose users were deleted (0x87); their sessions stay."""
    work = CooperativeSlice()
    for channel in channels:
        user_deleted(channel, setting)
        await work.checkpoint()


async def tell_rights(context: "ChannelContext", names: Set[str] | None) -> None:
    """Update the rights of the clients that have authenticated as one of these users (None: any)."""
    if names is not None and not names:
        return
    authentication = context.access.authentication
    work = CooperativeSlice()
    for channel in list(context.channels.values()):
        client = channel.client
        if client.user is not None and (names is None or client.user in names):
            client.is_superuser = authentication.is_superuser(client)
            # Topics that were not checked while the client was a superuser.
            channel.admitted = None
        await work.checkpoint()
    # Subscriptions that required this right may not be read without it, even by an offline client.
    context.reviews.rules_changed()


class UsersOfOthers:
    """Effects on this node's clients when other nodes change stored users, many at a time."""

    def __init__(self, context: "ChannelContext", source: str) -> None:
        """``source``: the name of the stored users among the sources."""
        self._context = context
        self._source = source
        self._deleted: dict[str, set[str]] = {}
        self._other_right: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def changed(self, old: StoredUser | None, new: StoredUser | None) -> None:
        """Callback for ``StoredUsers.on_taken``."""
        if old is None:
            return
        if new is None:
            self._deleted.setdefault(old.kind, set()).add(old.name)
        elif old.is_superuser == new.is_superuser:
            return
        if old.kind == USERNAME:
            self._other_right.add(old.name)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._deleted or self._other_right:
                deleted, self._deleted = self._deleted, {}
                names, self._other_right = self._other_right, set()
                gone = [
                    channel
                    for kind, each in deleted.items()
                    for channel in proved_to_be(self._context, kind, each, self._source)
                ]
                await tell_rights(self._context, names)
                await disconnect(gone)
        except Exception:
            logger.exception("users_not_told")
        finally:
            self._task = None
