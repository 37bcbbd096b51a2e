"""Questions to external services: the wait of a handler if access control cannot answer immediately.

The client's next packets wait in the meantime, to keep the order. The caller checks ``channel.state`` afterwards,
because the conversation may have ended."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from ..access.decision import Decision
from .channel import CLOSED, Channel

T = TypeVar("T")

Asked = Awaitable[list[Decision] | None]


def until_answered(channel: Channel, asked: Awaitable[T]) -> Awaitable[T | None]:
    """Return the result of ``asked``, which starts now and is cancelled with the conversation: then ``None``."""
    if isinstance(asked, asyncio.Future):
        return asked  # others may also wait for it
    channel.pending_check = question = asyncio.ensure_future(asked)
    return answer_of(channel, question)


async def answer_of(channel: Channel, question: asyncio.Future[T]) -> T | None:
    """Return the result of a question that is ``channel.pending_check``; None: the conversation has ended."""
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
    """Return whether the client may ``"publish"`` to or ``"subscribe"`` to each of these, in order."""
    return until_answered(channel, channel.context.authorization.ask(channel.client, action, topics))
