"""Configuration file: settings that a reload applies are changed in the file of the node, and are in effect at once.

Order of a change: the new contents are read as a start would read them, written to a new file next to it and flushed;
then the settings take effect; then the file is replaced. An answer means that both have happened. If the process ends
before that, the file is either the old one or the new one."""

import asyncio
import hashlib
import importlib.util
import os
import secrets
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from taipan.broker.loop.regular_file import MIB, read_regular
from taipan.broker.observability.masking import MASK, Masked, restore

from ..configuration.config import SETTING_TYPES, Loaded
from ..configuration.config_document import ConfigError
from ..configuration.setting_types import struct_in, type_at
from ..configuration.toml_edit import EditError, KeyChange, MaskRules, edit, masked_diff
from ..configuration.toml_lines import KeyPath
from .configuration import Configuration, SettingRecord, shown_at, walk
from .node_calls import NodeCalls
from .refusal import UNKNOWN, WRONG, Refusal, missing, wrong

MAX_FILE: Final = MIB
"""Maximum size of a file that is changed here, in bytes."""
MAX_CHANGES: Final = 100
_OVERRIDES: Final = ("environment", "command line")
_VERSION_KEY: Final = secrets.token_bytes(32)
"""Viewers see the version: without a key, they could try values of the secrets in the file against it."""


class FileOfNode(NamedTuple):
    """How a node reads and applies its configuration. ``read``: the settings, if the file had these contents.
    ``apply``: make them the effective ones, or raise and change nothing. ``reload_others``: let the other processes
    that use the file read it again."""

    path: str
    read: Callable[[bytes], Loaded]
    check: Callable[[Loaded], None]
    apply: Callable[[Loaded], None]
    reload_others: Callable[[], None]


class ConfigurationFileRecord(msgspec.Struct):
    """The file of a node. ``version``: changes with each byte of it. ``editable``: whether settings can be changed;
    ``reason``: why not, or empty."""

    node: str
    file: str
    version: str
    editable: bool
    reason: str


class SettingChange(msgspec.Struct):
    """``value``: null: the key is deleted from the file, and its default applies. ``******`` stands for a secret that
    stays."""

    key: str
    value: Any = None


class ChangedSetting(msgspec.Struct):
    """A setting that has another value after the change; secrets are masked."""

    key: str
    before: Any
    after: Any


class ConfigurationChange(msgspec.Struct):
    """``diff``: unified, without secrets and without settings that are commented out. ``changed``: all settings that
    take effect, including what others have changed in the file since it was read. ``version``: the version of the file,
    before a dry run or after a change."""

    node: str
    file: str
    version: str
    diff: str
    changed: list[ChangedSetting]


class ConfigurationFile:
    """The file of this node, and calls to change those of other nodes."""

    def __init__(self, configuration: Configuration, calls: NodeCalls) -> None:
        self._configuration = configuration
        self._calls = calls
        self._file: FileOfNode | None = None
        self._turn = asyncio.Lock()
        calls.serve(self.file_here, self.change_here)

    def use(self, file: FileOfNode) -> None:
        """Use this file from now on. A node that has none, such as an embedded one, has settings that stay."""
        self._file = file

    async def record(self, node: str) -> ConfigurationFileRecord:
        """Return the file of a node. Raises Refusal."""
        return await self._calls.on(node, self.file_here)

    async def change(self, node: str, changes: list[SettingChange], version: str, dry_run: bool) -> ConfigurationChange:
        """Change settings of a node. ``version``: the file must still have it; may be empty for a dry run, which
        changes nothing. Raises Refusal."""
        if not changes:
            raise missing("changes")
        if len(changes) > MAX_CHANGES:
            raise wrong("changes", f"expected at most {MAX_CHANGES}, got {len(changes)}")
        if not version and not dry_run:
            raise missing("version")
        return await self._calls.on(node, self.change_here, changes, version, dry_run)

    def file_here(self) -> ConfigurationFileRecord:
        """Return the file of this node."""
        file = self._file
        if file is None:
            return ConfigurationFileRecord(self._calls.name, "", "", False, _NO_FILE)
        try:
            version = _version(read_regular(file.path, MAX_FILE))
            _check_writable(file.path)
        except OSError as error:
            return ConfigurationFileRecord(self._calls.name, file.path, "", False, _why(file.path, error))
        reason = _LACKS_PACKAGE if importlib.util.find_spec("tomlkit") is None else ""
        return ConfigurationFileRecord(self._calls.name, file.path, version, not reason, reason)

    async def change_here(self, changes: list[SettingChange], version: str, dry_run: bool) -> ConfigurationChange:
        """Change settings of this node, as ``change`` does."""
        file = self._file
        found = self.file_here()
        if file is None or not found.editable:
            raise Refusal(WRONG, found.reason)
        async with self._turn:
            return await self._change(file, changes, version, dry_run)

    async def _change(
        self, file: FileOfNode, changes: list[SettingChange], version: str, dry_run: bool
    ) -> ConfigurationChange:
        try:
            data = read_regular(file.path, MAX_FILE)
        except OSError as error:
            raise Refusal(WRONG, _why(file.path, error)) from None
        if version and version != _version(data):
            raise Refusal(WRONG, _HAS_CHANGED.format(file.path))
        effective = self._configuration.loaded
        wanted = self._wanted(effective, data, changes)
        edited = await asyncio.to_thread(_edited, data, wanted)
        try:
            loaded = file.read(edited)
            file.check(loaded)
        except (ConfigError, ValueError) as error:
            raise Refusal(WRONG, f"the node would refuse this file: {error}") from None
        changed = self._changed(effective, loaded)
        access = loaded.settings.broker.access
        rules = MaskRules(lambda path, value: shown_at(access, path, value), _is_table)
        diff = await asyncio.to_thread(
            masked_diff, file.path, data.decode(), edited.decode(), rules, [each.path for each in wanted]
        )
        result = ConfigurationChange(self._calls.name, file.path, _version(edited), diff, changed)
        if dry_run:
            result.version = _version(data)
            return result
        try:
            written = await asyncio.to_thread(_write_beside, file.path, edited)
        except OSError as error:
            raise Refusal(WRONG, _why(file.path, error)) from None
        try:
            await self._replace(file, written, data, loaded)
        finally:
            written.unlink(missing_ok=True)
        return result

    async def _replace(self, file: FileOfNode, written: Path, data: bytes, loaded: Loaded) -> None:
        """Make the settings effective, then replace the file. If one of them fails, neither has happened."""
        effective = self._configuration.loaded
        try:
            file.apply(loaded)
        except (ConfigError, ValueError) as error:
            raise Refusal(WRONG, f"the node would refuse this file: {error}") from None
        try:
            await asyncio.to_thread(_replace, file.path, written, data)
        except (OSError, Refusal) as error:
            file.apply(effective)
            if isinstance(error, Refusal):
                raise
            raise Refusal(WRONG, _why(file.path, error)) from None
        if self._configuration.loaded is not loaded:  # SIGHUP has read the previous file in the meantime
            file.apply(loaded)
        file.reload_others()

    def _wanted(self, effective: Loaded, data: bytes, changes: Sequence[SettingChange]) -> list[KeyChange]:
        """Return the changes by path, with the secrets that stay. Raises Refusal."""
        records = {record.key: (path, record) for path, record in walk(effective)}
        try:
            stored = tomllib.loads(data.decode())
        except (ValueError, RecursionError) as error:
            raise Refusal(WRONG, f"the file cannot be read: {error}") from None
        found: dict[KeyPath, KeyChange] = {}
        for each in changes:
            if each.key not in records:
                raise Refusal(UNKNOWN, f"no setting {each.key}")
            path, record = records[each.key]
            _check_changeable(record)
            if path in found:
                raise wrong(each.key, "has two values in this request")
            found[path] = KeyChange(path, _with_secrets(record, path, each.value, stored))
        return list(found.values())

    @staticmethod
    def _changed(effective: Loaded, loaded: Loaded) -> list[ChangedSetting]:
        """Return the settings that are different. Raises Refusal if one of them requires a restart."""
        before = {record.key: record for _, record in walk(effective)}
        after = {record.key: record for _, record in walk(loaded)}
        changed = []
        for key in {**before, **after}:
            old, new = before.get(key), after.get(key)
            old_value, new_value = None if old is None else old.value, None if new is None else new.value
            if old_value != new_value:
                if any(each is not None and not each.reloadable for each in (old, new)):
                    raise Refusal(WRONG, f"{key} has been changed in the file, which requires a restart")
                changed.append(ChangedSetting(key, old_value, new_value))
        return changed


_NO_FILE: Final = "this node was started without a file (--config)"
_LACKS_PACKAGE: Final = "requires the package tomlkit: pip install taipan-mqtt[settings]"
_HAS_CHANGED: Final = "{} has changed in the meantime: look at the difference again"


def _check_changeable(record: SettingRecord) -> None:
    if not record.reloadable:
        raise wrong(record.key, "requires a restart: change it in the file, then restart the node")
    if record.origin in _OVERRIDES:
        raise wrong(record.key, f"{record.place} takes precedence over the file: change it there")


def _with_secrets(record: SettingRecord, path: KeyPath, value: Any, stored: Any) -> Any:
    """Return the value with the secrets of the file in place of masks. Raises Refusal."""
    if MASK not in str(value):
        return value
    for step in path:
        if isinstance(stored, dict):
            stored = stored.get(step)
        elif isinstance(stored, list) and isinstance(step, int) and step < len(stored):
            stored = stored[step]
        else:
            stored = None
    if stored is not None and value == record.value:
        return stored
    key = str(path[-1])
    try:
        restored = restore({key: value}, {key: stored})[key]
    except Masked:
        restored = value
    if MASK in str(restored):
        raise wrong(record.key, f"{MASK} masks a secret: give the secret")
    return restored


def _is_table(path: KeyPath) -> bool:
    """Return whether there are settings below this key. Only the package of an access source knows its keys."""
    kind = type_at(SETTING_TYPES, path)
    return struct_in(kind) is not None or (kind is None and path[0] == "access" and len(path) == 2)


def _edited(data: bytes, changes: Sequence[KeyChange]) -> bytes:
    try:
        return edit(data.decode(), changes).encode()
    except (EditError, UnicodeError) as error:
        raise Refusal(WRONG, str(error)) from None


def _version(data: bytes) -> str:
    return hashlib.blake2b(data, key=_VERSION_KEY, digest_size=32).hexdigest()


def _why(path: str, error: OSError) -> str:
    return f"{path} cannot be changed: {error.strerror or error}"


def _check_writable(path: str) -> None:
    """Raises OSError. The directory counts, because the file is replaced by another one."""
    real = os.path.realpath(path)
    for each in (real, os.path.dirname(real)):
        if not os.access(each, os.W_OK):
            raise PermissionError(0, f"{each} is not writable for the node")


def _write_beside(path: str, data: bytes) -> Path:
    """Return a flushed file with these contents, and with rights and owner of ``path``. Raises OSError."""
    real = os.path.realpath(path)
    number, name = tempfile.mkstemp(prefix=f".{os.path.basename(real)}.", dir=os.path.dirname(real))
    written = Path(name)
    try:
        with open(number, "wb") as file:
            file.write(data)
            before, made = os.stat(real), os.fstat(number)
            if (before.st_uid, before.st_gid) != (made.st_uid, made.st_gid):
                os.fchown(number, before.st_uid, before.st_gid)
            os.fchmod(number, stat.S_IMODE(before.st_mode))
            file.flush()
            os.fsync(number)
        shutil.copystat(real, written)
        os.utime(written)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    return written


def _replace(path: str, written: Path, data: bytes) -> None:
    """Replace the file, which must still have the contents ``data``. Raises OSError or Refusal."""
    real = os.path.realpath(path)
    if read_regular(real, MAX_FILE) != data:
        raise Refusal(WRONG, _HAS_CHANGED.format(path))
    os.replace(written, real)
    directory = os.open(os.path.dirname(real), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
