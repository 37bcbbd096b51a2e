"""The names that rows of a statement can have, to report placeholders for other names when a rule is created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..actions.template import Template
from ..events.kinds import EVENTS, MESSAGE_PUBLISH
from ..params import RESOURCE, Param, ParamError
from ..sql.ast import Field, Path, Slice, Star, Statement, walk
from ..sql.fields import element_path, plain_name


def output_names(statement: Statement) -> frozenset[str]:
    """The first-level names that a row may have."""
    columns = _columns(statement)
    names: set[str] = set()
    if statement.is_foreach:
        collection = statement.fields[-1]
        assert isinstance(collection, Field)
        before = _names(statement.fields[:-1], columns) | {element_path(collection).name}
        if statement.do is None:
            return frozenset(columns | before)
        return frozenset(_names(statement.do, columns | before))
    names |= _names(statement.fields, columns)
    return frozenset(names)


def check_placeholders(params: Mapping[str, object], declared: Iterable[Param], names: frozenset[str]) -> None:
    """Raise ParamError for a template with a name that no row can have.

    A default that was not given explicitly is accepted, as in EMQX: it renders as ``undefined``."""
    for param in declared:
        if param.name == RESOURCE or params.get(param.name) == param.default:
            continue
        for text in _texts(params.get(param.name)):
            for path in Template(text).placeholders:
                if path[0] not in names:
                    known = ", ".join(sorted(names)[:8]) or "nothing"
                    placeholder = "${" + ".".join(path) + "}"
                    raise ParamError(param.name, f"{placeholder} is not selected by the rule, which selects {known}")


def warnings(statement: Statement, actions: Iterable[tuple[Mapping[str, object], Iterable[Param]]]) -> list[str]:
    """Return warnings about accepted but probably unintended input: names that are undefined where they are used.

    ``actions``: for each action its parameters, and the declared ones of its type."""
    found = []
    if statement.is_foreach and statement.incase is not None and statement.do is not None:
        collection = statement.fields[-1]
        assert isinstance(collection, Field)
        columns = _columns(statement)
        seen = columns | _names(statement.fields[:-1], columns) | {element_path(collection).name}
        made = _names(statement.do, seen) - seen
        used = {node.name for node, _ in walk(statement.incase) if isinstance(node, Path)}
        found += [f"INCASE: {name} is undefined there: DO defines it only after INCASE" for name in sorted(made & used)]
    names = output_names(statement)
    for params, declared in actions:
        for param in declared:
            if param.name == RESOURCE or params.get(param.name) != param.default:
                continue
            for text in _texts(param.default):
                found += [
                    f"{param.name}: its default {text} becomes undefined: the rule selects no {path[0]}"
                    for path in Template(text).placeholders
                    if path[0] not in names
                ]
    return list(dict.fromkeys(found))


def _columns(statement: Statement) -> set[str]:
    """Return the columns of the events in FROM."""
    kinds = [EVENTS.get(source.topic, MESSAGE_PUBLISH) for source in statement.sources]
    return {name for kind in kinds for name in kind.makers} | {"metadata"}


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _names(fields: Iterable[Star | Field], columns: set[str]) -> set[str]:
    names: set[str] = set()
    for number, field in enumerate(fields, 1):
        if isinstance(field, Star):
            names |= columns | names
        elif field.alias is not None:
            names.add(field.alias.name)
        elif isinstance(field.expression, Path):
            names.add(field.expression.name)
        elif isinstance(field.expression, Slice):
            names.add(field.expression.path.name)
        else:
            names.add(plain_name(field, number) or "")
    return names
