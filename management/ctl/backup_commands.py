"""The command backup: the parts of create, verify and restore that ``taipan-ctl`` executes itself."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from taipan.broker.loop.regular_file import check_regular
from taipan.broker.persistence.log.backup_file import BackupDamaged, BackupSummary, LogRow, read_backup
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.persistence.log.files import replace_file
from taipan.broker.persistence.log.sqlite_log import SqliteLog

from ..data_dir import DataDir, DataDirError
from ..operations.backup.import_plan import PLAN_FILE
from . import command
from .command import find
from .index import COMMANDS
from .main import DONE, CommandLineError, Keep, Refused, shown

_FAILED = 102
_ROWS_BYTES = 4_194_304
_NAMES = ("taipan.db", "taipan.db-wal", "taipan.check", PLAN_FILE)

Ask = Callable[[Mapping[str, str], Mapping[str, object], Keep], int]


def run(options: Mapping[str, str], words: Sequence[str], as_json: bool, ask: Ask) -> int:
    """Run the command and return the exit status. Raises Refused, CommandLineError, and the errors of ``ask``."""
    try:
        found, values = find(COMMANDS, words)
    except command.UsageError as error:
        raise CommandLineError("; ".join(" ".join(line.split()) for line in str(error).splitlines())) from None
    file = Path(values["File"]).absolute()
    if found.words[1] == "verify":
        return _told(verify(file), as_json, "is sound")
    if found.words[1] == "restore":
        directory = values.get("Dir") or options.get("--data-dir")
        if not directory:
            raise CommandLineError("command backup restore: --data-dir DIR is missing, the directory to restore into")
        return _told(
            restore(file, directory, "--force" in values), as_json, f"restored into {shown(os.path.abspath(directory))}"
        )
    return create(file, lambda keep: ask(options, {"args": list(words), "json": as_json}, keep))


def _told(summary: BackupSummary, as_json: bool, what: str) -> int:
    head = summary.head
    if as_json:
        facts = {"node": head.node, "version": head.version, "created_at": head.created_at}
        print(json.dumps({**facts, "size": summary.size, "batches": summary.batches}))
    else:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.created_at))
        print(f"Backup of {shown(head.node)} {shown(head.version)} of {when}, {summary.batches} batches: {what}")
    return DONE


def create(file: Path, ask: Callable[[Keep], int]) -> int:
    """Create a backup file. It replaces an older file of the same name only when it is complete and has been
    verified."""
    new = ""
    try:
        number, new = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with open(number, "wb") as opened:

            def keep(data: bytes) -> None:
                try:
                    opened.write(data)
                except OSError as error:
                    raise _not_written(file, error) from None

            status = ask(keep)
            opened.flush()
            os.fsync(opened.fileno())
        if status == DONE:
            try:
                verify(Path(new))
            except Refused as error:
                raise Refused(_FAILED, f"file {shown(str(file))}: is not written: {_problem(str(error))}") from None
            replace_file(Path(new), file)
        return status
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise _not_written(file, error) from None
    finally:
        if new:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)


def _problem(text: str) -> str:
    """Return the problem in an error text, without its noun and name."""
    return text.partition(": ")[2] or text


def _not_written(file: Path, error: OSError) -> Refused:
    return Refused(_FAILED, f"file {shown(str(file))}: is not written: {error.strerror or error}")


def verify(file: Path) -> BackupSummary:
    """Verify a backup file. Raises Refused if it is damaged or cannot be read."""
    try:
        check_regular(file, sys.maxsize)
        summary = read_backup(file, lambda row: None, len(SqliteLog.steps))
    except OSError as error:
        raise Refused(_FAILED, f"file {shown(str(file))}: {error.strerror or error}") from None
    except BackupDamaged as error:
        raise Refused(
            _FAILED, f"file {shown(str(file))}: {shown(str(error).removeprefix(file.name).strip())}"
        ) from None
    if summary.damaged:
        raise Refused(
            _FAILED, f"file {shown(str(file))}: batch {summary.damaged[0]} was damaged on the node's disk already"
        )
    return summary


def restore(file: Path, directory: str, force: bool) -> BackupSummary:
    """Restore all data, or leave the existing data unchanged. Raises Refused."""
    verify(file)
    try:
        held = DataDir(directory)
    except DataDirError as error:
        raise Refused(_FAILED, str(error)) from None
    try:
        return _restore(file, held.path, force)
    except (BackupDamaged, StoreError) as error:
        raise Refused(_FAILED, f"file {shown(str(file))}: nothing is restored: {shown(str(error))}") from None
    except OSError as error:
        raise Refused(_FAILED, f"directory {directory}: nothing is restored: {error.strerror or error}") from None
    finally:
        held.close()


def _restore(file: Path, directory: Path, force: bool) -> BackupSummary:
    there = [name for name in _NAMES if (directory / name).exists()]
    if there and not force:
        raise Refused(
            _FAILED, f"directory {directory}: has a store ({', '.join(there)}); --force puts the backup in its place"
        )
    new, check = directory / "taipan.db.restoring", directory / "taipan.check.restoring"
    try:
        _remove_parts(new, check)
        summary = _write_log(file, new)
        if summary.check:
            number = os.open(check, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(number, "wb") as opened:
                opened.write(summary.check)
                opened.flush()
                os.fsync(opened.fileno())
        # The check file first: if the restore stops here, the next start notices that it does not match the store.
        if summary.check:
            replace_file(check, directory / "taipan.check")
        else:
            (directory / "taipan.check").unlink(missing_ok=True)
        (directory / "taipan.db-wal").unlink(missing_ok=True)
        (directory / PLAN_FILE).unlink(missing_ok=True)  # of the previous store
        replace_file(new, directory / "taipan.db")
        return summary
    finally:
        _remove_parts(new, check)


def _remove_parts(new: Path, check: Path) -> None:
    for path in (new, new.with_name(new.name + "-wal"), check):
        path.unlink(missing_ok=True)


def _write_log(file: Path, new: Path) -> BackupSummary:
    log = SqliteLog(new)
    log.open()
    rows: list[LogRow] = []
    size = 0

    def take(row: LogRow) -> None:
        nonlocal size
        rows.append(row)
        size += len(row[3])
        if size >= _ROWS_BYTES:
            log.insert_rows(rows)
            rows.clear()
            size = 0

    try:
        summary = read_backup(file, take, len(SqliteLog.steps))
        log.insert_rows(rows)
        log.drop_before(summary.first)
    finally:
        log.checkpoint_and_close()
    return summary
