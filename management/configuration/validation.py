"""Validation of external values against their types: each fault with its place, in words for people.

It checks both the configuration file and the bodies and queries of the HTTP API."""

import difflib
import typing
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from taipan.broker.observability.log_text import one_line
from taipan.broker.setting_rules import Fault as Fault
from taipan.broker.setting_rules import KeyPath
from taipan.broker.setting_rules import ValueRules as ValueRules

from .setting_types import fields_of, member_type, struct_of, union_members

_MAX_SHOWN_LENGTH: Final = 60
_LISTS: Final = (list, tuple, set, frozenset)
_KINDS: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    bytes: "a Base64 string",
}


class Validator:
    """Walks through a value and its types.

    ``strict``: ``"1"`` is not a number. ``table``: the name of a mapping, ``table`` or ``object``. ``rules``:
    requirements of values beyond their types."""

    def __init__(self, strict: bool = True, table: str = "table", rules: ValueRules | None = None) -> None:
        self._strict = strict
        self._table = table
        self._rules: ValueRules = rules or {}

    def faults(self, value: object, kind: object, place: KeyPath = ()) -> Iterator[Fault]:
        """Yield all faults of ``value``; a value without faults can be converted to ``kind``."""
        struct, member = struct_of(kind), _member(kind)
        if struct is not None and isinstance(value, dict):
            yield from self._of_struct(value, struct, place)
        elif member is not None and isinstance(value, dict) and _holds(kind, dict):
            for key, each in value.items():
                yield from self.faults(each, member, place + (str(key),))
        elif member is not None and isinstance(value, list) and _holds(kind, list, tuple):
            found = False
            for index, each in enumerate(value):
                for fault in self.faults(each, member, place + (index,)):
                    found = True
                    yield fault
            if not found:
                yield from self._of_whole(value, kind, place)
        else:
            yield from self._of_whole(value, kind, place)

    def _of_struct(self, value: dict[str, Any], struct: type[msgspec.Struct], place: KeyPath) -> Iterator[Fault]:
        fields = fields_of(struct)
        rules = self._rules.get(struct, {})
        if struct.__struct_config__.forbid_unknown_fields:
            yield from unknown_keys(value, [field.encode_name for field in fields], place)
        for field in fields:
            key = field.encode_name
            if key not in value:
                continue
            sound = True
            for fault in self.faults(value[key], field.type, place + (key,)):
                sound = False
                yield fault
            if sound and key in rules:
                for fault in rules[key](value[key]):
                    yield fault._replace(place=(*place, key, *fault.place))
        for field in fields:
            key = field.encode_name
            if field.required and key not in value:
                what = f"needs the key {quoted(key)}" if self._table == "table" else f"{key} is missing"
                yield Fault(place, what, missing=True)

    def _of_whole(self, value: object, kind: object, place: KeyPath) -> Iterator[Fault]:
        try:
            msgspec.convert(value, kind, strict=self._strict)
        except msgspec.ValidationError:
            yield Fault(place, f"expected {expected(kind, self._table)}, got {shown(value, self._table)}")


def unknown_keys(value: Collection[str], known: Collection[str], place: KeyPath) -> Iterator[Fault]:
    """Yield keys that are not ``known``, each with the most similar known key."""
    for key in value:
        if key not in known:
            yield Fault(place + (key,), f"unknown key{nearest(key, known)}")


def _member(kind: object) -> Any:
    """Return the member type, if this may be a list, a tuple of any length or a mapping."""
    for each in union_members(kind):
        arguments = typing.get_args(each)
        if typing.get_origin(each) is tuple and arguments[1:] != (...,):
            continue
        found = member_type(each)
        if found is not None:
            return found
    return None


def _holds(kind: object, *wanted: type) -> bool:
    return any(typing.get_origin(each) in wanted for each in union_members(kind))


# In words


def expected(kind: object, table: str = "table") -> str:
    """Describe the allowed values of ``kind`` with their unit: ``a whole number of seconds from 0 to 65535``."""
    if typing.get_origin(kind) is Annotated:
        inner, *metas = typing.get_args(kind)
        meta = next((each for each in metas if isinstance(each, Meta)), Meta())
        extra = meta.extra or {}
        if "expected" in extra:
            return str(extra["expected"])
        if typing.get_origin(inner) in _LISTS:
            return _list(inner, table, meta)
        return _bounded(expected(inner, table), meta, extra.get("unit", ""))
    allowed = _literals(kind)
    if allowed:
        return _one_of([quoted(each) if isinstance(each, str) else _json(each) for each in allowed])
    alternatives = [each for each in _alternatives(kind) if each not in (type(None), msgspec.UnsetType)]
    if len(alternatives) > 1:
        words = dict.fromkeys(expected(each, table) for each in alternatives)
        return " or ".join(sorted(words, key=lambda each: each.startswith("a list")))  # the members of a list come last
    if not alternatives:
        return "null"
    (only,) = alternatives
    if only is not kind:
        return expected(only, table)
    origin = typing.get_origin(only)
    if origin in _LISTS:
        return _list(only, table, Meta())
    if origin is dict or only is dict or (isinstance(only, type) and issubclass(only, msgspec.Struct)):
        return f"{'an' if table[0] in 'aeiou' else 'a'} {table}"
    return _KINDS.get(only, "another value")


def _list(kind: object, table: str, meta: Meta) -> str:
    if meta.max_length == 0:
        return "an empty list"
    text = "a list" if meta.max_length is None else f"a list of at most {meta.max_length}"
    if meta.min_length:
        text = f"a list of {meta.min_length} or more" if meta.max_length is None else f"{text} and not empty"
    member = typing.get_args(kind)[0] if typing.get_args(kind) else Any
    return text if member is Any else f"{text}, each {expected(member, table)}"


def _bounded(text: str, meta: Meta, unit: str) -> str:
    if unit:
        text += f" of {unit}"
    least, most, above, below = meta.ge, meta.le, meta.gt, meta.lt
    if least is not None and most is not None:
        return f"{text} from {_number(least)} to {_number(most)}"
    for bound, words in ((least, "{} or more"), (most, "{} or less"), (above, "more than {}"), (below, "less than {}")):
        if bound is not None:
            text += ", " + words.format(_number(bound))
    if meta.min_length is not None and meta.max_length is not None:
        text += f" of {meta.min_length} to {meta.max_length} characters"
    elif meta.min_length is not None:
        text += f" of {meta.min_length} or more characters" if meta.min_length > 1 else " that is not empty"
    elif meta.max_length is not None:
        text += f" of at most {meta.max_length} characters"
    if meta.pattern is not None:
        text += f" like {meta.pattern}"
    return text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _alternatives(kind: object) -> tuple[Any, ...]:
    """Return the members of a union as they are written, including ``Annotated``."""
    if typing.get_origin(kind) in (typing.Union, type(int | str)):
        return typing.get_args(kind)
    return (kind,)


def _literals(kind: object) -> tuple[Any, ...]:
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    alternatives = [each for each in _alternatives(kind) if each not in (type(None), msgspec.UnsetType)]
    if len(alternatives) == 1 and alternatives[0] is not kind:
        return _literals(alternatives[0])
    return ()


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def shown(value: object, table: str = "table") -> str:
    """Return the given value, short enough for a line."""
    if isinstance(value, str):
        return quoted(value if len(value) <= _MAX_SHOWN_LENGTH else value[:_MAX_SHOWN_LENGTH] + "...")
    if isinstance(value, dict):
        return f"{'an' if table[0] in 'aeiou' else 'a'} {table}"
    if isinstance(value, (list, tuple)):
        return "an empty list" if not value else f"a list of {len(value)}"
    return one_line(_json(value))[:_MAX_SHOWN_LENGTH]


def _json(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def nearest(key: str, known: Collection[str]) -> str:
    """Return the most similar known key, as the end of a message; empty if no key is similar."""
    found = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {quoted(found[0])}?" if found else ""


def quoted(text: str) -> str:
    """Return the text in double quotes with escaped control characters, so that an error stays one line."""
    return '"' + one_line(text).replace('"', '\\"') + '"'
