"""EMQX 4's ``acl.conf`` as access rules."""

import ipaddress
from pathlib import Path
from typing import Final

from taipan.broker.access.acl import TopicPattern

from .erlang_terms import Atom, NoTerms, Term, read_terms, shown
from .named_files import read_named
from .output import Table
from .report import MigrationReport

_ACTIONS: Final = {"publish": "publish", "subscribe": "subscribe", "pubsub": "pubsub"}
_ALLOWS: Final = {"allow": True, "deny": False}


class _Unknown(ValueError):
    """The reason why a term cannot be expressed as a rule here."""


def read_acl(path: Path, report: MigrationReport) -> list[Table]:
    """Return the rules in their order. A term that is not a rule is reported as an error, because leaving out a rule
    would allow or deny too much."""
    try:
        text = read_named(path).decode("utf-8")
        terms = list(read_terms(text))
    except UnicodeDecodeError:
        report.wrong(str(path), "acl_file", "not UTF-8")
        return []
    except NoTerms as error:
        report.wrong(f"{path}:{error.line}", "acl_file", str(error))
        return []
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        report.wrong(str(path), "acl_file", getattr(error, "strerror", None) or str(error))
        return []
    rules: list[Table] = []
    for line, term in terms:
        try:
            made = _rules(term)
        except _Unknown as error:
            report.wrong(f"{path}:{line}", shown(term), str(error))
            continue
        report.carried(f"{path}:{line}", shown(term), "access.rules")
        rules += made
    return rules


def _rules(term: Term) -> list[Table]:
    if not isinstance(term, tuple) or not 2 <= len(term) <= 4 or not isinstance(term[0], Atom):
        raise _Unknown("expected {allow, Who, Action, Topics} or {allow, all}")
    if term[0].name not in _ALLOWS:
        raise _Unknown("expected allow or deny in a rule")
    if len(term) == 3:
        raise _Unknown("topics are missing")
    allow = _ALLOWS[term[0].name]
    rules = []
    for conditions in _who(term[1]):
        rule: Table = {"allow": allow, **conditions}
        if len(term) == 4:
            action = term[2]
            if not isinstance(action, Atom) or action.name not in _ACTIONS:
                raise _Unknown("the action is publish, subscribe or pubsub")
            rule["action"] = _ACTIONS[action.name]
            if term[3] != Atom("all"):
                rule["topics"] = _topics(term[3])
        rules.append(rule)
    return rules


def _who(term: Term) -> list[Table]:
    """Return the alternatives of a subject, each as conditions that must all hold."""
    if term == Atom("all"):
        return [{}]
    if isinstance(term, tuple) and len(term) == 2 and isinstance(term[0], Atom):
        kind, value = term[0].name, term[1]
        if kind in ("and", "or") and isinstance(value, list) and value:
            ways: list[Table] = [] if kind == "or" else [{}]
            for each in value:
                if kind == "or":
                    ways += _who(each)
                else:
                    ways = [_joined(way, more) for way in ways for more in _who(each)]
            return ways
        if kind in ("user", "username", "client", "clientid"):
            key = "username" if kind.startswith("user") else "client_id"
            if value == Atom("all"):
                return [{}]
            if isinstance(value, str):
                return [{key: value}]
        if kind in ("ipaddr", "ipaddrs"):
            values = value if isinstance(value, list) else [value]
            return [{"address": _network(each)} for each in values]
    raise _Unknown(
        f"{shown(term)} is not supported: expected a user, a client, an address, all, or a combination of these"
    )


def _joined(way: Table, more: Table) -> Table:
    joined = dict(way)
    for key, value in more.items():
        if joined.setdefault(key, value) != value:
            raise _Unknown(f"two values of {key} that must both hold match no client")
    return joined


def _network(value: Term) -> str:
    try:
        if isinstance(value, str):
            return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        pass
    raise _Unknown(f"not an address: {shown(value)}")


def _topics(term: Term) -> list[str]:
    topics = []
    for each in term if isinstance(term, list) else [term]:
        text = f"eq {each[1]}" if isinstance(each, tuple) and len(each) == 2 and each[0] == Atom("eq") else each
        if not isinstance(text, str):
            raise _Unknown(f"not a topic: {shown(each)}")
        try:
            TopicPattern(text)
        except ValueError as error:
            raise _Unknown(f"topic {text}: {error}") from None
        topics.append(text)
    if not topics:
        raise _Unknown("a rule without topics matches no topic in EMQX, but every topic in Taipan")
    return topics
