"""SqliteLog: numbered batches in one SQLite file. When ``append`` returns, the batch is on disk.

Uses SQLite's write-ahead log, ``synchronous=FULL`` and one connection in exclusive locking mode: there is no ``-shm``
file, and no other process can write. Each batch is one row with its own checksum, because SQLite does not notice a
flipped bit in a value. Only one thread may use the log at a time."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import apsw

from .backup_file import LogRow
from .check_file import CheckFile, Digests
from .errors import OF_THE_DISK, NewerSchema, StoreError, WriteTrouble, describe
from .files import replace_file, sync_directory
from .salvage import (
    PAGE,
    SalvageReport,
    beside,
    checksum,
    crc_of_data,
    damaged_name,
    own_part,
    put_in_place,
    rows_in_wal,
    sound_rows,
)

APPLICATION_ID: Final = 0x54616970  # "Taip"
CHECKPOINT_PAGES: Final = 1000
"""Size of the write-ahead log, in pages, that causes a checkpoint: 4 MiB, so that a batch waits only a few milliseconds
for it."""
SLICE_ROWS: Final = 16
SLICE_PAGES: Final = 256
SPARE_PAGES: Final = 1024
"""Number of free pages that the file keeps for new data, or a quarter of all pages if that is more."""
WAL_INTERVAL = 0.1
"""Seconds between two checks of the path of the write-ahead log while batches are written. Each check releases the GIL
and waits for it again, which takes long if the event loop is busy."""

_INCREMENTAL: Final = 2
_SPACE: Final = "SELECT page_count, freelist_count FROM pragma_page_count, pragma_freelist_count"


class _Damaged(Exception):
    """Internal: why the file cannot be used as it is."""


class SqliteLog:
    """A log of batches; ``open`` first, ``checkpoint_and_close`` last.

    After ``open`` and ``scan``, ``salvaged`` reports the damage, or is None. ``first`` and ``last`` are the numbers of
    the oldest and newest batch, 0 if there has never been one. The newest batch is never deleted, so that numbers only
    grow."""

    steps: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("CREATE TABLE log (seq INTEGER PRIMARY KEY, low INT NOT NULL, crc INT NOT NULL, data BLOB NOT NULL)",),
    )
    """The statements that lead from each version of the schema to the next, the first from an empty file. A step that
    changes the columns of ``log`` also requires a change of ``salvage``."""

    def __init__(self, path: Path, vfs: str | None = None, check: CheckFile | None = None) -> None:
        """``check``: the check file, to which stored batches are reported once the state at the start is settled."""
        self.path = path
        self.check = check
        self.salvaged: SalvageReport | None = None
        self.first = 0
        self.last = 0
        self._vfs = vfs
        self._db: apsw.Connection | None = None
        self._wal_pages = 0
        self._suspect = False
        # Device and inode of the open files; the second one is the write-ahead log. None: the files are not the
        # operating system's.
        self._place: tuple[int, int] | None = None
        self._wal_place: tuple[int, int] | None = None
        self._wal_verified = 0.0

    def open(self) -> None:
        """Open the file, or create it. A damaged file is moved away, and its intact batches are written to a new one.

        Raises NewerSchema, or StoreError if the file cannot be read or written. Each message is one line."""
        self.salvaged = None
        try:
            put_in_place(self.path)
            if not self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                sync_directory(self.path)
            try:
                self._take()
            except _Damaged as damage:
                self._abandon()
                self._salvage(str(damage))
            self._note_places()
        except StoreError:
            self._abandon()
            raise
        except OSError as error:
            self._abandon()
            raise StoreError(f"{self.path}: {describe(error)}") from None
        except apsw.Error as error:
            text = describe(error, self._errno())
            self._abandon()
            raise StoreError(f"{self.path}: {text}") from None

    def scan(self) -> Iterator[tuple[int, bytes]]:
        """Yield all batches in order. A damaged batch is left out and is listed in ``salvaged``."""
        for seq, low, crc, data in self._open_db().execute("SELECT seq, low, crc, data FROM log ORDER BY seq"):
            if isinstance(data, bytes) and checksum(seq, low, data) == crc:
                yield seq, data
                continue
            if self.salvaged is None:
                self.salvaged = SalvageReport("checksum of a batch")
            self.salvaged.missing.append((seq, seq))

    def append(self, seq: int, data: bytes, access: Digests | None = None) -> None:
        """Store a batch; it is durable when this returns. The same batch again replaces it.

        ``access``: the digests of the rows of access control after this batch, if it changes them. Raises WriteTrouble:
        the batch is not stored, or may not be durable; append it again."""
        self._verify_file()
        if time.monotonic() - self._wal_verified >= WAL_INTERVAL:
            self._verify_wal()
        if self.check is not None and access is not None:
            self.check.prepare(access)
        try:
            if self._suspect:
                self._reopen()
            low = self.first or seq
            crc = checksum(seq, low, data)
            self._open_db().execute("INSERT OR REPLACE INTO log VALUES (?, ?, ?, ?)", (seq, low, crc, data))
        except (apsw.Error, OSError) as error:
            raise self._trouble(error) from error
        self._wal_pages += len(data) // PAGE + 4
        if self.check is not None and access is not None:
            self.check.confirm(seq, access)
        self.first = low
        self.last = max(self.last, seq)

    def append_all(self, batches: list[tuple[int, bytes, Digests | None]]) -> None:
        """Store several batches, in order and with one flush, as ``append`` stores one: all of them, or none."""
        self._verify_file()
        if time.monotonic() - self._wal_verified >= WAL_INTERVAL:
            self._verify_wal()
        access = next((digests for _, _, digests in reversed(batches) if digests is not None), None)
        if self.check is not None and access is not None:
            self.check.prepare(access)
        low = self.first or batches[0][0]
        rows = [(seq, low, checksum(seq, low, data), data) for seq, data, _ in batches]
        try:
            if self._suspect:
                self._reopen()
            db = self._open_db()
            with db:
                db.executemany("INSERT OR REPLACE INTO log VALUES (?, ?, ?, ?)", rows)
        except (apsw.Error, OSError) as error:
            raise self._trouble(error) from error
        self._wal_pages += sum(len(data) // PAGE + 4 for _, data, _ in batches)
        last = batches[-1][0]
        if self.check is not None and access is not None:
            self.check.confirm(last, access)
        self.first = low
        self.last = max(self.last, last)

    def truncate(self, seq: int) -> None:
        """Delete all batches newer than ``seq``, which exists. Raises StoreError."""
        try:
            self._open_db().execute("DELETE FROM log WHERE seq > ?", (seq,))
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path}: {describe(error, self._errno())}") from error
        self.last = seq

    def verify_path(self) -> None:
        """Check that the paths still lead to the open files. Raises WriteTrouble if not: data written to them would
        be lost when the process ends."""
        self._verify_file()
        self._verify_wal()

    def _verify_file(self) -> None:
        if self._place is None:
            return
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise WriteTrouble(f"the file was deleted, renamed or unmounted: {describe(error)}") from None
        if (found.st_dev, found.st_ino) != self._place:
            raise WriteTrouble("the file was deleted, renamed or unmounted: another one is in its place")

    def _verify_wal(self) -> None:
        if self._wal_place is not None and self._db is not None:
            there = _place_of(beside(self.path, "-wal"))
            if there != self._wal_place:
                self._leave_wal(there is None)
        self._wal_verified = time.monotonic()

    def _leave_wal(self, gone: bool) -> None:
        """Handle a write-ahead log that the next start would not find: move its content into the file, and create a new
        one, unless something else has taken its path, which SQLite would read. Always raises WriteTrouble."""
        try:
            # Next to the path: SQLite continues with the file that it has open.
            total, done = self._open_db().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            if total != done:
                raise WriteTrouble(f"the write-ahead log is missing, and {total - done} pages exist only in it")
            if gone:
                self._abandon()
                self._connect()
                self._note_places()
        except (apsw.Error, OSError) as error:
            raise self._trouble(error) from error
        if gone:
            raise WriteTrouble("the write-ahead log was deleted or renamed: a new one is started")
        wal = beside(self.path, "-wal").name
        raise WriteTrouble(f"the write-ahead log was replaced: move {wal} away")

    def _note_places(self) -> None:
        if self._vfs is None:
            opened = os.stat(self.path)
            self._place = opened.st_dev, opened.st_ino
            self._wal_place = _place_of(beside(self.path, "-wal"))

    def tidy(self) -> None:
        """Note which batches are written, and checkpoint the write-ahead log if it is long. Raises WriteTrouble."""
        if self.check is not None:
            self.check.note(self.last)
        if self._wal_pages < CHECKPOINT_PAGES and not self._suspect:
            return
        try:
            if self._suspect:
                self._reopen()
            total, done = self._open_db().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._wal_pages = total - done
        except (apsw.Error, OSError) as error:
            raise self._trouble(error) from error

    def flush_rest(self) -> None:
        """Flush what a process that was killed may have left in the operating system's cache: batches that can be read,
        and are not on disk yet. Raises WriteTrouble."""
        self._suspect = True
        self.tidy()

    def drop_before(self, seq: int) -> None:
        """Delete all batches older than ``seq``, except the newest. Raises WriteTrouble; some may have been deleted."""
        while self.drop_some(seq):
            self.tidy()

    def drop_some(self, seq: int) -> bool:
        """Run one slice of ``drop_before``; return True if more remains. Raises WriteTrouble."""
        seq = min(seq, self.last)
        try:
            if self._suspect:
                self._reopen()
            db = self._open_db()
            if self.first < seq:
                upto = min(seq, self.first + SLICE_ROWS)
                db.execute("DELETE FROM log WHERE seq < ?", (upto,))
                self.first = upto
                self._wal_pages += SLICE_ROWS
                if upto == seq:
                    self._mark(db)
                return True
            pages, free = next(iter(db.execute(_SPACE)))
            spare = max(SPARE_PAGES, int(pages) // 4)
            # Far enough below the limit that deleting the next batch does not exceed it again.
            goal = min(SLICE_PAGES, int(free) - spare // 2)
            if free <= spare:
                return False
            self._shrink(db, goal)
            return goal == SLICE_PAGES
        except (apsw.Error, OSError) as error:
            raise self._trouble(error) from error

    def _mark(self, db: apsw.Connection) -> None:
        """Record in the newest row which batches were deleted, so that a salvage does not restore them."""
        for low, crc in db.execute("SELECT low, crc FROM log WHERE seq = ?", (self.last,)).fetchall():
            assert isinstance(low, int) and isinstance(crc, int)
            crc ^= own_part(self.last, low) ^ own_part(self.last, self.first)
            db.execute("UPDATE log SET low = ?, crc = ? WHERE seq = ?", (self.first, crc, self.last))

    def _shrink(self, db: apsw.Connection, pages: int) -> None:
        """Return ``pages`` free pages to the file system. In one commit: ``PRAGMA incremental_vacuum`` would need the
        GIL for each page, and a busy loop releases it only once a millisecond."""
        db.autovacuum_pages(lambda _schema, _pages, free, _size: min(free, pages))
        try:
            db.execute("PRAGMA auto_vacuum=FULL")
            db.execute("UPDATE log SET low = low WHERE seq = (SELECT max(seq) FROM log)")
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")
            db.autovacuum_pages(None)
        except apsw.Error:
            # A new connection corrects both.
            self._suspect = True
            raise
        self._wal_pages += 2 * pages

    def read(self, seq: int, offset: int, size: int) -> bytes:
        """Read a piece of a batch without the rest of it. Raises StoreError if the batch does not exist."""
        try:
            with self._open_db().blob_open("main", "log", "data", seq, False) as blob:
                blob.seek(offset)
                data = blob.read(size)
        except (apsw.Error, ValueError) as error:
            raise StoreError(f"batch {seq} cannot be read: {describe(error)}") from error
        if len(data) != size:
            raise StoreError(f"batch {seq} is shorter than {offset + size} bytes")
        return data

    def rows_after(self, seq: int, most: int) -> list[LogRow]:
        """Return the next rows unchanged: about ``most`` bytes, but at least one row if one follows. Raises
        StoreError."""
        found: list[LogRow] = []
        size = 0
        try:
            rows = self._open_db().execute("SELECT seq, low, crc, data FROM log WHERE seq > ? ORDER BY seq", (seq,))
            for number, low, crc, data in rows:
                assert isinstance(number, int)
                if isinstance(low, int) and isinstance(crc, int) and isinstance(data, bytes):
                    found.append((number, low, crc & 0xFFFFFFFF, data))
                else:
                    found.append((number, 0, 0, b"?"))  # damaged, and its replacement has no checksum of its own
                size += len(found[-1][3])
                if size >= most:
                    break
        except (apsw.Error, OSError) as error:
            raise StoreError(f"the store cannot be read: {describe(error, self._errno())}") from error
        return found

    def newest(self, count: int) -> list[tuple[int, int]]:
        """Return the numbers of the newest batches, each with the CRC32 of its data, the newest first. Raises
        StoreError."""
        try:
            rows = (
                self._open_db().execute("SELECT seq, low, crc FROM log ORDER BY seq DESC LIMIT ?", (count,)).fetchall()
            )
        except (apsw.Error, OSError) as error:
            raise StoreError(f"the store cannot be read: {describe(error, self._errno())}") from error
        found = []
        for seq, low, crc in rows:
            assert isinstance(seq, int)
            if isinstance(low, int) and isinstance(crc, int):
                found.append((seq, crc_of_data(seq, low, crc)))
        return found

    def check_content(self) -> bytes:
        """Return the current contents of the check file, empty if it does not exist. Raises StoreError."""
        if self.check is None:
            return b""
        self.check.note(self.last)
        try:
            return self.check.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"{self.check.path}: {describe(error)}") from None

    def insert_rows(self, rows: list[LogRow]) -> None:
        """Insert the rows into a new file, in one transaction. Raises StoreError."""
        try:
            db = self._open_db()
            with db:
                db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
            self.last = max(self.last, rows[-1][0] if rows else 0)
            self.first = self.first or (rows[0][0] if rows else 0)
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.Error, OSError) as error:
            raise StoreError(f"{self.path}: {describe(error, self._errno())}") from error

    def checkpoint_and_close(self) -> None:
        """Leave one file with all data. Raises WriteTrouble: the log is closed nevertheless, and no durable data is
        lost."""
        if self._db is None:
            return
        if self.check is not None:
            self.check.note(self.last)
            self.check.close()
        try:
            if self._suspect:
                self._reopen()
            db = self._open_db()
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            # Makes SQLite remove its write-ahead log.
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            db.close()
            self._db = None
        except (apsw.Error, OSError) as error:
            raise self._trouble(error) from error
        finally:
            self._abandon()

    @property
    def size_bytes(self) -> int:
        """Total size of the file and its write-ahead log in bytes."""
        total = 0
        for each in (self.path, beside(self.path, "-wal")):
            with contextlib.suppress(FileNotFoundError):
                total += each.stat().st_size
        return total

    def _take(self) -> None:
        """Connect and check the file. Raises _Damaged, NewerSchema, StoreError, or apsw.Error for errors of the
        disk."""
        # Read before SQLite can write.
        beyond, _, data = max(rows_in_wal(self.path), default=(0, 0, b""))
        if beyond and not self.path.stat().st_size:
            raise _Damaged("it is empty")  # and SQLite would remove the write-ahead log of an empty file
        try:
            db = self._connect()
            if not self._number("SELECT count(*) FROM sqlite_schema"):
                if next(sound_rows(self.path), None) is not None:
                    raise _Damaged("its schema is missing")
                self._migrate(db, 0)
            self._check_version(db)
            for (line,) in db.execute("PRAGMA quick_check(1)"):
                if line != "ok":
                    raise _Damaged(" ".join(str(line).split()))
            self.first = self._number("SELECT min(seq) FROM log")
            self.last = self._number("SELECT max(seq) FROM log")
            if db.readonly("main"):
                if not os.access(self.path, os.W_OK):
                    raise StoreError(f"{self.path}: not writable")
                raise _Damaged("its head")
        except OF_THE_DISK:
            raise
        except apsw.Error as error:
            raise _Damaged(describe(error)) from error
        # For SQLite, an invalid frame silently ends the log, and everything committed after it would be lost. After a
        # power failure this can be a single batch that was not reported yet, which is harmless to accept; but it may be
        # more.
        if beyond > self.last + 1:
            raise _Damaged("its write-ahead log")
        if beyond > self.last:
            self.append(beyond, data)

    def _check_version(self, db: apsw.Connection) -> None:
        # The version is stored twice, so that a flipped bit does not look like a newer program.
        first, second = divmod(self._number("PRAGMA user_version"), 1 << 16)
        if first != second or self._number("PRAGMA application_id") != APPLICATION_ID:
            raise _Damaged("its head")
        if first > len(self.steps):
            raise NewerSchema(
                f"{self.path}: written by a newer version (schema {first}, this one knows up to {len(self.steps)})"
            )
        if first < len(self.steps):
            self._migrate(db, first)

    def _migrate(self, db: apsw.Connection, version: int) -> None:
        """Run all steps from ``version`` on, in one transaction."""
        with db:
            for step in self.steps[version:]:
                for statement in step:
                    db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={len(self.steps) << 16 | len(self.steps)}")

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(str(self.path), apsw.SQLITE_OPEN_READWRITE, self._vfs)
        self._db = db
        self._wal_pages = 0
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        if self._number("PRAGMA auto_vacuum") != _INCREMENTAL:
            # The file is still empty, or shrinking it was interrupted. Otherwise this is skipped: it writes, and a full
            # disk must not keep the node from starting.
            db.execute(f"PRAGMA page_size={PAGE}; PRAGMA auto_vacuum=INCREMENTAL")
        db.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0")
        db.execute(f"PRAGMA journal_size_limit={4 * CHECKPOINT_PAGES * PAGE}; PRAGMA temp_store=MEMORY")
        return db

    def _reopen(self) -> None:
        """Rewrite the write-ahead log after a failed flush. The operating system's copy can be read, but may never
        reach the disk. So the whole log is written to the file again before anything is appended."""
        self.verify_path()
        self._abandon()
        db = self._connect()
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._note_places()
        self._wal_pages = 0
        self._suspect = False

    def _trouble(self, error: Exception) -> WriteTrouble:
        text = describe(error, self._errno())
        if not isinstance(error, apsw.FullError):
            self._suspect = True
        elif self._db is not None and self._db.in_transaction:
            self._db.execute("ROLLBACK")
        return WriteTrouble(text)

    def _salvage(self, reason: str) -> None:
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        fresh = SqliteLog(beside(self.path, ".salvaging"), self._vfs)
        fresh.open()
        lowest = 0
        db = fresh._open_db()
        with db:
            for seq, low, data in sound_rows(self.path):
                lowest = max(lowest, low)
                crc = checksum(seq, low, data)
                db.execute("INSERT OR REPLACE INTO log VALUES (?, ?, ?, ?)", (seq, low, crc, data))
            db.execute("DELETE FROM log WHERE seq < ?", (lowest,))
        report = SalvageReport(reason, damaged_name(self.path, when))
        due = lowest
        for (seq,) in db.execute("SELECT seq FROM log ORDER BY seq"):
            if seq > due:
                report.missing.append((due, seq - 1))
            due = seq + 1
            report.kept += 1
        fresh.checkpoint_and_close()
        replace_file(fresh.path, beside(self.path, f".salvaged-{when}"))
        put_in_place(self.path)
        try:
            self._take()
        except _Damaged as damage:
            raise StoreError(f"{self.path}: {damage}, and its salvaged copy is damaged too") from None
        self.salvaged = report

    def _open_db(self) -> apsw.Connection:
        if self._db is None:
            raise WriteTrouble("the store is not open")
        return self._db

    def _number(self, sql: str) -> int:
        return next((int(value) for (value,) in self._open_db().execute(sql) if isinstance(value, int)), 0)

    def _errno(self) -> int:
        return self._db.system_errno if self._db is not None else 0

    def _abandon(self) -> None:
        """Close the connection without a checkpoint."""
        if self._db is not None:
            with contextlib.suppress(apsw.Error):
                self._db.close(True)
            self._db = None


def _place_of(path: Path) -> tuple[int, int] | None:
    """Return the file's device and inode; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
