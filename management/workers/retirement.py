"""The end of a worker that is no longer needed: it gives its sessions to the others, and leaves the cluster."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ..operations.membership import Evacuation, Membership
from ..operations.refusal import Refusal

logger = logging.getLogger(__name__)

_LOOK_EVERY: Final = 0.5
_TELL_EVERY: Final = 60.0


async def retire(membership: Membership) -> None:
    """Return when nothing is left here: no session, no message for another node, no delayed message."""
    loop = asyncio.get_running_loop()
    await _until_accepted(membership)
    tell_at = loop.time() + _TELL_EVERY
    while not _is_empty(now := membership.evacuation()):
        if loop.time() >= tell_at:
            tell_at = loop.time() + _TELL_EVERY
            logger.warning(
                "worker_retires sessions=%s messages_for_others=%s kept=%s delayed=%s setting=node.workers",
                now.sessions, now.messages_for_others, now.kept, now.delayed,
            )  # fmt: skip
        await asyncio.sleep(_LOOK_EVERY)
    await _until_done(membership.leave)
    logger.info("worker_retired node=%s", membership.node)


async def _until_accepted(membership: Membership) -> None:
    """Start the evacuation, as soon as another worker can accept sessions."""
    await _until_done(membership.start_evacuation)


async def _until_done(change: Callable[[], Awaitable[object]]) -> None:
    """Try again until a change is not refused."""
    told = ""
    while True:
        try:
            await change()
            return
        except Refusal as refusal:
            if str(refusal) != told:
                told = str(refusal)
                logger.warning("worker_retires error=%s setting=node.workers", told)
        await asyncio.sleep(_LOOK_EVERY)


def _is_empty(now: Evacuation) -> bool:
    return not (now.connections or now.sessions or now.messages_for_others or now.kept or now.delayed)
