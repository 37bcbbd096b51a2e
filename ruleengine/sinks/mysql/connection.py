"""MysqlConnection: writes rows through a connection of aiomysql, with prepared statements.

aiomysql connects and logs in. It would write values into the text of a statement; prepared statements (COM_STMT_PREPARE
and COM_STMT_EXECUTE, the binary protocol) are therefore here, on top of its packets."""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from typing import Any, Final

from pymysql.err import MySQLError

from taipan.broker.mysql_connection import SecureConnection, literal

from ...databases.database_sink import DatabaseConnection, StatementRefused
from ...databases.sql_template import SqlTemplate, SqlValue, joined

_PREPARE: Final = 0x16
_EXECUTE: Final = 0x17
_CLOSE: Final = 0x19
# Types of parameters, with a byte of flags.
_DOUBLE: Final = b"\x05\0"
_NULL: Final = b"\x06\0"
_LONGLONG: Final = b"\x08\0"
_TINY: Final = b"\x01\0"
_BLOB: Final = b"\xfc\0"
_STRING: Final = b"\xfd\0"
_MORE_RESULTS: Final = 0x0008
_STATEMENTS: Final = 16
"""Prepared statements of a connection: one for each statement and number of rows."""
_MAX_PARAMETERS: Final = 65_535
_RESERVED: Final = 1024
"""Bytes of the longest packet that are not left to values."""

# Errors of the connection, limits of the server (memory, disk, connections), read-only servers, transactions that may
# succeed later, and logins.
_AWAY: Final = frozenset({
    1021, 1030, 1037, 1038, 1040, 1041, 1044, 1045, 1049, 1053, 1114, 1129, 1130, 1152, 1158, 1159, 1160, 1161, 1203,
    1205, 1213, 1226, 1251, 1290, 1317, 1615, 1698, 1792, 1820, 1836, 1862, 1927, 1969, 3024, 3100, 3169, 4031,
})  # fmt: skip
# Errors of a statement that no row can change: a table, column or function does not exist, syntax, permissions.
_EVERY_ROW: Final = frozenset({1054, 1064, 1136, 1142, 1143, 1146, 1305})


class MysqlConnection(DatabaseConnection):
    def __init__(self, connection: SecureConnection) -> None:
        self._connection = connection
        self._prepared: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._largest = 0

    @property
    def closed(self) -> bool:
        reader = self._connection._reader
        return self._connection._writer is None or reader is None or reader.at_eof() or reader.exception() is not None

    async def ping(self) -> None:
        try:
            await self._connection.ping(reconnect=False)
        except (MySQLError, RuntimeError) as error:
            raise OSError(reason(error)) from None

    def abort(self) -> None:
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
        self._connection.close()

    async def write(self, template: SqlTemplate, rows: list[list[SqlValue]]) -> None:
        try:
            if not self._largest:
                self._largest = await self._max_allowed_packet() - _RESERVED
            if template.row or len(rows) == 1:
                await self._run(template, rows)
                return
            await self._connection.query("begin")
            for each in rows:
                await self._run(template, [each])
            await self._connection.query("commit")
        except StatementRefused:
            if len(rows) > 1 and not template.row:
                await self._roll_back()
            raise
        except MySQLError as error:
            raise OSError(reason(error)) from None
        except (struct.error, IndexError, RuntimeError) as error:
            raise OSError(f"the answer does not follow the MySQL protocol: {error}") from None

    async def read(self, query: SqlTemplate, values: list[str]) -> list[tuple[object, ...]]:
        try:
            return await self._rows(query.sql(lambda number: literal(values[number])))
        except MySQLError as error:
            raise _refusal(error, False) from None
        except (struct.error, IndexError, RuntimeError) as error:
            raise OSError(f"the answer does not follow the MySQL protocol: {error}") from None

    async def _roll_back(self) -> None:
        try:
            await self._connection.query("rollback")
        except MySQLError as error:
            raise OSError(reason(error)) from None

    async def _max_allowed_packet(self) -> int:
        ((size,),) = await self._rows("select @@max_allowed_packet")
        return int(size)

    async def _rows(self, query: str) -> list[tuple[Any, ...]]:
        async with self._connection.cursor() as cursor:
            await cursor.execute(query)
            return list(await cursor.fetchall())

    async def _run(self, template: SqlTemplate, rows: list[list[SqlValue]]) -> None:
        """Write rows with one statement. Raises StatementRefused or MySQLError."""
        values = [value for row in rows for value in row]
        body = b"" if len(values) > _MAX_PARAMETERS else encoded(values)
        if len(values) > _MAX_PARAMETERS or len(body) > self._largest:
            raise StatementRefused(f"the row is larger than max_allowed_packet ({self._largest + _RESERVED} bytes)")
        key = (template.text, len(rows))
        try:
            statement = self._prepared.get(key)
            if statement is None:
                statement = await self._prepare(template, len(rows), len(values))
                self._prepared[key] = statement
            else:
                self._prepared.move_to_end(key)
        except MySQLError as error:
            raise _refusal(error, True) from None
        try:
            await self._connection._execute_command(_EXECUTE, struct.pack("<IBI", statement, 0, 1) + body)
            await self._read_results()
        except MySQLError as error:
            raise _refusal(error, False) from None

    async def _prepare(self, template: SqlTemplate, count: int, values: int) -> int:
        connection = self._connection
        while len(self._prepared) >= _STATEMENTS:
            _, old = self._prepared.popitem(last=False)
            await connection._execute_command(_CLOSE, struct.pack("<I", old))
        if template.row:
            row = joined(template.row, lambda number: "?")
            sql = f"{template.prefix}values {', '.join([row] * count)}{template.suffix}"
        else:
            sql = template.sql(lambda number: "?")
        await connection._execute_command(_PREPARE, sql.encode())
        packet = await connection._read_packet()
        statement, columns, parameters = struct.unpack_from("<IHH", packet.get_all_data(), 1)
        for definitions in (parameters, columns):
            if definitions:
                for _ in range(definitions + 1):  # and the end of the definitions
                    await connection._read_packet()
        if parameters != values:
            raise StatementRefused(f"the statement has {parameters} parameters, not {values}", whole=True)
        return int(statement)

    async def _read_results(self) -> None:
        """Read the answer of a statement, and skip the rows in it."""
        while True:
            data = (await self._connection._read_packet()).get_all_data()
            if data[0] == 0:
                # The numbers of rows and of the last row precede the status.
                position = 1 + _width(data, 1)
                position += _width(data, position)
                status = data[position] | data[position + 1] << 8
            else:
                await self._skip_to_end()
                status = await self._skip_to_end()
            if not status & _MORE_RESULTS:
                return

    async def _skip_to_end(self) -> int:
        """Skip the definitions of columns, or rows; return the status at their end."""
        while True:
            packet = await self._connection._read_packet()
            if packet.is_eof_packet():
                data = packet.get_all_data()
                return int(data[3]) | int(data[4]) << 8


def encoded(values: list[SqlValue]) -> bytes:
    """Return the NULL bitmap, the types and the values of parameters in the binary protocol."""
    if not values:
        return b""
    nulls = bytearray((len(values) + 7) // 8)
    types = bytearray()
    parts: list[bytes] = []
    for at, value in enumerate(values):
        if type(value) is str:
            data = value.encode()
            types += _STRING
            parts.append(_length(len(data)))
            parts.append(data)
        elif value is None:
            nulls[at >> 3] |= 1 << (at & 7)
            types += _NULL
        elif isinstance(value, bool):
            types += _TINY
            parts.append(b"\1" if value else b"\0")
        elif isinstance(value, int):
            types += _LONGLONG
            parts.append(value.to_bytes(8, "little", signed=True))
        elif isinstance(value, float):
            types += _DOUBLE
            parts.append(struct.pack("<d", value))
        else:
            assert isinstance(value, bytes)
            types += _BLOB
            parts.append(_length(len(value)))
            parts.append(value)
    return b"".join([bytes(nulls), b"\1", bytes(types), *parts])


def _length(size: int) -> bytes:
    if size < 251:
        return size.to_bytes(1, "little")
    if size < 65_536:
        return b"\xfc" + size.to_bytes(2, "little")
    if size < 16_777_216:
        return b"\xfd" + size.to_bytes(3, "little")
    return b"\xfe" + size.to_bytes(8, "little")


def _width(data: bytes, at: int) -> int:
    """Return the bytes of a number of variable length."""
    return {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(data[at], 1)


def reason(error: Exception) -> str:
    """Return in one line why a call of aiomysql failed."""
    cause = error.__cause__
    if isinstance(cause, OSError | asyncio.IncompleteReadError):
        return str(cause) or type(cause).__name__
    return " ".join(str(error.args[-1] if error.args else type(error).__name__).split())


def _refusal(error: MySQLError, preparing: bool) -> StatementRefused | OSError:
    """Return what an error of the server means for the rows of the statement."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if code < 1000 or 2000 <= code < 3000 or code in _AWAY:
        return OSError(reason(error))
    return StatementRefused(reason(error), whole=preparing or code in _EVERY_ROW)
