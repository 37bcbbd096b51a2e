"""Authorization of a client for a topic or filter: the decision is counted and passed to the hooks."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ..access.decision import ALLOWED_BY_HOOK, DENIED_BY_HOOK, Decision
from ..core.outcome import Outcome
from .channel import CLOSED, Channel

_ASKING: Final[set[asyncio.Task[None]]] = set()
"""Keeps the tasks of ``may_publish``, of which the event loop has only weak references."""


def authorize(channel: Channel, action: str, topic: str, now: float) -> Decision | None:
    """``action``: ``"publish"`` or ``"subscribe"``. ``None``: an external service must be asked first
    (``external_check.ask``), and its decision applied."""
    decision = channel.context.authorization.authorize(channel.client, action, topic, now)
    return None if decision is None else apply_decision(channel, action, topic, decision)


def apply_decision(channel: Channel, action: str, topic: str, decision: Decision) -> Decision:
    """Count a decision and call the hooks, which may change one that is not cached."""
    context = channel.context
    client = channel.client
    metrics = context.metrics
    if decision.cached:
        metrics.client_acl_cache_hit += 1
    else:
        metrics.client_check_acl += 1
        if decision.ignored:
            metrics.client_acl_ignore += 1
        if context.hooks.client_check_acl:
            allowed = context.hooks.client_check_acl(decision.allowed, client, action, topic)
            if allowed != decision.allowed:
                by_hook = ALLOWED_BY_HOOK if allowed else DENIED_BY_HOOK
                # The hook may decide differently when the service is available again.
                decision = by_hook if decision.lasting else Decision(allowed, by_hook.setting, lasting=False)
    if decision.allowed:
        metrics.client_acl_allow += 1
    else:
        metrics.client_acl_deny += 1
    if context.hooks.client_check_acl_complete:
        context.hooks.client_check_acl_complete(client, action, topic, decision.allowed, decision.cached)
    return decision


def may_publish(channel: Channel, topics: Sequence[str], judged: Callable[[list[bool]], None]) -> None:
    """Call ``judged`` with whether the client may publish to each of these topics: at once, or when an external service
    has answered. It is not called if the conversation has ended by then."""
    now = channel.context.clock.now()
    allowed = [False] * len(topics)
    unknown: dict[int, str] = {}
    for at, topic in enumerate(topics):
        real = destination(channel, topic)
        if real:
            decision = authorize(channel, "publish", real, now)
            if decision is None:
                unknown[at] = real
            else:
                allowed[at] = decision.allowed
    if not unknown:
        judged(allowed)
        return
    task = asyncio.ensure_future(_ask_about(channel, unknown, allowed, judged))
    _ASKING.add(task)
    task.add_done_callback(_ASKING.discard)


def destination(channel: Channel, topic: str) -> str:
    """Return the topic of a publication of the client to ``topic``, for which access is checked: after topic rewrite,
    and without a delay. Empty: only the server may publish to the topic, or it is invalid."""
    broker = channel.context.broker
    if broker.rewriting is not None:
        topic = broker.rewriting.published(topic, channel.client)
    real = broker.destination(topic)
    return "" if isinstance(real, Outcome) else real


async def _ask_about(
    channel: Channel, unknown: dict[int, str], allowed: list[bool], judged: Callable[[list[bool]], None]
) -> None:
    decisions = await channel.context.authorization.ask(channel.client, "publish", list(unknown.values()))
    if channel.state == CLOSED:
        return
    for (at, topic), decision in zip(unknown.items(), decisions, strict=True):
        allowed[at] = apply_decision(channel, "publish", topic, decision).allowed
    judged(allowed)
