"""Stored rules: access rules that operators add while the node runs, kept in a table, by subject.

Each subject (a client ID, a username, or all clients) has one list, which is checked from its front. EMQX 4.1's
interface adds rules at the end, EMQX 4.4's at the front: both show the same rules, each in the order that its users
know."""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from ...persistence.tables import Tables
from ...session.client_info import ClientInfo
from ..acl import HASH, PLUS, ReadRule, TopicPattern, asked_about
from ..decision import Decision

TABLE: Final = "rules_of_access"
CLIENT_ID: Final = "clientid"
USERNAME: Final = "username"
ANONYMOUS: Final = "anonymous"
ALL: Final = "all"
KINDS: Final = (CLIENT_ID, USERNAME, ANONYMOUS, ALL)
"""The kinds of subjects of a rule, in the order in which they are checked."""
NAMELESS: Final = (ANONYMOUS, ALL)
"""The kinds with only one subject."""

PUB: Final = "pub"
SUB: Final = "sub"
PUBSUB: Final = "pubsub"

MAX_RULES: Final = 10_000
"""Maximum number of rules of one subject. A check reads all of them that contain wildcards or placeholders, in some
milliseconds."""

PLACES: Final = 4096
"""The step between the numbers that a node of a cluster uses for the rules that it adds."""

_INDEX_FROM: Final = 16
_SPECIAL: Final = re.compile("[+#]|%[cu]")
_ORDER: Final = attrgetter("order")


class StoredAclRule(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """``kind`` and ``name``: the subject of the rule; ``name`` is empty for kinds in ``NAMELESS``.

    ``action``: ``PUB``, ``SUB`` or ``PUBSUB``. ``order``: its position in the subject's list and its unique key in the
    table. ``created_at``: Unix seconds. ``listener``: only clients of this listener; empty: any."""

    kind: str
    name: str
    topic: str
    action: str
    allow: bool
    order: int
    created_at: float = 0.0
    listener: str = ""

    @property
    def key(self) -> str:
        return str(self.order)

    @property
    def publish(self) -> bool:
        return self.action != SUB

    @property
    def subscribe(self) -> bool:
        return self.action != PUB


class RuleContent(NamedTuple):
    """A rule without its subject and place; fields as in ``StoredAclRule``."""

    topic: str
    action: str
    allow: bool
    listener: str = ""


class _CompiledRule:
    """A stored rule, ready to be checked. ``plain``: its topic is compared exactly, as ``text``.

    The pattern is compiled when it is first checked: a node may have many rules of clients that never connect."""

    __slots__ = ("_decision", "_pattern", "order", "plain", "row", "text")

    def __init__(self, row: StoredAclRule) -> None:
        self.row = row
        self._decision: Decision | None = None
        self.order = row.order
        exact = row.topic.startswith("eq ")
        self.text = row.topic[3:] if exact else row.topic
        self.plain = exact or _SPECIAL.search(row.topic) is None
        self._pattern: TopicPattern | None = None

    def about(self, client: ClientInfo) -> tuple[str, ...] | None:
        """Return the levels of the topics that it allows or denies this client to read."""
        if not (self.row.subscribe and self.concerns(client)):
            return None
        pattern = self._pattern
        if pattern is None:
            pattern = self._pattern = TopicPattern(self.row.topic)
        return pattern.about(client)

    def concerns(self, client: ClientInfo) -> bool:
        """Return whether the rule applies to this client of its subject."""
        return not self.row.listener or self.row.listener == client.listener

    def hits(self, client: ClientInfo, topic: str, levels: tuple[str, ...]) -> bool:
        if not self.concerns(client):
            return False
        pattern = self._pattern
        if pattern is None:
            pattern = self._pattern = TopicPattern(self.row.topic)
        return pattern.hits(client, self.row.allow, topic, levels)

    @property
    def decision(self) -> Decision:
        decision = self._decision
        if decision is None:
            decision = self._decision = Decision(self.row.allow, path_of(self.row))
        return decision


class _Index:
    """An index for a subject with many rules.

    ``patterns``: the rules with wildcards or placeholders; ``by_topic``: all rules, by the text that they are compared
    with."""

    __slots__ = ("by_topic", "patterns")

    def __init__(self, rules: list[_CompiledRule]) -> None:
        self.patterns: list[_CompiledRule] = []
        self.by_topic: dict[str, list[_CompiledRule]] = {}
        for rule in rules:
            self.add(rule)

    def add(self, rule: _CompiledRule) -> None:
        insort(self.by_topic.setdefault(rule.text, []), rule, key=_ORDER)
        if not rule.plain:
            insort(self.patterns, rule, key=_ORDER)

    def remove(self, rule: _CompiledRule) -> None:
        same = self.by_topic[rule.text]
        _take(same, rule.order)
        if not same:
            del self.by_topic[rule.text]
        if not rule.plain:
            _take(self.patterns, rule.order)


class _Subject:
    """The rules of one subject in order, with an index if there are at least ``_INDEX_FROM`` rules."""

    __slots__ = ("_index", "rules")

    def __init__(self) -> None:
        self.rules: list[_CompiledRule] = []
        self._index: _Index | None = None

    def add(self, rule: _CompiledRule) -> None:
        insort(self.rules, rule, key=_ORDER)
        if self._index is not None:
            self._index.add(rule)
        elif len(self.rules) >= _INDEX_FROM:
            self._index = _Index(self.rules)

    def remove(self, row: StoredAclRule) -> None:
        rule = _take(self.rules, row.order)
        if self._index is not None:
            self._index.remove(rule)

    def same_topic(self, topic: str) -> list[StoredAclRule]:
        """Return the rules with exactly this topic."""
        rules = self.rules if self._index is None else self._index.by_topic.get(topic.removeprefix("eq "), [])
        return [rule.row for rule in rules if rule.row.topic == topic]

    def first(self, client: ClientInfo, publish: bool, topic: str, levels: tuple[str, ...]) -> _CompiledRule | None:
        """Return the first rule that decides."""
        found: _CompiledRule | None = None
        candidates = self.rules
        if self._index is not None and (publish or not (PLUS in levels or HASH in levels)):
            # For a topic without wildcards, exact rules are found with one lookup; only earlier patterns precede them.
            candidates = self._index.patterns
            for rule in self._index.by_topic.get(topic, ()):
                asked = rule.row.publish if publish else rule.row.subscribe
                if rule.plain and asked and rule.concerns(client):
                    found = rule
                    break
        for rule in candidates:
            if found is not None and rule.order > found.order:
                break
            if (rule.row.publish if publish else rule.row.subscribe) and rule.hits(client, topic, levels):
                return rule
        return found


class StoredAclRules:
    """An ``AclRuleSource``: the rules of the client ID, then of the username or of anonymous clients, then of
    all clients."""

    def __init__(self, tables: Tables) -> None:
        self.name = "stored"
        self._table = tables.open(TABLE, StoredAclRule, access=True, shared=True)
        self._table.on_taken.append(self._taken)
        # Called when another node has changed a rule.
        self.on_taken: list[Callable[[], None]] = []
        self._place, self._places = 0, 1
        self._clear()

    def _clear(self) -> None:
        # kind -> name -> its rules
        self._subjects: dict[str, dict[str, _Subject]] = {kind: {} for kind in KINDS}
        # kind -> number of rules; and of rules where ``PUBSUB`` counts as two
        self._counts = dict.fromkeys(KINDS, 0)
        self._halves = dict.fromkeys(KINDS, 0)
        self._held = 0  # the number of all rules, so that messages pay nothing if there are none
        self._lowest = self._highest = 0

    def share_places(self, place: int, places: int) -> None:
        """Use only every ``places``-th number for new rules from now on, so that no other node uses the same ones."""
        self._place, self._places = place, places

    def index_restored(self) -> None:
        """Index the restored rules."""
        self._clear()
        for row in sorted(self._table.values(), key=_ORDER):
            self._index(row)
        for key in self._table.unreadable:  # no other rule uses their places
            self._lowest = min(self._lowest, int(key))
            self._highest = max(self._highest, int(key))

    def _index(self, row: StoredAclRule) -> None:
        rule = _CompiledRule(row)
        subjects = self._subjects[row.kind]
        subject = subjects.get(row.name)
        if subject is None:
            subject = subjects[row.name] = _Subject()
        subject.add(rule)
        self._lowest = min(self._lowest, row.order)
        self._highest = max(self._highest, row.order)
        self._count(row, 1)

    def _count(self, row: StoredAclRule, step: int) -> None:
        self._held += step
        self._counts[row.kind] += step
        self._halves[row.kind] += 2 * step if row.action == PUBSUB else step

    def __len__(self) -> int:
        return len(self._table)

    def count(self, *kinds: str, halves: bool = False) -> int:
        """Return the number of rules; ``halves``: with ``PUBSUB`` counted as two."""
        counts = self._halves if halves else self._counts
        return sum(counts[kind] for kind in kinds)

    def of(self, kind: str, name: str = "") -> list[StoredAclRule]:
        """Return the rules of one subject in the order in which they are checked."""
        subject = self._subjects[kind].get(name)
        return [rule.row for rule in subject.rules] if subject is not None else []

    def decided_before(self, kind: str, name: str, topic: str, action: str, allow: bool, listener: str = "") -> bool:
        """Return whether existing rules of exactly this topic decide the opposite, so that a later rule never
        decides."""
        subject = self._subjects[kind].get(name)
        if subject is None:
            return False
        left = {PUB, SUB} if action == PUBSUB else {action}
        for row in subject.same_topic(topic):
            if row.listener in ("", listener):
                if row.allow == allow:
                    continue
                left -= {PUB, SUB} if row.action == PUBSUB else {row.action}
        return not left

    def walk(self, *kinds: str) -> Iterator[StoredAclRule]:
        """Yield every rule, kind by kind, subject by subject. The rules may change during the iteration."""
        for kind in kinds:
            for name in list(self._subjects[kind]):
                yield from self.of(kind, name)

    # Changes. The caller invalidates cached decisions (``Authorization.forget_decisions``).

    def append(
        self, kind: str, name: str, topic: str, action: str, allow: bool, now: float, listener: str = ""
    ) -> bool:
        """Add a rule at the end; return ``False`` if exactly this rule exists. Raises ``ValueError`` for an invalid
        topic filter."""
        for row in self._same_topic(kind, name, topic):
            if (row.action, row.allow, row.listener) == (action, allow, listener):
                return False
        TopicPattern(topic)
        self._store(StoredAclRule(kind, name, topic, action, allow, self._after(self._highest), now, listener))
        return True

    def prepend(
        self, kind: str, name: str, topic: str, action: str, allow: bool, now: float, listener: str = ""
    ) -> None:
        """Add a rule at the front, replacing all rules for this action (``PUB`` or ``SUB``), topic and listener."""
        TopicPattern(topic)
        same = [
            row
            for row in self._same_topic(kind, name, topic)
            if row.action in (action, PUBSUB) and row.listener == listener
        ]
        for row in same:
            self._drop(row)
            if row.action == PUBSUB:  # its other half keeps its place
                self._store(msgspec.structs.replace(row, action=SUB if action == PUB else PUB))
        self._store(StoredAclRule(kind, name, topic, action, allow, self._before(self._lowest), now, listener))

    def remove(self, kind: str, name: str, topic: str) -> int:
        """Delete every rule of a subject with exactly this topic, whatever its listener; return how many there were."""
        gone = self._same_topic(kind, name, topic)
        for row in gone:
            self._drop(row)
        return len(gone)

    def replacement(
        self, kind: str, name: str, wanted: Sequence[RuleContent]
    ) -> tuple[list[StoredAclRule], list[RuleContent]]:
        """Return which rules of a subject to drop, and which to add after the others, so that it has the ``wanted``
        ones in this order. A wanted rule that repeats an earlier one is left out.

        Rules are added in order by ``add_last``, and then the others are dropped, the last first, by ``drop``. After
        each step, the decision about every topic is the old or the final one: the new rules decide about topics for
        which no old rule remains."""
        there = self.of(kind, name)
        new = list(dict.fromkeys(wanted))
        same = 0
        for row, rule in zip(there, new, strict=False):
            if (row.topic, row.action, row.allow, row.listener) != rule:
                break
            same += 1
        return there[: same - 1 : -1] if same else there[::-1], new[same:]

    def add_last(self, kind: str, name: str, rule: RuleContent, now: float) -> StoredAclRule:
        """Add a rule at the end, even if the subject has such a rule. Raises ``ValueError`` for an invalid topic
        filter."""
        TopicPattern(rule.topic)
        row = StoredAclRule(
            kind, name, rule.topic, rule.action, rule.allow, self._after(self._highest), now, rule.listener
        )
        self._store(row)
        return row

    def drop(self, row: StoredAclRule) -> None:
        """Delete this rule, if it still exists."""
        if self._table.get(row.key) is row:
            self._drop(row)

    def _after(self, number: int) -> int:
        return number + 1 + (self._place - number - 1) % self._places

    def _before(self, number: int) -> int:
        return number - 1 - (number - 1 - self._place) % self._places

    def room(self, kind: str, name: str) -> int:
        """Return the number of rules that can still be added for this subject."""
        subject = self._subjects[kind].get(name)
        return MAX_RULES - (len(subject.rules) if subject is not None else 0)

    def _same_topic(self, kind: str, name: str, topic: str) -> list[StoredAclRule]:
        subject = self._subjects[kind].get(name)
        return subject.same_topic(topic) if subject is not None else []

    def _store(self, row: StoredAclRule) -> None:
        self._table.put(row.key, row)
        self._index(row)

    def _drop(self, row: StoredAclRule) -> None:
        self._unindex(row)
        self._table.remove(row.key)

    def _taken(self, key: str, old: StoredAclRule | None, new: StoredAclRule | None) -> None:
        if old is not None:
            self._unindex(old)
        if new is not None:
            self._index(new)
        for call in self.on_taken:
            call()

    def _unindex(self, row: StoredAclRule) -> None:
        subjects = self._subjects[row.kind]
        subject = subjects[row.name]
        subject.remove(row)
        if not subject.rules:
            del subjects[row.name]
        self._count(row, -1)

    # The source

    @property
    def has_rules(self) -> bool:
        return self._held > 0

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        if not self._held:
            return None
        publish = action == "publish"
        topic, levels = asked_about(publish, topic)
        for subject in self._subjects_of(client):
            rule = subject.first(client, publish, topic, levels)
            if rule is not None:
                return rule.decision
        return None

    def read_rules(self, client: ClientInfo, topic_filter: str) -> Iterator[ReadRule]:
        for subject in self._subjects_of(client):
            for rule in subject.rules:
                about = rule.about(client)
                if about is not None:
                    yield rule.row.allow, about

    def _subjects_of(self, client: ClientInfo) -> Iterator[_Subject]:
        """Return the subjects that apply to the client, in order."""
        names = (client.client_id, client.user or "", "", "")
        for kind, name in zip(KINDS, names, strict=True):
            if kind == ANONYMOUS and client.proved:
                continue
            subject = self._subjects[kind].get(name)
            if subject is not None:
                yield subject


def _take(rules: list[_CompiledRule], order: int) -> _CompiledRule:
    return rules.pop(bisect_left(rules, order, key=_ORDER))


def path_of(row: StoredAclRule) -> str:
    """Return the API path that deletes this rule."""
    topic = quote(row.topic, safe="")
    if row.kind == CLIENT_ID:
        return f"/acl/clientid/{quote(row.name, safe='')}/topic/{topic}"
    login = quote(row.name, safe="") if row.kind == USERNAME else f"${row.kind}"
    return f"/broker_acl/{login}/{topic}"
