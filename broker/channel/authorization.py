"""Authorization of a client for a topic or filter: the decision is counted and passed to the hooks."""

from ..access.decision import ALLOWED_BY_HOOK, DENIED_BY_HOOK, Decision
from .channel import Channel


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
