"""The configuration as one document: file, environment and command line joined, each key with where it came from."""

import difflib
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from .outside_sources import Fault
from .setting_types import is_list, literals, struct_in, type_at, union_members, wrong_member
from .toml_lines import Path, key_lines


class ConfigError(Exception):
    """The configuration cannot be used. ``str(error)`` is one line: place, key, what is wrong."""


class ConfigDocument:
    """The joined data and where each of its keys comes from."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        """``roots``: the types of the top-level keys."""
        self.data: dict[str, Any] = {}
        self._roots = roots
        self._file = ""
        self._lines: dict[Path, int] = {}
        self._origins: dict[Path, str] = {}  # of what environment and command line set

    def read_file(self, path: str) -> None:
        """Take a TOML file as the data. Raises ConfigError."""
        self._file = path
        try:
            with open(path, "rb") as file:
                text = file.read().decode("utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message = str(error).replace("Invalid value", "Invalid value; text wants quotes")
            place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
            if place is None:
                raise ConfigError(f"{path}:{text.count(chr(10)) + 1}: {_one_line(message)}") from None
            raise ConfigError(f"{path}:{place[1]}: {_one_line(message[: place.start()])}") from None
        except RecursionError:
            raise ConfigError(f"{path}: nested too deeply") from None
        self._lines = key_lines(text)

    def override(self, keys: list[str], text: str, origin: str) -> None:
        """Set one key. List members go by index; the next free index adds one."""
        node: Any = self.data
        path: Path = ()
        for position, key in enumerate(keys):
            last = position == len(keys) - 1
            step: str | int = key
            if isinstance(node, list):
                if not (key.isascii() and key.isdigit() and int(key) <= len(node)):
                    raise ConfigError(f"{origin}: {quoted(key)} is no index of {_dotted(path)} (0 to {len(node)})")
                step = int(key)
                if step == len(node):
                    node.append({})
            elif not isinstance(node, dict):
                raise ConfigError(f"{origin}: {_dotted(path)} is a value, not a table")
            path = path + (step,)
            if last:
                node[step] = _override_value(text, type_at(self._roots, path))
            elif isinstance(node, dict) and key not in node:
                node[key] = [] if is_list(type_at(self._roots, path)) else {}
            if not last:
                node = node[step]
            self._origins[path] = origin

    def convert(self, raw: Any, kind: type[msgspec.Struct], path: Path) -> Any:
        """``raw`` as the struct ``kind``, unknown keys and wrong values told with their place."""
        self._check_struct(self.table(raw, path), kind, path)
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at `$")
            inner = _parse_path(where.rstrip("`"))
            place = path + inner
            if "[...]" in where:
                place += wrong_member(_value_at(raw, inner), type_at(self._roots, place))
            missing = re.search(r"missing required field `(\w+)`", message)
            if missing is not None:
                raise self.error(place, f"needs the key {quoted(missing[1])}") from None
            if message.startswith("Invalid enum value"):
                allowed = ", ".join(quoted(str(value)) for value in literals(type_at(self._roots, place)))
                message = f"expected one of {allowed}, got{message.removeprefix('Invalid enum value')}"
            message = message.replace("`", "").replace(" | null", "").replace("object", "table")
            if place[-1] in ("message_rate", "byte_rate"):
                message = message.replace("array of length 2", "array").replace("array", "[amount, seconds]")
            raise self.error(place, message[0].lower() + message[1:]) from None

    def _check_struct(self, table: dict[str, Any], kind: type[msgspec.Struct], path: Path) -> None:
        fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
        self.check_keys(table, set(fields), path)
        for key, value in table.items():
            inner = struct_in(fields[key])
            if inner is None:
                continue
            if isinstance(value, dict):
                if is_list(fields[key]):
                    raise self.error(path + (key,), f"expected tables [[{_dotted(path + (key,))}]]")
                self._check_struct(value, inner, path + (key,))
            elif isinstance(value, list):
                for index, member in enumerate(value):
                    if isinstance(member, dict):
                        self._check_struct(member, inner, path + (key, index))

    def check_keys(self, table: Mapping[str, Any], known: Collection[str], path: Path) -> None:
        """Refuse keys that are not ``known``, with the nearest of those."""
        for key in table:
            if key not in known:
                raise self.error(path + (key,), f"unknown key{nearest(key, known)}")

    def check_finite(self, value: Any, path: Path = ()) -> None:
        """Refuse inf and nan, wherever they stand in ``value``."""
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(path, f"expected a finite number, got {value}")
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, member in members:
            self.check_finite(member, path + (key,))

    def table(self, raw: Any, path: Path) -> dict[str, Any]:
        """``raw``, which must be a table."""
        if not isinstance(raw, dict):
            raise self.error(path, f"expected a table, got {type(raw).__name__}")
        return raw

    def refuse(self, faults: Iterable[Fault], path: Path = ()) -> None:
        """Raise the first of them, if any. ``path``: what their places are in."""
        for where, what in faults:
            raise self.error(path + where, what)

    def error(self, path: Path, what: str) -> ConfigError:
        """Name the place of ``path``, or of the nearest thing around it that was written somewhere."""
        for length in range(len(path), 0, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return ConfigError(f"{origin}: {_dotted(path)}: {what}")
            line = self._lines.get(path[:length])
            if line is not None:
                return ConfigError(f"{self._file}:{line}: {_dotted(path)}: {what}")
        return ConfigError(f"{self._file or 'configuration'}: {_dotted(path)}: {what}")


def _override_value(text: str, kind: Any) -> Any:
    """``text`` as a TOML value, as a string where it is none or where a string is what the key wants."""
    try:
        value = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if list(value) != ["value"]:
        return text
    if not isinstance(value["value"], str) and str in union_members(kind):
        return text
    return value["value"]


def _parse_path(where: str) -> Path:
    """msgspec's ``.users[0].name``; what it cannot name (``[...]``, a key of a dict) ends it."""
    path: Path = ()
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", where):
        if index == "...":
            break
        path = path + ((name,) if name else (int(index),))
    return path


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def nearest(key: str, known: Collection[str]) -> str:
    """What was probably meant, as the end of a message; empty where nothing is near."""
    found = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {quoted(found[0])}?" if found else ""


def _dotted(path: Path) -> str:
    return ".".join(
        str(step) if isinstance(step, int) or re.fullmatch(r"[\w-]+", step, re.ASCII) else quoted(step) for step in path
    )


def quoted(text: str) -> str:
    """In double quotes, control characters escaped, so that an error stays one line."""
    return '"' + _one_line(text).replace('"', '\\"') + '"'


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
