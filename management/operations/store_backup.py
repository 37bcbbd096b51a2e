"""StoreBackup: a copy of the whole store of this node while it runs."""

import time
from collections.abc import AsyncGenerator

import msgspec

from taipan.broker.persistence.log.backup_file import BackupHead
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.server import Server

from .refusal import UNKNOWN, WRONG, Refusal


class StoreBackupRecord(msgspec.Struct):
    """``created_at``: Unix seconds; ``size``: bytes of the file."""

    node: str
    version: str
    created_at: int
    size: int


class StoreBackup:
    """Backups; one runs at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._running = False

    def begin(self) -> tuple[StoreBackupRecord, AsyncGenerator[bytes, None]]:
        """Start a backup and return its description, whose ``size`` is known after the last piece. This call and the
        pieces raise Refusal."""
        if self._server.store is None:
            raise Refusal(WRONG, "there is no store to back up (setting durability.level)")
        if self._running:
            raise Refusal(WRONG, "another backup is in progress; try again later")
        record = StoreBackupRecord(self._server.settings.node.name, self._server.version, int(time.time()), 0)
        return record, self._pieces(record)

    async def _pieces(self, record: StoreBackupRecord) -> AsyncGenerator[bytes, None]:
        store = self._server.store
        assert store is not None
        if self._running:
            raise Refusal(WRONG, "another backup is in progress; try again later")
        self._running = True
        try:
            head = BackupHead(record.node, record.version, len(SqliteLog.steps), record.created_at)
            async for piece in store.copy(head):
                record.size += len(piece)
                yield piece
        except StoreError as error:
            raise Refusal(UNKNOWN, str(error)) from None
        finally:
            self._running = False
