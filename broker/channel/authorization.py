"""Whether a client may publish to a topic or subscribe to a filter: asked, counted, and told to the hooks."""

from ..access.outcome import Answer
from .closing import NONE
from .state import ChannelState


def authorize(channel: ChannelState, action: str, topic: str, now: float) -> bool | None:
    """Ask the gate, count and tell the hook; where it says no, ``access.setting`` has what decided.

    ``action``: ``"publish"`` or ``"subscribe"``. ``None``: somebody outside must be asked first (``asking.ask``), and
    then ``judge``.
    """
    context = channel.context
    access = context.access
    hits = access.cache_hits
    ignored = access.ignored
    allowed = access.authorize_now(channel.client, action, topic, now)
    if allowed is None:
        return None
    return _tell(channel, action, topic, allowed, access.cache_hits != hits, access.ignored - ignored)


def judge(channel: ChannelState, action: str, topic: str, answer: Answer) -> bool:
    """The same for what an outside source was asked about."""
    channel.context.access.setting = answer.setting
    return _tell(channel, action, topic, answer.allowed, False, int(answer.ignored))


def _tell(channel: ChannelState, action: str, topic: str, allowed: bool, cached: bool, ignored: int) -> bool:
    context = channel.context
    access = context.access
    client = channel.client
    metrics = context.metrics
    if cached:
        metrics.client_acl_cache_hit += 1
    else:
        metrics.client_check_acl += 1
        metrics.client_acl_ignore += ignored
        if context.hooks.client_check_acl:
            before = allowed
            allowed = context.hooks.client_check_acl(allowed, client, action, topic)
            if before and not allowed:
                access.setting = NONE  # somebody else's rule
    if allowed:
        metrics.client_acl_allow += 1
    else:
        metrics.client_acl_deny += 1
    if context.hooks.client_check_acl_complete:
        context.hooks.client_check_acl_complete(client, action, topic, allowed, cached)
    return allowed
