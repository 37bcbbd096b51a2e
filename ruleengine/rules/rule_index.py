"""RuleIndex: the running rules that select a message or an event, found by a trie of their filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taipan.broker.routing.trie import Trie

from ..events.kinds import EVENTS
from .rule import Rule

CACHED_TOPICS: Final = 8192
"""Number of topics in each of the two halves of the cache."""
MAX_CACHED_LENGTH: Final = 256
MAX_CACHED_RULES: Final = 16 * CACHED_TOPICS
"""Maximum number of rules in one half, counted once for each topic."""

_NONE: Final[tuple[Rule, ...]] = ()


class RuleIndex:
    """Running rules by topic, filter and event, always in the order of their creation.

    With ``ignore_sys``, rules do not receive messages on topics below ``$SYS``."""

    __slots__ = ("_filters", "_ignore_sys", "_older", "_recent", "_weight", "events")

    def __init__(self, ignore_sys: bool = True) -> None:
        self._filters: Trie[tuple[Rule, ...]] = Trie()
        self._ignore_sys = ignore_sys
        # As in the router, the recent half becomes the older one when it is full. The broker keeps a reference to this
        # dictionary, so it is cleared and never replaced.
        self._recent: dict[str, tuple[Rule, ...]] = {}
        self._older: dict[str, tuple[Rule, ...]] = {}
        self._weight = 0
        self.events: dict[str, tuple[Rule, ...]] = {}

    def add(self, rule: Rule) -> None:
        """Add a rule that starts to run."""
        for source in rule.sources:
            if source in EVENTS:
                self.events[source] = _ordered((*self.events.get(source, _NONE), rule))
            else:
                self._filters.put(source, _ordered((*(self._filters.get(source) or _NONE), rule)))
        self._clear_cache()

    def remove(self, rule: Rule) -> None:
        """Remove a rule that stops; no effect if it is not running."""
        for source in rule.sources:
            if source in EVENTS:
                left = tuple(each for each in self.events.get(source, _NONE) if each is not rule)
                if left:
                    self.events[source] = left
                else:
                    self.events.pop(source, None)
                continue
            held = self._filters.get(source)
            if held is None:
                continue
            left = tuple(each for each in held if each is not rule)
            if left:
                self._filters.put(source, left)
            else:
                self._filters.remove(source)
        self._clear_cache()

    @property
    def wants_messages(self) -> bool:
        """Whether any rule selects from published messages."""
        return len(self._filters) > 0

    @property
    def known(self) -> Mapping[str, tuple[Rule, ...]]:
        """The rules of each recently matched topic: the index that the broker reads."""
        return self._recent

    def match(self, topic: str) -> tuple[Rule, ...]:
        """Return the rules that select a message, each once."""
        rules = self._recent.get(topic)
        return self._look_up(topic) if rules is None else rules

    def sees(self, topic: str) -> bool:
        """Return whether rules receive events about messages on this topic."""
        return not (self._ignore_sys and topic.startswith("$SYS/"))

    def _look_up(self, topic: str) -> tuple[Rule, ...]:
        rules = self._older.get(topic)
        if rules is None:
            rules = self._match(topic) if self.sees(topic) else _NONE
        if len(topic) <= MAX_CACHED_LENGTH:
            if len(self._recent) >= CACHED_TOPICS or self._weight > MAX_CACHED_RULES:
                self._older = self._recent.copy()
                self._recent.clear()
                self._weight = 0
            self._recent[topic] = rules
            self._weight += len(rules)
        return rules

    def _match(self, topic: str) -> tuple[Rule, ...]:
        found = self._filters.match(topic)
        if not found:
            return _NONE
        if len(found) == 1:
            return found[0]
        return _ordered(tuple({id(rule): rule for rules in found for rule in rules}.values()))

    def _clear_cache(self) -> None:
        self._recent.clear()
        self._older = {}
        self._weight = 0


def _ordered(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: rule.stored.order))
