"""BannedClients: ends the sessions of clients that are banned while they have one."""

import asyncio
import logging
from typing import TYPE_CHECKING

from ..access.banned import CLIENT_ID, Ban, Banned
from ..core.outcome import Outcome
from ..loop.cooperative_slice import CooperativeSlice
from ..mqtt import reason_codes
from ..mqtt.message import Publisher
from ..session.session import Session
from . import closing

if TYPE_CHECKING:
    from .context import ChannelContext

logger = logging.getLogger(__name__)


class BannedClients:
    """Applies bans with ``kick`` to the sessions of this node, whichever node they were created on.

    A client ID has one session, which ends immediately. For usernames and addresses, all sessions are searched in
    slices; several bans share a pass."""

    def __init__(self, context: "ChannelContext", banned: Banned) -> None:
        self._context = context
        self._banned = banned
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def put(self, ban: Ban) -> None:
        """Callback for ``Banned.on_kick``."""
        if ban.kind == CLIENT_ID:
            session = self._context.broker.sessions.get(ban.who)
            if session is not None:
                self._judge(session)
        else:
            self.look_at_all()

    def withheld(self, publisher: Publisher) -> Outcome | None:
        """Return why messages that this publisher has sent before are not published now: the ban that ends its
        session."""
        ban = self._banned.find_kicking(publisher)
        return None if ban is None else Outcome(reason_codes.BANNED, ban.setting, ban.detail)

    def look_at_all(self) -> None:
        """Check every session, now or after the current pass."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def carried_out(self) -> None:
        """Wait until all bans so far have been applied on this node."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            while self._wanted:
                self._wanted = False
                work = CooperativeSlice()
                for session in list(self._context.broker.sessions):
                    self._judge(session)
                    await work.checkpoint()
        except Exception:
            logger.exception("bans_not_carried_out")
        finally:
            self._task = None

    def _judge(self, session: Session) -> None:
        broker = self._context.broker
        if session.internal or broker.sessions.get(session.client_id) is not session:
            return
        channel = self._context.channels.get(session.client_id)
        ban = self._banned.find_kicking(session.client if channel is None else channel.client)
        if ban is None:
            return
        if channel is not None:
            closing.ban(channel, ban.setting, ban.detail)
            return
        logger.info("session_of_banned_client client_id=%s setting=%s", session.client_id, ban.setting)
        broker.life.end_session(session, closing.BANNED, self._context.clock.now())
