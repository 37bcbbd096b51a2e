"""The configuration as one document: file, environment and command line combined, with the origin of each key."""

import errno
import math
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from taipan.broker.loop.regular_file import MAX_CONFIGURATION, MIB, read_regular
from taipan.broker.observability.log_text import one_line

from .setting_types import is_list, table_lists, type_at, union_members
from .toml_lines import KeyPath, key_lines
from .validation import Fault, Validator, ValueRules, quoted, shown, unknown_keys

MAX_TOLD: Final = 20
"""Maximum number of errors that are reported."""
_BEHIND_THE_FILE: Final = 1 << 62
"""Errors of other sources are reported after those of the file."""


class ConfigError(Exception):
    """The configuration is invalid. ``lines``: place, key and problem, one line for each error.

    ``faults``: each error by the path of its key, if the keys themselves were checked."""

    def __init__(self, *lines: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.faults = tuple(faults)


Source = Literal["default", "file", "environment", "command line"]


class Origin(NamedTuple):
    """Where a value was written: ``place`` is the line, the variable or the argument, empty for a default."""

    source: Source
    place: str


DEFAULT: Final = Origin("default", "")


class Origins:
    """Where each key of a configuration comes from."""

    def __init__(self, file: str = "", lines: Mapping[KeyPath, int] | None = None) -> None:
        self._file = file
        self._lines = lines or {}
        self._set: dict[KeyPath, Origin] = {}

    def add(self, path: KeyPath, origin: Origin) -> None:
        """Add the origin of a key from environment or command line."""
        self._set[path] = origin

    def of(self, path: KeyPath) -> Origin:
        """Return the origin of a key. A value inside a list or table that was written as a whole has the origin of that
        list or table."""
        for length in range(len(path), 0, -1):
            origin = self._set.get(path[:length])
            if origin is not None:
                return origin
            if length == len(path) and path in self._lines:
                return Origin("file", f"{self._file}:{self._lines[path]}")
        return DEFAULT


class ConfigDocument:
    """The combined data, and the origin of each key."""

    def __init__(self, roots: Mapping[str, object], rules: ValueRules) -> None:
        """``roots``: the types of the top-level keys. ``rules``: requirements of values beyond their types."""
        self.data: dict[str, object] = {}
        self._roots = roots
        self._validator = Validator(rules=rules)
        self._file = ""
        self._lines: dict[KeyPath, int] = {}
        self._origins: dict[KeyPath, str] = {}  # for the keys of environment and command line
        self.origins = Origins()
        self._wrong: dict[KeyPath, tuple[int, str]] = {}  # line of the file, and the error
        self._faults_found: dict[KeyPath, Fault] = {}

    def read_file(self, path: str, again: bool = False) -> None:
        """Read a TOML file as the data; ``-``: the input. ``again``: for a running node, which does not wait for a
        writer. Raises ConfigError."""
        try:
            data = read_regular(path, MAX_CONFIGURATION) if again else _read(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        self.read_bytes(path, data)

    def read_bytes(self, path: str, data: bytes) -> None:
        """Do the same as ``read_file`` with these contents of the file. Raises ConfigError."""
        self._file = path
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
        if text.startswith("\ufeff"):
            raise ConfigError(f"{path}:1: begins with a byte order mark (BOM); save it as UTF-8 without one")
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message = str(error).replace("Invalid value", "Invalid value; text requires quotes")
            place = re.search(r" \(at line (\d+), column (\d+)\)$", message)
            if place is None:
                raise ConfigError(f"{path}:{text.count(chr(10)) + 1}: {one_line(message)}") from None
            raise ConfigError(f"{path}:{place[1]}: {one_line(message[: place.start()])}") from None
        except RecursionError:
            raise ConfigError(f"{path}: nested too deeply") from None
        self._lines = key_lines(text)
        self.origins = Origins(path, self._lines)

    def use(self, roots: Mapping[str, object], rules: ValueRules) -> None:
        """Use other types and rules than those given at first."""
        self._roots = roots
        self._validator = Validator(rules=rules)

    def override(self, keys: list[str], text: str, origin: str, source: Origin) -> None:
        """Set one key. List members are addressed by index; the next free index adds one. ``origin``: ``source`` in the
        words of error messages."""
        node: Any = self.data
        path: KeyPath = ()
        for position, key in enumerate(keys):
            last = position == len(keys) - 1
            step: str | int = key
            if isinstance(node, list):
                if not (key.isascii() and key.isdigit() and int(key) <= len(node)):
                    raise ConfigError(f"{origin}: {quoted(key)} is not an index of {_dotted(path)} (0 to {len(node)})")
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
        self.origins.add(path, source)

    def convert(self, raw: object, kind: type[msgspec.Struct], path: KeyPath) -> Any:
        """Return ``raw`` as the struct ``kind``, ``None`` if it is invalid. Errors are reported."""
        self.refuse(self._faults(raw, kind, path))
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError:
            return None

    def _faults(self, raw: object, kind: type[msgspec.Struct], path: KeyPath) -> Iterator[Fault]:
        if not isinstance(raw, dict):
            yield Fault(path, f"expected a table, got {shown(raw)}")
            return
        for key in table_lists(kind) & raw.keys():
            if isinstance(raw[key], dict):
                yield Fault(path + (key,), f"expected tables [[{_dotted(path + (key,))}]]")
                raw = {name: value for name, value in raw.items() if name != key}
        yield from self._validator.faults(raw, kind, path)

    def check_keys(self, table: Mapping[str, object], known: Collection[str], path: KeyPath) -> None:
        """Report keys that are not ``known``, with the most similar known key."""
        self.refuse(unknown_keys(table, known, path))

    def check_finite(self, value: object, path: KeyPath = ()) -> None:
        """Report inf and nan anywhere in ``value``."""
        if isinstance(value, float) and not math.isfinite(value):
            self.report(path, f"expected a finite number, got {value}")
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, member in members:
            self.check_finite(member, path + (key,))

    def refuse(self, found: Iterable[Fault], path: KeyPath = ()) -> None:
        """Report each fault. ``path``: the prefix of their places."""
        for fault in found:
            self.report(path + fault.place, fault.what)

    def report(self, path: KeyPath, what: str) -> None:
        """Report an error at ``path``. Only the first error at a place is kept."""
        self._wrong.setdefault(path, self._told(path, what))
        self._faults_found.setdefault(path, Fault(path, what))

    def finish(self) -> None:
        """Raise ConfigError with all reported errors."""
        if self._wrong:
            lines = [line for _, line in sorted(self._wrong.values(), key=lambda each: each[0])]
            more = [f"and {len(lines) - MAX_TOLD} more"] if len(lines) > MAX_TOLD else []
            raise ConfigError(*lines[:MAX_TOLD], *more, faults=tuple(self._faults_found.values()))

    def _told(self, path: KeyPath, what: str) -> tuple[int, str]:
        """Return the error with the place of ``path``, or of the closest enclosing table that was written."""
        for length in range(len(path), 0, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return _BEHIND_THE_FILE, f"{origin}: {_dotted(path)}: {what}"
            line = self._lines.get(path[:length])
            if line is not None:
                return line, f"{self._file}:{line}: {_dotted(path)}: {what}"
        return _BEHIND_THE_FILE, f"{self._file or 'configuration'}: {_dotted(path)}: {what}"


def _read(path: str) -> bytes:
    """Read the file. At a start it may also be a pipe. Raises OSError."""
    if path == "-":
        data = sys.stdin.buffer.read(MAX_CONFIGURATION + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIGURATION + 1)
    if len(data) > MAX_CONFIGURATION:
        raise OSError(errno.EFBIG, f"larger than {MAX_CONFIGURATION // MIB} MiB")
    return data


def _override_value(text: str, kind: object) -> Any:
    """Return ``text`` as a TOML value. It is a string if it is not valid TOML, or if the key requires a string and the
    value has another type."""
    try:
        value = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if list(value) != ["value"]:
        return text
    wanted = union_members(kind)
    if str in wanted and type(value["value"]) not in wanted:
        return text
    return value["value"]


def _dotted(path: KeyPath) -> str:
    return ".".join(
        str(step) if isinstance(step, int) or re.fullmatch(r"[\w-]+", step, re.ASCII) else quoted(step) for step in path
    )
