"""The MQTT 5.0 properties of messages from ``republish``, created from templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import NO_PROPERTIES, Properties
from taipan.broker.mqtt.properties import BINARY, STRING, TABLE, Property
from taipan.broker.mqtt.topics import valid_name

from ..functions.undefined import UNDEFINED
from ..params import ParamError, one_of
from .action import Row
from .template import Template

USER: Final = "user_properties"
USER_TEMPLATE: Final = "user_properties_template"
MQTT_TEMPLATE: Final = "mqtt_properties_template"
_MAX_USER_PROPERTIES: Final = 100
_SHOWN: Final = 64
_MQTT: Final[dict[str, Property]] = {
    TABLE[identifier].name: TABLE[identifier]
    for identifier in (
        c.PAYLOAD_FORMAT_INDICATOR,
        c.MESSAGE_EXPIRY_INTERVAL,
        c.CONTENT_TYPE,
        c.RESPONSE_TOPIC,
        c.CORRELATION_DATA,
    )
}
"""The properties that a publisher may set, by their names in the standard and in ``pub_props``."""

_Pairs = list[tuple[Template, Template]]


def property_templates(params: Mapping[str, Any]) -> Callable[[Row], Properties] | None:
    """Return the function that creates the properties of a message from a row, or raises ValueError; None: messages
    have none.

    Raises ParamError for templates that are invalid for every row."""
    users = _user_properties(params)
    others = _pairs(MQTT_TEMPLATE, params.get(MQTT_TEMPLATE) or [])
    _check_mqtt(others)
    if not users and not others:
        return None

    def properties(row: Row) -> Properties:
        found = _mqtt_properties(others, row)
        pairs = _user_pairs(users, row)
        if pairs:
            found[c.USER_PROPERTY] = pairs
        return found or NO_PROPERTIES

    return properties


def _user_properties(params: Mapping[str, Any]) -> Template | _Pairs:
    """Read ``user_properties``, or EMQX's ``user_properties_template``."""
    given, listed = params.get(USER, {}), params.get(USER_TEMPLATE) or []
    if listed and given:
        raise ParamError(USER_TEMPLATE, f"cannot be given together with {USER}")
    if listed:
        pairs = _pairs(USER_TEMPLATE, listed)
        if len(pairs) > _MAX_USER_PROPERTIES:
            raise ParamError(USER_TEMPLATE, f"more than {_MAX_USER_PROPERTIES}")
        return pairs
    if isinstance(given, str):
        template = Template(given)
        if given and not template.single:
            raise ParamError(USER, "expected an object, or one placeholder")
        return template if given else []
    if any(not isinstance(value, str) for value in given.values()):
        raise ParamError(USER, "expected an object whose values are strings")
    return [(Template(key), Template(value)) for key, value in given.items()]


def _pairs(param: str, given: object) -> _Pairs:
    """Return the templates of a list of ``{"key", "value"}``. Raises ParamError."""
    if not isinstance(given, list):  # only if an older version stored an unknown parameter
        raise ParamError(param, "expected a list")
    pairs = []
    for index, each in enumerate(given):
        if not isinstance(each, dict) or set(each) != {"key", "value"}:
            raise ParamError(param, f"[{index}]: expected an object with key and value")
        key, value = each["key"], each["value"]
        if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, str | int):
            raise ParamError(param, f"[{index}]: expected a string as key, and a string or a whole number as value")
        if key == "" and value == "":  # an empty row of a form
            continue
        if key == "":
            raise ParamError(param, f"[{index}]: key is empty")
        pairs.append((Template(key), Template(str(value))))
    return pairs


def _check_mqtt(pairs: _Pairs) -> None:
    """Raise ParamError for a fixed name that is invalid or occurs twice, or for an invalid fixed value."""
    seen = set()
    for key, value in pairs:
        if key.placeholders:
            continue
        if key.text in seen:
            raise ParamError(MQTT_TEMPLATE, f"{key.text} occurs twice")
        seen.add(key.text)
        try:
            kind = _kind(key.text)
            if not value.placeholders:
                _valid(kind, value.text)
        except ValueError as error:
            raise ParamError(MQTT_TEMPLATE, str(error)) from None


def _mqtt_properties(pairs: _Pairs, row: Row) -> Properties:
    found: Properties = {}
    for key, value in pairs:
        try:
            kind = _kind(_utf8(key.render(row)))
            if value.single and value.value(row) in (UNDEFINED, None):
                continue  # such as the Response Topic of a message without one
            text = value.render(row) if value.text else ""
            if kind.identifier in found:
                raise ValueError(f"{kind.name} occurs twice")
            found[kind.identifier] = _valid(kind, text)
        except ValueError as error:
            raise ValueError(f"{MQTT_TEMPLATE}: {error}") from None
    return found


def _kind(name: str) -> Property:
    kind = _MQTT.get(name)
    if kind is None:
        raise ValueError(f"expected one of {one_of(_MQTT)}, got {name[:_SHOWN]!r}")
    return kind


def _valid(kind: Property, value: str | bytes) -> int | str | bytes:
    """Return the value in the form for a property of this kind. Raises ValueError."""
    if kind.type == BINARY:
        data = value.encode() if isinstance(value, str) else value
        if len(data) > c.MAX_STRING:
            raise ValueError(f"{kind.name} is longer than {c.MAX_STRING} bytes")
        return data
    text = _utf8(value, kind.name)
    if kind.type == STRING:
        if kind.identifier == c.RESPONSE_TOPIC and not valid_name(text):
            raise ValueError(f"{kind.name}: {text[:_SHOWN]!r} is not a valid topic to publish to")
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and kind.least <= int(text) <= kind.greatest):
        raise ValueError(
            f"{kind.name}: expected a whole number from {kind.least} to {kind.greatest}, got {text[:_SHOWN]!r}"
        )
    return int(text)


def _user_pairs(users: Template | _Pairs, row: Row) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]]
    try:
        if isinstance(users, Template):
            found = users.value(row)
            if not isinstance(found, dict):
                raise ValueError("the placeholder is not an object")
            text = Template("${value}")
            pairs = [(_utf8(key), _utf8(text.render({"value": value}))) for key, value in found.items()]
        else:
            pairs = [(_utf8(_rendered(key, row)), _utf8(_rendered(value, row))) for key, value in users]
        if len(pairs) > _MAX_USER_PROPERTIES:
            raise ValueError(f"more than {_MAX_USER_PROPERTIES}")
    except ValueError as error:
        raise ValueError(f"{USER}: {error}") from None
    return pairs


def _rendered(template: Template, row: Row) -> str | bytes:
    """Return the text; an empty template is an empty text here, and not the whole row."""
    return template.render(row) if template.text else ""


def _utf8(value: str | bytes, name: str = "a string") -> str:
    """Return the value if it can be a UTF-8 Encoded String [MQTT-1.5.4-1, -2]. Raises ValueError."""
    if isinstance(value, bytes):
        raise ValueError(f"{name} is not UTF-8")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not UTF-8") from None
    if size > c.MAX_STRING or "\0" in value:
        raise ValueError(f"{name} is longer than {c.MAX_STRING} bytes, or contains U+0000")
    return value
