"""The payload of a device's answer as a list of ``{"path", "value"}``, with the types from the definitions of
objects."""

from typing import Any, Final

import msgspec

from . import tlv
from .objects import Objects
from .paths import INSTANCE, OBJECT, RESOURCE, BadPath, Path, parse, text_of
from .values import BOOLEAN, INTEGER, TIME, UNSIGNED, BadValue, Value, base64_of, from_bytes, from_text

TEXT: Final = 0
LINK_FORMAT: Final = 40
OCTET_STREAM: Final = 42
TLV: Final = 11_542
JSON: Final = 11_543
_OLD: Final = {1541: TEXT, 1542: TLV, 1543: JSON, 1544: OCTET_STREAM}
"""Numbers of the drafts of LwM2M 1.0, which some devices still have."""

Content = list[dict[str, Any]]


class BadContent(ValueError):
    """A payload cannot be translated; the message says why."""


def to_content(path: Path, format_number: int | None, data: bytes, objects: Objects, root: str = "/") -> Content:
    """Translate the answer to a request of ``path``. ``root``: the device's alternate path, with which JSON may begin.
    Raises BadContent."""
    number = TEXT if format_number is None else _OLD.get(format_number, format_number)
    try:
        if number == TLV:
            return _from_tlv(path, data, objects)
        if number == JSON:
            return _from_json(path, data, objects, root)
        if number not in (TEXT, OCTET_STREAM):
            raise BadContent(f"content format {number} is not supported")
        if len(path) < RESOURCE:
            raise BadContent("the answer is a single value, but the path is not a resource")
        value = from_text(objects.kind(path), data) if number == TEXT else base64_of(data)
    except (BadValue, BadPath, tlv.BadTlv) as error:
        raise BadContent(str(error)) from None
    return [_row(path, value)]


def _row(path: Path, value: Value | None) -> dict[str, Any]:
    return {"path": text_of(path), "value": value}


def _from_tlv(path: Path, data: bytes, objects: Objects) -> Content:
    rows: Content = []
    for entry in tlv.decode(data):
        if entry.kind == tlv.OBJECT_INSTANCE:
            for inner in entry.inner:
                _add_resource(rows, (path[0], entry.id), inner, objects)
        elif entry.kind == tlv.RESOURCE_INSTANCE:
            if len(path) < RESOURCE:
                raise BadContent("the answer has a resource instance, but the path is not a resource")
            _add_value(rows, (*path[:RESOURCE], entry.id), entry, objects)
        else:
            # A device with one instance of an object may leave it out.
            _add_resource(rows, path[:INSTANCE] if len(path) > OBJECT else (path[0], 0), entry, objects)
    return rows


def _add_resource(rows: Content, instance: Path, entry: tlv.Tlv, objects: Objects) -> None:
    path = (*instance, entry.id)
    if entry.kind == tlv.RESOURCE:
        _add_value(rows, path, entry, objects)
    for each in entry.inner:
        _add_value(rows, (*path, each.id), each, objects)


def _add_value(rows: Content, path: Path, entry: tlv.Tlv, objects: Objects) -> None:
    try:
        rows.append(_row(path, from_bytes(objects.kind(path), entry.value)))
    except BadValue as error:
        raise BadContent(f"{text_of(path)}: {error}") from None


class _Element(msgspec.Struct):
    n: str = ""
    v: int | float | None = None
    bv: bool | None = None
    sv: str | None = None
    ov: str | None = None
    t: int | float | None = None


class _Pack(msgspec.Struct):
    e: list[_Element]
    bn: str | None = None
    bt: int | float | None = None


_PACK: Final = msgspec.json.Decoder(_Pack)


def _from_json(path: Path, data: bytes, objects: Objects, root: str) -> Content:
    try:
        pack = _PACK.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadContent(f"not valid LwM2M JSON: {str(error)[:100]}") from None
    base = text_of(path) if pack.bn is None else pack.bn
    rows: Content = []
    for element in pack.e:
        name = base.rstrip("/") + "/" + element.n.lstrip("/")
        if root != "/" and name.startswith(root.rstrip("/") + "/"):
            name = name[len(root.rstrip("/")) :]
        where = parse(name)
        row = _row(where, _element_value(objects.kind(where), element))
        if element.t is not None or pack.bt is not None:
            row["timestamp"] = (pack.bt or 0) + (element.t or 0)
        rows.append(row)
    return rows


def _element_value(kind: str, element: _Element) -> Value | None:
    for value in (element.v, element.bv, element.ov, element.sv):
        if value is None:
            continue
        if kind in (INTEGER, UNSIGNED, TIME) and isinstance(value, float) and value.is_integer():
            return int(value)
        if kind == BOOLEAN and not isinstance(value, bool) and value in (0, 1):
            return bool(value)
        return value
    return None
