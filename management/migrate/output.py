"""The output of a migration: a directory with the configuration and the data of a node, written completely or not at
all."""

import contextlib
import json
import os
import re
import shutil
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from taipan.broker.transport.tls import TlsError, build_context

from ..configuration.config import Settings, load
from ..configuration.config_document import ConfigError
from ..configuration.served_certificates import served_certificates
from ..operations.backup.import_file import Plan
from ..operations.backup.import_plan import PLAN_FILE, written_plan
from .report import CannotMigrate, MigrationReport

CONFIGURATION: Final = "taipan.toml"
DATA: Final = "data"
_WIDTH: Final = 118

Table = dict[str, object]
"""Keys and their values, as TOML; a table in it is written as ``[a.b]``."""


class SettingPlace(NamedTuple):
    """The line that a setting comes from: ``place`` as in the report, ``what`` is its name there."""

    place: str
    what: str


class Migration:
    """The result of a migration, as settings under the names of the configuration.

    ``plan``: objects that operators create by the API, such as users, resources and rules; the first start imports it.
    ``write_data``: writes a store into the given data directory.
    """

    def __init__(self, source: str, place: str = "") -> None:
        """``place``: the file or directory that is migrated."""
        self.source = source
        self.place = place or source
        self.report = MigrationReport()
        self.listeners: list[Table] = []
        self.zone: Table = {}
        self.zones: dict[str, Table] = {}  # further tables
        self.tables: dict[str, Table] = {}
        self.rules: list[Table] = []
        self.plan = Plan()
        self.write_data: Callable[[Path], None] | None = None
        self._sources: dict[tuple[int, str], SettingPlace] = {}

    def set(self, table: str, key: str, value: object, source: SettingPlace | None = None) -> None:
        self.put(self.tables.setdefault(table, {}), key, value, source)

    def put(self, table: Table, key: str, value: object, source: SettingPlace | None) -> None:
        """Set ``key`` and remember the line it comes from. ``table`` must stay a part of this migration."""
        table[key] = value
        if source is not None:
            self.note(table, source, key)

    def note(self, table: Table, source: SettingPlace, key: str = "") -> None:
        """Remember where ``key`` comes from; without a key, the table as a whole."""
        self._sources[id(table), key] = source

    def source_of(self, table: Table, key: str) -> SettingPlace | None:
        return self._sources.get((id(table), key))

    def data(self) -> dict[str, object]:
        """The configuration as tables; the inner tables are those of this migration."""
        data: dict[str, object] = dict(self.tables)
        if self.listeners:
            data["listeners"] = self.listeners
        zones = dict(self.zones)
        if self.zone:
            zones["external"] = self.zone
        if zones:
            data["zones"] = zones
        if self.rules:
            data["access"] = {**self.tables.get("access", {}), "rules": self.rules}
        return data


def check_target(target: Path) -> None:
    """Raises CannotMigrate if the target exists and is not empty."""
    try:
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise CannotMigrate(f"{target}: exists and is not a directory")
        if target.is_dir() and any(target.iterdir()):
            raise CannotMigrate(f"{target}: is not empty; nothing was overwritten")
    except OSError as error:
        raise CannotMigrate(f"{target}: {error.strerror}") from None


def write(migration: Migration, target: Path) -> None:
    """Write everything to a directory next to ``target``, and rename it when it is complete and the configuration is
    valid. Raises CannotMigrate, and leaves nothing then."""
    check_target(target)
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise CannotMigrate(f"{target}: {error.strerror}") from None
    try:
        data = made / DATA
        data.mkdir(mode=0o700)
        if migration.write_data is not None:
            migration.write_data(data)
        if migration.plan != Plan():
            _write_file(data / PLAN_FILE, b"".join(written_plan(os.urandom(16).hex(), migration.plan)))
        migration.set("node", "data_dir", str(target / DATA))
        _write_file(made / CONFIGURATION, as_toml(migration).encode())
        _check(load(str(made / CONFIGURATION), environ={}))
        _sync(made)
        if target.exists():
            shutil.copystat(target, made)
        os.rename(made, target)
        _sync(target.parent)
    except ConfigError as error:
        raise CannotMigrate("; ".join(line.replace(str(made), str(target)) for line in error.lines)) from None
    except UnicodeEncodeError:
        raise CannotMigrate(f"{target}: a path in the configuration is not UTF-8") from None
    except OSError as error:
        raise CannotMigrate(f"{target}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(made)


def _check(settings: Settings) -> None:
    """Check the certificates as taipan check does. Raises ConfigError."""
    wrong: list[str] = []
    for listener in settings.broker.listeners:
        if listener.tls is not None:
            try:
                build_context(listener.tls)
            except TlsError as error:
                wrong.append(f"listener {listener.name}: {error}")
    wrong += filter(None, (each.fault(time.time()) for each in served_certificates(settings)))
    if wrong:
        raise ConfigError(*wrong)


def _write_file(path: Path, data: bytes) -> None:
    """Write a file that only its user can read, because it contains secrets."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(opened)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# ------------------------------------------------------------------------- TOML


def as_toml(migration: Migration) -> str:
    """Return the configuration, with the settings without a counterpart as comments at the top."""
    lines = _comment(
        f"Created by taipan migrate from {migration.source}. Every key with its meaning: taipan --print-defaults."
    )
    comments = list(migration.report.comments())
    if comments:
        lines += ["#", *_comment("Changed, or left out because it has no counterpart:")]
        for comment in comments:
            lines += _comment(comment, "#   ")
    for name, table in migration.tables.items():
        lines += _table((name,), table)
    for listener in migration.listeners:
        lines += _table(("listeners",), listener, many=True)
    if migration.zone:
        lines += _table(("zones", "external"), migration.zone)
    for name, zone in migration.zones.items():
        lines += _table(("zones", name), zone)
    for rule in migration.rules:
        lines += _table(("access", "rules"), rule, many=True)
    return "\n".join(lines) + "\n"


def _comment(text: str, first: str = "# ") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent="#     " if first != "# " else "# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _table(path: tuple[str, ...], table: Mapping[str, object], many: bool = False) -> list[str]:
    name = ".".join(each if re.fullmatch(r"[\w-]+", each, re.ASCII) else _value(each) for each in path)
    lines = ["", f"[[{name}]]" if many else f"[{name}]"]
    for key, value in table.items():
        if not isinstance(value, dict) and not _is_tables(value):
            lines.append(f"{key} = {_value(value)}")
    for key, value in table.items():
        if isinstance(value, dict):
            lines += _table((*path, key), value)
        elif isinstance(value, list) and _is_tables(value):
            for member in value:
                lines += _table((*path, key), member, many=True)
    return lines


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(member, dict) for member in value)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are valid in TOML as well, except for DEL, which JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"no TOML for {type(value).__name__}")
