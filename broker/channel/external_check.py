"""Asking outside: what a handler awaits where access control cannot answer at once.

The client's next packets wait meanwhile, so that order is kept. The caller looks at ``channel.state`` afterwards: the
conversation may be over.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from ..access.decision import Decision
from .channel import CLOSED, Channel

T = TypeVar("T")

Asked = Awaitable[list[Decision] | None]


def until_answered(channel: Channel, asked: Awaitable[T]) -> Awaitable[T | None]:
    """What comes of ``asked``, which begins now and is given up with the conversation: then ``None``."""
    if isinstance(asked, asyncio.Future):
        return asked  # others may wait for it too
    channel.pending_check = question = asyncio.ensure_future(asked)
    return _answer(channel, question)


async def _answer(channel: Channel, question: asyncio.Future[T]) -> T | None:
    try:
        return await question
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if channel.state != CLOSED or (task is not None and task.cancelling()):
            raise
        return None
    finally:
        channel.pending_check = None


def ask(channel: Channel, action: str, topics: Sequence[str]) -> Asked:
    """Whether the client may ``"publish"`` to or ``"subscribe"`` to each of these, in their order."""
    return until_answered(channel, channel.context.authorization.ask(channel.client, action, topics))
