"""Functions that return columns of the event."""

from __future__ import annotations

from typing import Any, Final

from taipan.broker.mqtt.topics import matches

from .function import INTEGER, LIST, TEXT, FunctionContext, register
from .maps_arrays import KEY, walk
from .undefined import UNDEFINED
from .values import decode_json, describe

_COLUMNS: Final = {
    "msgid": "id",
    "qos": "qos",
    "clientid": "clientid",
    "username": "username",
    "clientip": "peerhost",
    "peerhost": "peerhost",
}


def _answer_column(name: str, column: str) -> None:
    @register(name, context=True)
    def answer(context: FunctionContext) -> object:
        return context.columns.get(column, UNDEFINED)


for _name, _column in _COLUMNS.items():
    _answer_column(_name, _column)


@register("null")
def undefined() -> object:
    """The undefined value."""
    return UNDEFINED


@register("topic", INTEGER, optional=1, context=True)
def topic(context: FunctionContext, level: int | None = None) -> object:
    """Return the topic, or one level of it, counted from 1."""
    name = context.columns.get("topic", UNDEFINED)
    if level is None:
        return name
    if type(name) is not str:
        raise ValueError(f"the topic is {describe(name)}")
    levels = name.split("/")
    if not 1 <= level <= len(levels):
        raise ValueError(f"there is no level {level} in a topic of {len(levels)}")
    return levels[level - 1]


@register("flags", context=True)
def flags(context: FunctionContext) -> Any:
    """Return the flags of the message, an empty map if it has none."""
    found = context.columns.get("flags", UNDEFINED)
    return found if type(found) is dict else {}


@register("flag", KEY, context=True)
def flag(context: FunctionContext, name: str) -> Any:
    """Return one flag of the message."""
    return flags(context).get(name, UNDEFINED)


@register("payload", KEY, optional=1, context=True)
def payload(context: FunctionContext, path: str | None = None) -> Any:
    """Return the payload, or the value at a path such as 'a.b' in its JSON."""
    found = context.columns.get("payload", UNDEFINED)
    if path is None:
        return found
    if type(found) is str or type(found) is bytes:
        found = decode_json(found, context.budget)
    return walk(found, path.split("."), UNDEFINED, context.budget)


def _entries(context: FunctionContext, entries: list[object], qos: int | None) -> list[str]:
    """Return the topics of a list of `{topic, qos}`, optionally only those of one QoS."""
    context.budget.step(len(entries))
    return [
        each["topic"]
        for each in entries
        if type(each) is dict and type(each.get("topic")) is str and (qos is None or each.get("qos") == qos)
    ]


@register("contains_topic", LIST, TEXT, INTEGER, optional=1, context=True)
def contains_topic(context: FunctionContext, entries: list[object], wanted: str, qos: int | None = None) -> bool:
    """Return whether a list of `{topic, qos}` contains exactly this topic, optionally with this QoS."""
    return wanted in _entries(context, entries, qos)


@register("contains_topic_match", LIST, TEXT, INTEGER, optional=1, context=True)
def contains_topic_match(context: FunctionContext, entries: list[object], filter: str, qos: int | None = None) -> bool:
    """Return whether a list of `{topic, qos}` contains a topic that the filter matches, optionally with this QoS."""
    return any(filter != "" and matches(filter, name) for name in _entries(context, entries, qos))
