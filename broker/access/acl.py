"""Access rules: compiled once, tried in order, the first that matches decides.

A published Topic Name matches a rule's pattern as it would match a Topic Filter. A subscription asks about all topics
its filter can match: a rule that *allows* must cover the filter (``a/#`` covers ``a/+`` but not ``#``), a rule that
*denies* hits as soon as the filter could match one of its topics. Thus no wildcard reaches further than the rules.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from ..config import RuleSettings
from ..mqtt.topics import check_filter, is_shared, parse_shared
from ..session.client_info import ClientInfo, ip_address_of
from .decision import Decision

# The wildcards of a pattern or filter that was split into levels. U+0000 is in no Topic Name, so
# neither a topic's level nor what a placeholder stands for is ever taken for one of them.
PLUS: Final = "\0+"
HASH: Final = "\0#"

_PLACEHOLDER: Final = re.compile("(%[cu])")
_NO_LEVEL: Final = re.compile("[/+#\0]")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


ReadRule = tuple[bool, tuple[str, ...]]
"""Whether it allows, and the levels of what it is about."""
EVERYTHING: Final[tuple[str, ...]] = ()
"""In place of levels: every topic, also those that begin with ``$``."""


class AclRuleSource(Protocol):
    """One of ``Authorization.sources``. Answers from memory."""

    name: str

    @property
    def has_rules(self) -> bool:
        """Whether it may have a rule for any client."""
        ...

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        """``None``: no rule here says anything. ``topic`` is a Topic Name for ``"publish"``, a Topic Filter for
        ``"subscribe"``."""
        ...

    def read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        """What it allows and denies the client to read, in the order in which it is tried; for who has to know of a
        part of ``topic_filter``."""
        ...


class TopicPattern:
    """One entry of a rule's ``topics``.

    ``exact`` is the text of an ``eq`` entry, else ``None``. ``levels`` are the pattern's levels, wildcards as ``PLUS``
    and ``HASH``; ``templates`` the same with the places of ``%c`` and ``%u``, ``None`` where there are none.
    """

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
        """Whether it covers (``allow``) or meets (deny) ``topic``, given as ``asked_about`` does."""
        if self.exact is not None:
            return self.exact == topic
        wanted = self.levels_for(client)
        if wanted is None:
            return False
        return covers(wanted, levels) if allow else intersects(wanted, levels)

    def about(self, client: ClientInfo) -> tuple[str, ...] | None:
        """The levels of what it hits, ``None`` where that is nothing. An ``eq`` entry with wildcards hits no topic."""
        if self.exact is None:
            return self.levels_for(client)
        levels = filter_levels(self.exact)
        return None if PLUS in levels or HASH in levels else levels

    def levels_for(self, client: ClientInfo) -> tuple[str, ...] | None:
        """The levels with the client's identifier and user name filled in, ``None`` if the pattern matches nothing.

        What a placeholder stands for is compared to the letter and stays within its level: were the user name
        ``#`` or ``a/b``, no topic's level would be equal to it. An absent or empty one matches nothing either.
        """
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
    """One access rule with its conditions. ``patterns`` empty: every topic. ``decision``: what it decides."""

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
        """Compile; ``ValueError`` names what is wrong. ``setting``: where it was written."""
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
        """Whether every condition on the client holds."""
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
        """What it says about reading, to a client that it concerns."""
        if not self.subscribe:
            return
        if not self.patterns:
            yield self.allow, EVERYTHING
        for pattern in self.patterns:
            about = pattern.about(client)
            if about is not None:
                yield self.allow, about

    def matches_topic(self, client: ClientInfo, topic: str, levels: tuple[str, ...]) -> bool:
        """Whether a pattern covers (``allow``) or meets (deny) ``topic``, given whole and in levels."""
        if not self.patterns:
            return True
        return any(pattern.hits(client, self.allow, topic, levels) for pattern in self.patterns)


def reads_some(rules: Iterable[ReadRule], topic_filter: str, no_match: bool) -> bool:
    """Whether rules, in order, allow a part of what a filter can match. ``no_match``: what no rule is about.

    Where several rules together deny all that another allows, the answer is yes all the same: each topic is judged."""
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
    """What rules are asked about: a Topic Name, or the Topic Filter within a shared one; whole and in levels."""
    if publish:
        return topic, tuple(topic.split("/"))
    try:
        _, topic_filter = parse_shared(topic)
    except ValueError:  # what follows a group may itself begin like a shared one: "$share/g/$queue/"
        topic_filter = topic
    return topic_filter, filter_levels(topic_filter)


def filter_levels(topic_filter: str) -> tuple[str, ...]:
    """A valid Topic Filter's levels, its wildcards as ``PLUS`` and ``HASH``."""
    levels = tuple(PLUS if level == "+" else HASH if level == "#" else level for level in topic_filter.split("/"))
    # Every topic has a first level, so "+/#" and "#" match the same topics.
    return (HASH,) if levels == (PLUS, HASH) else levels


def covers(pattern: tuple[str, ...], levels: tuple[str, ...]) -> bool:
    """Whether every topic that the filter ``levels`` matches is matched by ``pattern`` too.

    A Topic Name's levels are a filter without wildcards: then this is plain matching. A wildcard in the first level
    does not stand for a level that begins with ``$`` [MQTT-4.7.2-1].
    """
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
    """Whether some topic is matched by both. A Topic Name's levels are a filter without wildcards."""
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
    # "a/#" matches "a" as well [MQTT-4.7.1-2].
    return len(longer) == shorter + 1 and longer[shorter] == HASH
