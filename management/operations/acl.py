"""Stored access rules: for a username, a client ID, or all clients."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from taipan.broker.access.acl import TopicPattern
from taipan.broker.access.stored.rules import (
    ALL,
    ANONYMOUS,
    CLIENT_ID,
    MAX_RULES,
    NAMELESS,
    PUB,
    PUBSUB,
    SUB,
    USERNAME,
    RuleContent,
    StoredAclRule,
)
from taipan.broker.config import listener_labels
from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.server import Server

from .durable_answer import check_store_writable, rows_of_a_size, wait_until_stored
from .listing import FILTERED, PAUSE_EVERY, Listing, everything, searched
from .refusal import BAD_TOPIC, WRONG, Refusal, missing, not_found, wrong

ALL_LOGINS: Final = "$all"
"""The login of rules for all clients."""
ANONYMOUS_LOGINS: Final = "$anonymous"
"""The login of rules for clients that have not authenticated."""
_LOGINS: Final = {ALL: ALL_LOGINS, ANONYMOUS: ANONYMOUS_LOGINS}

OK: Final = "ok"
MAX_TOLD: Final = 100
"""Maximum number of rules that an answer lists."""

Subject = tuple[str, str]
"""Kind and name, as in ``taipan.broker.access.stored.rules``."""

Action = Literal["pub", "sub", "pubsub"]
Half = Literal["pub", "sub"]
Access = Literal["allow", "deny"]


class AclRecord(msgspec.Struct, omit_defaults=True):
    """Specification, ACL rule record. ``listener``: only if the rule is limited to clients of this listener."""

    login: str
    topic: str
    action: str
    allow: bool
    listener: str = ""


class HalfRecord(msgspec.Struct, omit_defaults=True):
    """EMQX 4.4's record of a rule; a rule for ``pubsub`` has two of them. ``name``: the subject of the rule.
    ``listener``: only if the rule is limited to clients of this listener."""

    kind: ClassVar[str]

    name: str
    topic: str
    action: str
    access: str
    listener: str = ""


class ClientIdRecord(HalfRecord):
    kind: ClassVar[str] = CLIENT_ID

    name: str = msgspec.field(name="clientid")


class UsernameRecord(HalfRecord):
    kind: ClassVar[str] = USERNAME

    name: str = msgspec.field(name="username")


class AnonymousRecord(HalfRecord):
    kind: ClassVar[str] = ANONYMOUS

    name: str = msgspec.field(name="anonymous")


class AllRecord(HalfRecord):
    kind: ClassVar[str] = ALL

    name: str = msgspec.field(name="all")


_HALF_RECORDS: Final[dict[str, type[HalfRecord]]] = {
    each.kind: each for each in (ClientIdRecord, UsernameRecord, AnonymousRecord, AllRecord)
}


class AddedRecord(msgspec.Struct, kw_only=True):
    """The rule as given, with its subject in the field for its kind."""

    clientid: str | UnsetType = UNSET
    username: str | UnsetType = UNSET
    anonymous: str | UnsetType = UNSET
    all: str | UnsetType = UNSET
    topic: str
    action: Action
    access: Access
    listener: str | UnsetType = UNSET
    result: str


class NewAclRule(msgspec.Struct, frozen=True):
    subject: Subject
    topic: str
    action: Action
    allow: bool
    listener: str = ""


class Acl:
    """Operations on stored access rules. Every change applies immediately, also to connected clients."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._rules = server.stored_rules
        # Only one request at a time may add rules, from the count of a subject's rules until the last one is added.
        self._adding = asyncio.Lock()

    # As in the specification and in EMQX 4.1: the rules of a subject are checked in the order in which they were added.

    def listing(self, page: int, limit: int) -> Listing[AclRecord]:
        """Return ACL rule records, ordered by login. Rules about client IDs have no login and are left out."""
        kinds = (USERNAME, ANONYMOUS, ALL)
        rows = searched(self._rules.walk(*kinds), lambda row: True)
        return Listing(rows, page, limit, rule_record, self._rules.count(*kinds))

    def lookup(self, login: str) -> list[StoredAclRule]:
        """Return the rules of a login in the order in which they are checked."""
        return self._rules.of(*subject_of(login))

    async def add(self, rules: Sequence[NewAclRule]) -> list[AclRecord]:
        """Add rules after the existing ones; a rule that already exists changes nothing. Return the rules that never
        decide, because earlier rules of the same topic decide the opposite: at most the first ``MAX_TOLD``."""
        now = self._server.clock.wall()
        idle: list[AclRecord] = []

        def put(rule: NewAclRule) -> None:
            of = (*rule.subject, rule.topic, rule.action, rule.allow)
            if len(idle) < MAX_TOLD and self._rules.decided_before(*of, rule.listener):
                idle.append(AclRecord(_login(*rule.subject), rule.topic, rule.action, rule.allow, rule.listener))
            self._rules.append(*of, now, rule.listener)

        await self._change(rules, put)
        return idle

    async def delete(self, login: str, topic: str) -> None:
        """Delete every rule of this login with exactly this topic."""
        await self.delete_of(subject_of(login), topic)

    # As in EMQX 4.4: the newest rule is checked first, and there is one rule for each subject, action and topic.

    async def add_first(self, rules: Sequence[NewAclRule]) -> None:
        """Add rules before the existing ones; they replace rules with the same action and topic."""
        now = self._server.clock.wall()

        def put(rule: NewAclRule) -> None:
            for action in halves(rule.action):
                self._rules.prepend(*rule.subject, rule.topic, action, rule.allow, now, rule.listener)

        await self._change(rules, put)

    def halves_listing(
        self, kind: str, page: int, limit: int, matches: Callable[[HalfRecord], bool] | None = None
    ) -> Listing[HalfRecord]:
        """Return EMQX 4.4's records of all rules of one kind. ``matches`` selects records."""
        count = self._rules.count(kind, halves=True) if matches is None else FILTERED
        return Listing(self._records(kind, matches), page, limit, _itself, count)

    def has(self, subject: Subject) -> bool:
        """Return whether a rule about this subject exists."""
        return bool(self._rules.of(*subject))

    def halves_of(self, subject: Subject) -> Listing[HalfRecord]:
        """Return EMQX 4.4's records of one subject, in the order in which they are checked."""
        return everything((record for rule in self._rules.of(*subject) for record in half_records(rule)), _itself)

    async def replace(
        self, subject: Subject, wanted: Sequence[NewAclRule], instead_of: Sequence[NewAclRule] | None = None
    ) -> None:
        """Give a subject these rules, in this order, and no others; a rule that repeats an earlier one is left out.

        ``instead_of``: the rules that the caller has read. If the subject has others by now, nothing changes."""
        kind, name = subject
        async with self._adding:
            if wanted:
                await self._check(wanted, replaces=True)
            check_store_writable(self._server.tables)
            if instead_of is not None and _in_halves(instead_of) != _in_halves(self._rules.of(kind, name)):
                raise wrong("instead_of", f"the rules of {_login(*subject)} have changed: read them again")
            gone, new = self._rules.replacement(
                kind, name, [RuleContent(each.topic, each.action, each.allow, each.listener) for each in wanted]
            )
            await self._put_last(subject, new)
            work = CooperativeSlice()
            for row in gone:
                self._rules.drop(row)
                if work.over:
                    self._server.access.authorization.forget_decisions()
                    await work.next()
            self._server.access.authorization.forget_decisions()
        await wait_until_stored(self._server.tables)

    async def _put_last(self, subject: Subject, new: Sequence[RuleContent]) -> None:
        """Add all of these rules, or none."""
        now, work = self._server.clock.wall(), CooperativeSlice()
        added: list[StoredAclRule] = []
        try:
            for rule in new:
                with rows_of_a_size():
                    added.append(self._rules.add_last(*subject, rule, now))
                if work.over:
                    self._server.access.authorization.forget_decisions()
                    await work.next()
        except BaseException:
            for row in reversed(added):
                self._rules.drop(row)
            self._server.access.authorization.forget_decisions()
            raise

    async def delete_of(self, subject: Subject, topic: str) -> None:
        """Delete every rule of this subject with exactly this topic."""
        check_store_writable(self._server.tables)
        if not self._rules.remove(*subject, topic):
            raise not_found("access rule", f"of {_login(*subject)} for topic {topic}")
        self._server.access.authorization.forget_decisions()
        await wait_until_stored(self._server.tables)

    def _records(self, kind: str, matches: Callable[[HalfRecord], bool] | None) -> Iterator[HalfRecord | None]:
        for looked, rule in enumerate(self._rules.walk(kind), 1):
            if looked % PAUSE_EVERY == 0:
                yield None
            for record in half_records(rule):
                if matches is None or matches(record):
                    yield record

    async def _check(self, rules: Sequence[NewAclRule], replaces: bool = False) -> None:
        """``replaces``: the rules replace all rules of their subjects."""
        if not rules:
            raise missing("a rule")
        if len(rules) > MAX_RULES:
            raise Refusal(WRONG, f"more than {MAX_RULES} rules in one request")
        work = CooperativeSlice()
        listeners = listener_labels(self._server.settings.listeners)
        for rule in rules:
            if rule.listener and rule.listener not in listeners:
                known = ", ".join(listeners)
                raise Refusal(WRONG, f"listener: there is none of this name, {rule.listener[:256]}; there are {known}")
            try:
                TopicPattern(rule.topic)
            except ValueError as error:
                raise Refusal(BAD_TOPIC, f"topic {rule.topic}: {error}") from None
            await work.checkpoint()
        for subject, wanted in Counter(rule.subject for rule in rules).items():
            if not replaces and wanted > self._rules.room(*subject):
                raise Refusal(WRONG, f"more than {MAX_RULES} rules of {_login(*subject)}")

    async def _change(self, rules: Sequence[NewAclRule], put: Callable[[NewAclRule], object]) -> None:
        async with self._adding:
            await self._check(rules)
            check_store_writable(self._server.tables)
            work = CooperativeSlice()
            for rule in rules:
                with rows_of_a_size():
                    put(rule)
                if work.over:
                    self._server.access.authorization.forget_decisions()
                    await work.next()
            self._server.access.authorization.forget_decisions()
        await wait_until_stored(self._server.tables)


def _itself(record: HalfRecord) -> HalfRecord:
    return record


def subject_of(login: str) -> Subject:
    return next(((kind, "") for kind in NAMELESS if login == _LOGINS[kind]), (USERNAME, login))


def _login(kind: str, name: str) -> str:
    return _LOGINS.get(kind, name)


def rule_record(rule: StoredAclRule) -> AclRecord:
    return AclRecord(_login(rule.kind, rule.name), rule.topic, rule.action, rule.allow, rule.listener)


def half_records(rule: StoredAclRule) -> list[HalfRecord]:
    kind = _HALF_RECORDS[rule.kind]
    name = _login(rule.kind, rule.name)
    return [kind(name, rule.topic, each, _access(rule.allow), rule.listener) for each in halves(rule.action)]


def added_record(rule: NewAclRule) -> AddedRecord:
    given = {rule.subject[0]: _login(*rule.subject)}
    if rule.listener:
        given["listener"] = rule.listener
    return AddedRecord(**given, topic=rule.topic, action=rule.action, access=_access(rule.allow), result=OK)


def _access(allow: bool) -> Access:
    return "allow" if allow else "deny"


def _in_halves(rules: Sequence[NewAclRule] | Sequence[StoredAclRule]) -> list[RuleContent]:
    return [RuleContent(each.topic, half, each.allow, each.listener) for each in rules for half in halves(each.action)]


def halves(action: str) -> tuple[str, ...]:
    return (PUB, SUB) if action == PUBSUB else (action,)
