"""Access rules: compiled once and checked in order; the first that matches decides.

A published Topic Name matches a rule's pattern like a Topic Filter. A subscription is checked for all topics that its
filter can match: a rule that *allows* must cover the filter (``a/#`` covers ``a/+`` but not ``#``), and a rule that
*denies* applies if the filter could match one of its topics. So no wildcard reaches further than the rules."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from ..config import RuleSettings
from ..mqtt.topics import check_filter, is_shared, parse_shared
from ..session.client_info import ClientInfo, ip_address_of
from .decision import Decision

# The wildcards of a pattern or filter that was split into levels. Topic Names do not contain U+0000, so neither a
# topic's level nor the value of a placeholder is confused with a wildcard.
PLUS: Final = "\0+"
HASH: Final = "\0#"

_PLACEHOLDER: Final = re.compile("(%[cu])")
_NO_LEVEL: Final = re.compile("[/+#\0]")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


ReadRule = tuple[bool, tuple[str, ...]]
"""Whether the rule allows, and the levels of its pattern."""
EVERYTHING: Final[tuple[str, ...]] = ()
"""Replaces the levels of a pattern: every topic, including those that begin with ``$``."""


class AclRuleSource(Protocol):
    """One of ``Authorization.sources``. It answers from memory."""

    name: str

    @property
    def has_rules(self) -> bool:
        """Whether the source may have a rule for any client."""
        ...

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        """Return the decision, ``None`` if no rule here matches. ``topic`` is a Topic Name for ``"publish"``, a Topic
        Filter for ``"subscribe"``."""
        ...

    def read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        """Yield the topics that the client is allowed or denied to read, in the order in which the rules are checked;
        for callers that need to know about a part of ``topic_filter``."""
        ...


class TopicPattern:
    """One entry of a rule's ``topics``.

    ``exact`` is the text of an ``eq`` entry, otherwise ``None``. ``levels`` are the levels of the pattern, with
    wildcards as ``PLUS`` and ``HASH``. ``templates`` are the levels with the positions of ``%c`` and ``%u``, or
    ``None`` if the pattern contains neither."""

    __slots__ = ("exact", "levels", "templates")

    def __init__(self, text: str) -> None:
        self.exact: str | None = None
        self.levels: tuple[str, ...] = ()
        self.templates: tuple[tuple[str, ...], ...] | None = None
        if text.startswith("eq "):
            self.exact = text[3:]
            check_filter(self.exact)
            return
        check_filter(text)
        if is_shared(text):
            raise ValueError("a shared subscription is decided by its inner filter: omit the prefix")
        self.levels = filter_levels(text)
        if _PLACEHOLDER.search(text):
            self.templates = tuple(tuple(_PLACEHOLDER.split(level)) for level in self.levels)

    def hits(self, client: ClientInfo, allow: bool, topic: str, levels: tuple[str, ...]) -> bool:
        """Return whether the pattern covers (``allow``) or intersects (deny) ``topic``, given as ``asked_about``
        returns it."""
        if self.exact is not None:
            return self.exact == topic
        wanted = self.levels_for(client)
        if wanted is None:
            return False
        return covers(wanted, levels) if allow else intersects(wanted, levels)

    def about(self, client: ClientInfo) -> tuple[str, ...] | None:
        """Return the levels of the pattern, ``None`` if it matches nothing. An ``eq`` entry with wildcards matches no
        topic."""
        if self.exact is None:
            return self.levels_for(client)
        levels = filter_levels(self.exact)
        return None if PLUS in levels or HASH in levels else levels

    def levels_for(self, client: ClientInfo) -> tuple[str, ...] | None:
        """Return the levels with the client's identifier and username inserted, ``None`` if the pattern matches
        nothing.

        The value of a placeholder is compared exactly and stays within its level: if the username is ``#`` or ``a/b``,
        no topic's level equals it. An absent or empty value matches nothing either."""
        if self.templates is None:
            return self.levels
        levels: list[str] = []
        for template in self.templates:
            if len(template) == 1:
                levels.append(template[0])
                continue
            parts: list[str] = []
            for part in template:
                if part == "%c" or part == "%u":
                    value = client.client_id if part == "%c" else client.user
                    if not value or _NO_LEVEL.search(value):
                        return None
                    parts.append(value)
                else:
                    parts.append(part)
            levels.append("".join(parts))
        return tuple(levels)


class AclRule:
    """One access rule with its conditions. Empty ``patterns``: every topic. ``decision``: its decision."""

    __slots__ = (
        "allow",
        "anonymous",
        "client_id",
        "decision",
        "listener",
        "network",
        "patterns",
        "publish",
        "subscribe",
        "username",
    )

    def __init__(self, settings: RuleSettings, setting: str = "access.rules") -> None:
        """Compile the rule. Raises ``ValueError`` with the problem. ``setting``: the setting that contains the rule."""
        self.allow = settings.allow
        self.decision = Decision(settings.allow, setting)
        self.publish = settings.action != "subscribe"
        self.subscribe = settings.action != "publish"
        self.username = settings.username
        self.client_id = settings.client_id
        self.anonymous = settings.anonymous
        self.listener = settings.listener
        self.network: Network | None = None
        if settings.address is not None:
            self.network = ipaddress.ip_network(settings.address, strict=False)
        self.patterns = tuple(TopicPattern(text) for text in settings.topics)

    def concerns(self, client: ClientInfo) -> bool:
        """Return whether all conditions on the client are met."""
        if self.username is not None and self.username != client.user:
            return False
        if self.client_id is not None and self.client_id != client.client_id:
            return False
        if self.anonymous and client.proved:
            return False
        if self.listener is not None and self.listener != client.listener:
            return False
        if self.network is not None:
            address = ip_address_of(client.peer_host)
            return address is not None and address.version == self.network.version and address in self.network
        return True

    def read_rules(self, client: ClientInfo) -> Iterator[ReadRule]:
        """Yield the topics that the rule allows or denies to read, for a client to which the rule applies."""
        if not self.subscribe:
            return
        if not self.patterns:
            yield self.allow, EVERYTHING
        for pattern in self.patterns:
            about = pattern.about(client)
            if about is not None:
                yield self.allow, about

    def matches_topic(self, client: ClientInfo, topic: str, levels: tuple[str, ...]) -> bool:
        """Return whether a pattern covers (``allow``) or intersects (deny) ``topic``, given as a whole and in
        levels."""
        if not self.patterns:
            return True
        return any(pattern.hits(client, self.allow, topic, levels) for pattern in self.patterns)


def reads_some(rules: Iterable[ReadRule], topic_filter: str, no_match: bool) -> bool:
    """Return whether these ordered rules allow some of the topics that a filter can match. ``no_match``: the decision
    for topics without a rule.

    If several rules together deny everything that another rule allows, the answer is still yes, because each topic is
    checked separately later."""
    _, levels = asked_about(False, topic_filter)
    denied: list[tuple[str, ...]] = []
    for allow, about in rules:
        if allow:
            meets = about == EVERYTHING or intersects(about, levels)
            if meets and not any(covers(each, about or levels) for each in denied):
                return True
        elif about == EVERYTHING or covers(about, levels):
            return False
        else:
            denied.append(about)
    return no_match


def asked_about(publish: bool, topic: str) -> tuple[str, tuple[str, ...]]:
    """Return the subject of the check as a whole and in levels: a Topic Name, or the Topic Filter within a shared
    filter."""
    if publish:
        return topic, tuple(topic.split("/"))
    try:
        _, topic_filter = parse_shared(topic)
    except ValueError:  # the part after a group may itself begin like a shared filter: "$share/g/$queue/"
        topic_filter = topic
    return topic_filter, filter_levels(topic_filter)


def filter_levels(topic_filter: str) -> tuple[str, ...]:
    """Return a valid Topic Filter's levels, with its wildcards as ``PLUS`` and ``HASH``."""
    levels = tuple(PLUS if level == "+" else HASH if level == "#" else level for level in topic_filter.split("/"))
    # Every topic has a first level, so "+/#" and "#" match the same topics.
    return (HASH,) if levels == (PLUS, HASH) else levels


def covers(pattern: tuple[str, ...], levels: tuple[str, ...]) -> bool:
    """Return whether ``pattern`` matches every topic that the filter ``levels`` matches.

    The levels of a Topic Name are a filter without wildcards; then this is ordinary matching. A wildcard in the first
    level does not match a level that begins with ``$`` [MQTT-4.7.2-1]."""
    for index, want in enumerate(pattern):
        if want == HASH:
            return not (index == 0 and levels[0].startswith("$"))
        if index == len(levels):
            return False
        level = levels[index]
        if want == PLUS:
            if level == HASH or (index == 0 and level.startswith("$")):
                return False
        elif want != level:
            return False
    return len(pattern) == len(levels)


def intersects(pattern: tuple[str, ...], levels: tuple[str, ...]) -> bool:
    """Return whether any topic matches both. The levels of a Topic Name are a filter without wildcards."""
    shorter = min(len(pattern), len(levels))
    for index in range(shorter):
        a = pattern[index]
        b = levels[index]
        if a in (HASH, PLUS) or b in (HASH, PLUS):
            if index == 0 and (a.startswith("$") or b.startswith("$")):
                return False
            if a == HASH or b == HASH:
                return True
        elif a != b:
            return False
    if len(pattern) == len(levels):
        return True
    longer = pattern if len(pattern) > len(levels) else levels
    # "a/#" also matches "a" [MQTT-4.7.1-2].
    return len(longer) == shorter + 1 and longer[shorter] == HASH
