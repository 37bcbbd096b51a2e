"""Commands: the JSON that an MQTT client publishes for a device, and its translation to a CoAP request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from . import tlv
from .content import LINK_FORMAT, TEXT, TLV
from .objects import Objects
from .paths import INSTANCE, OBJECT, RESOURCE, RESOURCE_INSTANCE, BadPath, Path, parse
from .values import CORELNK, OPAQUE, STRING, BadValue, to_bytes

GET: Final = 1
POST: Final = 2
PUT: Final = 3
DELETE: Final = 4

OBSERVE: Final = 0
CANCEL: Final = 1
"""Values of the option Observe in a request."""

MAX_VALUES: Final = 1024
"""Maximum number of values in one command."""
ATTRIBUTES: Final = ("pmin", "pmax", "gt", "lt", "st")


class BadCommand(ValueError):
    """A command cannot be sent; the message says why. ``message``: its fields, as far as they are known."""

    def __init__(self, reason: str, message: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.message = message or {}


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A CoAP request. Its path does not include the device's alternate path."""

    code: int
    path: Path
    query: tuple[str, ...] = ()
    payload: bytes = b""
    content_format: int | None = None
    accept: int | None = None
    observe: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceCommand:
    """``message``: its fields without ``data``, which the answer repeats. ``kind``: its ``msgType``. ``named``: the
    path as written in the command."""

    message: dict[str, Any]
    kind: str
    named: str
    request: DeviceRequest


def parse_command(payload: bytes, objects: Objects) -> DeviceCommand:
    """Return a command. Raises BadCommand."""
    try:
        message = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadCommand(f"not JSON: {str(error)[:100]}") from None
    if not isinstance(message, dict):
        raise BadCommand("a JSON object is required")
    try:
        return _command(message, objects)
    except (BadPath, BadValue, tlv.BadTlv, BadCommand) as error:
        raise BadCommand(str(error), message) from None


def _command(message: dict[str, Any], objects: Objects) -> DeviceCommand:
    kind, data = message.get("msgType"), message.get("data")
    translate = _COMMANDS.get(kind) if isinstance(kind, str) else None
    if translate is None or not isinstance(kind, str):
        raise BadCommand(f"msgType is not one of {', '.join(_COMMANDS)}")
    if not isinstance(data, dict):
        raise BadCommand("data is not an object")
    request = translate(_Data(data, message.get("encoding", "plain"), objects))
    rest = {name: value for name, value in message.items() if name != "data"}
    return DeviceCommand(rest, kind, named_path(message), request)


def named_path(message: dict[str, Any]) -> str:
    """Return the path as written in a command: its ``path``, otherwise its ``basePath``, otherwise an empty text."""
    data = message.get("data")
    if not isinstance(data, dict):
        return ""
    named = data.get("path", data.get("basePath", ""))
    return named if isinstance(named, str) else ""


class _Data:
    """``data`` of a command, with the checks of its members."""

    def __init__(self, data: dict[str, Any], encoding: object, objects: Objects) -> None:
        if encoding not in ("plain", "hex"):
            raise BadCommand("encoding is neither plain nor hex")
        self.data = data
        self._hex = encoding == "hex"
        self._objects = objects

    def path(self, name: str, shortest: int, longest: int = RESOURCE_INSTANCE) -> Path:
        """Return the path in the member ``name``, which must have this many numbers."""
        text = self.data.get(name)
        if not isinstance(text, str):
            raise BadCommand(f"data.{name} is missing, or not a string")
        path = parse(text)
        if not shortest <= len(path) <= longest:
            many = str(shortest) if shortest == longest else f"{shortest} to {longest}"
            raise BadCommand(f"data.{name} {text[:60]!r} has {len(path)} numbers, not {many}")
        return path

    def values(self, base: Path, optional: bool = False) -> list[tuple[Path, bytes]]:
        """Return the values of ``content``: for each its path below ``base``, and its bytes."""
        content = self.data.get("content", [] if optional else None)
        if not isinstance(content, list) or not (content or optional):
            raise BadCommand("data.content is not a list with values")
        if len(content) > MAX_VALUES:
            raise BadCommand(f"data.content has more than {MAX_VALUES} values")
        return [self._value(each, base) for each in content]

    def _value(self, row: object, base: Path) -> tuple[Path, bytes]:
        if not isinstance(row, dict):
            raise BadCommand("a value in data.content is not an object")
        text = row.get("path", "")
        if not isinstance(text, str):
            raise BadCommand("the path of a value must be a string")
        path = parse(text)
        if len(base) + len(path) > RESOURCE_INSTANCE:
            raise BadCommand(f"path {text[:60]!r} of a value is too long for basePath")
        return path, self.bytes_of(row, (*base, *path))

    def bytes_of(self, row: dict[str, Any], path: Path) -> bytes:
        """Return ``value`` in TLV, with its ``type`` or the type in the definition of the object."""
        kind = row.get("type") or self._objects.kind(path)
        if not isinstance(kind, str) or not kind:
            raise BadCommand("type is missing, or not a string, and the resource has no definition")
        if "value" not in row:
            raise BadCommand("value is missing")
        value = row["value"]
        if not self._hex:
            return to_bytes(kind, value)
        try:
            raw = bytes.fromhex(value)
            return raw if kind in (STRING, CORELNK, OPAQUE) else to_bytes(kind, raw.decode())
        except (TypeError, UnicodeDecodeError, ValueError) as error:
            raise BadCommand("value is not hexadecimal" if not isinstance(error, BadValue) else str(error)) from None

    def multiple(self, path: Path) -> bool:
        """Return whether a resource has instances according to its definition."""
        found = self._objects.resource(path)
        return found is not None and found.multiple


def _read(data: _Data) -> DeviceRequest:
    return DeviceRequest(GET, data.path("path", OBJECT))


def _discover(data: _Data) -> DeviceRequest:
    return DeviceRequest(GET, data.path("path", OBJECT, RESOURCE), accept=LINK_FORMAT)


def _observe(data: _Data) -> DeviceRequest:
    return DeviceRequest(GET, data.path("path", OBJECT), observe=OBSERVE)


def _cancel_observe(data: _Data) -> DeviceRequest:
    return DeviceRequest(GET, data.path("path", OBJECT), observe=CANCEL)


def _write(data: _Data) -> DeviceRequest:
    base = data.data.get("basePath", "/")
    if base == "/":
        path = data.path("path", RESOURCE)
        value = data.bytes_of(data.data, path)
        kind = tlv.RESOURCE if len(path) == RESOURCE else tlv.RESOURCE_INSTANCE
        return DeviceRequest(PUT, path, payload=tlv.encode([tlv.Tlv(kind, path[-1], value)]), content_format=TLV)
    path = data.path("basePath", INSTANCE, RESOURCE)
    values = data.values(path)
    if len(path) == INSTANCE:
        return DeviceRequest(POST, path, payload=tlv.encode(_resources(values)), content_format=TLV)
    if len(values) == 1 and not data.multiple(path):
        entry = tlv.Tlv(tlv.RESOURCE, path[-1], values[0][1])
    else:
        entry = _resource(path[-1], values)
    return DeviceRequest(PUT, path, payload=tlv.encode([entry]), content_format=TLV)


def _resources(values: list[tuple[Path, bytes]]) -> list[tlv.Tlv]:
    """Return resources with their values; a resource with instances is one entry."""
    single: dict[int, bytes] = {}
    several: dict[int, list[tuple[Path, bytes]]] = {}
    for path, value in values:
        if not 1 <= len(path) <= 2:
            raise BadCommand("the path of a value must have one number or two")
        if len(path) == 1:
            single[path[0]] = value
        else:
            several.setdefault(path[0], []).append((path[1:], value))
    if single.keys() & several.keys():
        raise BadCommand("a resource has both a value and instances")
    entries = [tlv.Tlv(tlv.RESOURCE, number, value) for number, value in single.items()]
    return entries + [_resource(number, instances) for number, instances in several.items()]


def _resource(number: int, values: list[tuple[Path, bytes]]) -> tlv.Tlv:
    instances = {}
    for path, value in values:
        if len(path) != 1:
            raise BadCommand("the path of a resource instance must be one number")
        instances[path[0]] = tlv.Tlv(tlv.RESOURCE_INSTANCE, path[0], value)
    return tlv.Tlv(tlv.MULTIPLE_RESOURCE, number, inner=tuple(instances.values()))


def _create(data: _Data) -> DeviceRequest:
    path = data.path("basePath", OBJECT, OBJECT)
    instances: dict[int, list[tuple[Path, bytes]]] = {}
    for where, value in data.values(path, optional=True):
        if len(where) < 2:
            raise BadCommand("the path of a value must have the numbers of an instance and a resource, such as /0/1")
        instances.setdefault(where[0], []).append((where[1:], value))
    entries = [
        tlv.Tlv(tlv.OBJECT_INSTANCE, number, inner=tuple(_resources(values))) for number, values in instances.items()
    ]
    return DeviceRequest(POST, path, payload=tlv.encode(entries), content_format=TLV)


def _delete(data: _Data) -> DeviceRequest:
    return DeviceRequest(DELETE, data.path("path", INSTANCE, INSTANCE))


def _execute(data: _Data) -> DeviceRequest:
    arguments = data.data.get("args")
    if arguments is None or arguments == "undefined":  # what EMQX's users send for none
        arguments = ""
    if not isinstance(arguments, str):
        raise BadCommand("data.args is not a string")
    try:
        payload = arguments.encode()
    except UnicodeEncodeError:
        raise BadCommand("data.args has half of a surrogate pair") from None
    return DeviceRequest(POST, data.path("path", RESOURCE, RESOURCE), payload=payload, content_format=TEXT)


def _write_attributes(data: _Data) -> DeviceRequest:
    path = data.path("path", OBJECT)
    given = [(name, data.data[name]) for name in ATTRIBUTES if data.data.get(name) is not None]
    if not given:
        raise BadCommand(f"data has none of {', '.join(ATTRIBUTES)}")
    return DeviceRequest(PUT, path, query=tuple([_attribute(name, value) for name, value in given]))


def _attribute(name: str, value: object) -> str:
    """Return ``pmin=10``; an empty string resets the attribute."""
    if value == "":
        return name
    if isinstance(value, float):
        text = format(value, ".9f").rstrip("0").rstrip(".")  # the form of the standard has no exponent
    else:
        text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    digits = text.removeprefix("-").replace(".", "", 1)
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 30:
        raise BadCommand(f"data.{name} is not a number")
    return f"{name}={text}"


_COMMANDS: Final[dict[str, Callable[[_Data], DeviceRequest]]] = {
    "read": _read,
    "discover": _discover,
    "observe": _observe,
    "cancel-observe": _cancel_observe,
    "write": _write,
    "write-attr": _write_attributes,
    "execute": _execute,
    "create": _create,
    "delete": _delete,
}
