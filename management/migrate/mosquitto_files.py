"""Mosquitto's text files: its configuration with included files, password files and ACL files."""

import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from taipan.broker.access.acl import TopicPattern
from taipan.broker.access.foreign_hashes import Pbkdf2Hash, Sha512Hash, new_hash

from .named_files import read_named
from .report import MigrationReport

_MAX_NAME: Final = 65_535


class Directive(msgspec.Struct, frozen=True):
    """One line of a configuration. ``place``: ``file:line``."""

    key: str
    value: str
    place: str


class AclLine(msgspec.Struct, frozen=True):
    """A line of an ACL file. ``subject``: ``user`` with a name, ``anonymous``, or ``pattern`` for all clients."""

    place: str
    subject: Literal["user", "anonymous", "pattern"]
    name: str
    access: Literal["read", "write", "readwrite", "deny"]
    topic: str


def read_lines(path: Path, report: MigrationReport, what: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of each line. A file that cannot be read is reported."""
    try:
        data = read_named(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        report.wrong(str(path), what, getattr(error, "strerror", None) or str(error))
        return
    for number, line in enumerate(data.removeprefix(BOM_UTF8).split(b"\n"), 1):
        place = f"{path}:{number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            report.wrong(place, what, "not UTF-8")
            continue
        yield place, text.rstrip("\r")


def directives(path: Path, report: MigrationReport) -> list[Directive]:
    """Yield the directives of a configuration, including those of included files at their position. Included files
    cannot include others."""
    found: list[Directive] = []
    for line in _directives(path, report):
        if line.key != "include_dir":
            found.append(line)
            continue
        directory = file_of(line.value, path.parent)
        try:
            names = sorted((each for each in map(os.fsencode, os.listdir(directory)) if _is_included(each)), key=_order)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = getattr(error, "strerror", None) or str(error)
            report.wrong(line.place, f"include_dir {line.value}", why)
            continue
        report.carried(line.place, f"include_dir {line.value}", f"{len(names)} files")
        for name in names:
            for each in _directives(directory / os.fsdecode(name), report):
                if each.key == "include_dir":
                    why = "Mosquitto also ignores it in an included file"
                    report.left_out(each.place, f"include_dir {each.value}", why)
                else:
                    found.append(each)
    return found


def _directives(path: Path, report: MigrationReport) -> Iterator[Directive]:
    for place, line in read_lines(path, report, "configuration"):
        text = line.strip(" \t")
        if text and not text.startswith("#"):
            key, _, value = text.partition(" ")
            yield Directive(key, value.strip(" \t"), place)


def _is_included(name: bytes) -> bool:
    return name.endswith(b".conf") and name != b".conf"


def _order(name: bytes) -> list[tuple[bytes, int]]:
    """Return Mosquitto's sort key: alphabetical, and for the same letter upper case first."""
    return [(bytes([byte]).upper(), byte) for byte in name]


def file_of(value: str, beside: Path) -> Path:
    """Return the file that a configuration names. A relative path is resolved against the current directory, as in
    Mosquitto, and then against the configuration's directory."""
    path = Path(value)
    if path.is_absolute() or os.path.exists(path):  # Path.exists raises for a name that is too long
        return path.absolute()
    return (beside / path).absolute()


def password_file(path: Path, report: MigrationReport) -> dict[str, tuple[str, str]]:
    """Return place and hash of each user. An invalid line is reported and skipped."""
    users: dict[str, tuple[str, str]] = {}
    for place, line in read_lines(path, report, "password file"):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, colon, written = text.partition(":")
        if not colon or not name or len(name.encode()) > _MAX_NAME:
            # In a line without a colon, only the first word: a password may follow it.
            shown = name if colon else name.split()[0]
            report.left_out(place, f"user {shown}", "the line is not name:hash, and Mosquitto ignores it as well")
            continue
        try:
            found = new_hash(written)
            if not isinstance(found, Sha512Hash | Pbkdf2Hash):
                raise ValueError("expected Mosquitto's $6$ or $7$")
        except ValueError as error:
            why = "a plain password, not its hash" if not written.startswith("$") else str(error)
            report.left_out(place, f"user {name}", f"{why}; give it a password: taipan-ctl users add")
            continue
        if name in users:
            report.changed(place, f"user {name}", f"it already exists, at {users[name][0]}; the last one applies")
        users[name] = place, str(found)
    return users


def acl_file(path: Path, report: MigrationReport) -> list[AclLine]:
    """Return the rules of an ACL file in their order."""
    rules: list[AclLine] = []
    user: str | None = None
    for place, line in read_lines(path, report, "ACL file"):
        text = line.strip(" \t")
        if not text or text.startswith("#"):
            continue
        key, _, rest = text.partition(" ")
        rest = rest.strip(" \t")
        if key == "user":
            user = rest
            if not rest:
                report.wrong(place, text, "expected a username")
        elif key in ("topic", "pattern"):
            rule = _acl_line(place, key, rest, user, report)
            if rule is not None:
                rules.append(rule)
        else:
            report.wrong(place, text, "expected user, topic or pattern")
    return rules


def _acl_line(place: str, key: str, rest: str, user: str | None, report: MigrationReport) -> AclLine | None:
    access: Literal["read", "write", "readwrite", "deny"] = "readwrite"
    word, _, topic = rest.partition(" ")
    if topic and word in ("read", "write", "readwrite", "deny"):
        access = word  # type: ignore[assignment]
        topic = topic.lstrip(" \t")
    else:
        topic = rest
    try:
        TopicPattern(topic)
        if topic.startswith("eq "):
            raise ValueError("it begins with eq and a space, which has a meaning in rules here")
    except ValueError as error:
        report.wrong(place, f"{key} {rest}", str(error))
        return None
    if key == "pattern":
        return AclLine(place, "pattern", "", access, topic)
    if "%c" in topic or "%u" in topic:
        report.left_out(
            place, f"{key} {rest}", "%c and %u are literal in a topic rule, which rules here cannot express"
        )
        if access != "deny":
            return None
        report.wrong(place, f"{key} {rest}", "it denies, and omitting it would allow: write the topic differently")
        return None
    if user is None:
        return AclLine(place, "anonymous", "", access, topic)
    return AclLine(place, "user", user, access, topic)


def without_mount_point(topic: str, mount: str) -> str | None:
    """Return the topic filter below a mount point that matches the same topics as ``topic``; None if it matches none.

    Raises ValueError if a placeholder makes this impossible.
    """
    if not mount:
        return topic
    *whole, begun = mount.split("/")
    levels = topic.split("/")
    for index, level in enumerate([*whole, begun] if begun else whole):
        if index == len(levels):
            return None
        wild = levels[index] in ("+", "#")
        if wild and not index and mount.startswith("$"):
            return None
        if levels[index] == "#":
            return topic[-1]
        if not wild and "%" in levels[index]:
            raise ValueError(f"the topics that it matches below the mount point {mount} cannot be determined")
        if index == len(whole):
            if not wild and not levels[index].startswith(level):
                return None
            levels[index] = "+" if wild else levels[index].removeprefix(level)
        elif not wild and levels[index] != level:
            return None
    return "/".join(levels[len(whole) :]) or None
