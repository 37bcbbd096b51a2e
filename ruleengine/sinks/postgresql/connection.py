"""PostgresqlConnection: writes rows through a connection of asyncpg.

PostgreSQL reports the types of the parameters of a statement. Each value is sent as text with a cast to its type, so
that PostgreSQL converts it, and reports values that it cannot convert. The rows of an INSERT statement are one array
for each parameter: the statement is the same for any number of rows, and is prepared once."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

from ...databases.database_sink import DatabaseConnection, StatementRefused
from ...databases.sql_template import SqlTemplate, SqlValue, joined
from ...functions.values import describe, float_text

if TYPE_CHECKING:
    from collections.abc import Sequence

ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The errors of asyncpg; the last one also if the server has ended an idle connection, and its end is not read yet."""
_STATEMENTS: Final = 64
_INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid"})
_TEXT: Final = {str}
_WHOLE: Final = {int}
_TWICE: Final = "21000"
"""A row of ON CONFLICT DO UPDATE would be changed twice by one statement."""
# Connections, resources (memory, disk, connections), transactions that may succeed later, read-only servers, the
# operator's interventions, system errors, and logins.
_AWAY: Final = ("08", "53", "40", "25006", "55P03", "57", "58", "28", "3D")
_EVERY_ROW: Final = ("42P01", "42703", "42601", "42883", "42P18", "3F")
"""Errors of a statement that no row can change: a table, column, function, type or schema does not exist."""


class _Prepared(NamedTuple):
    """Prepared statements. ``many`` writes any number of rows; if it is None, ``one`` writes them, in a transaction."""

    one: asyncpg.prepared_stmt.PreparedStatement
    many: asyncpg.prepared_stmt.PreparedStatement | None
    types: list[asyncpg.Type]


class PostgresqlConnection(DatabaseConnection):
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()
        # The few queries of actions that read.
        self._queries: dict[str, asyncpg.prepared_stmt.PreparedStatement] = {}

    @property
    def closed(self) -> bool:
        return bool(self._connection.is_closed())

    async def ping(self) -> None:
        try:
            await self._connection.execute("select 1")
        except ERRORS as error:
            raise OSError(_reason(error)) from None

    def abort(self) -> None:
        self._connection.terminate()

    async def write(self, template: SqlTemplate, rows: list[list[SqlValue]]) -> None:
        prepared = await self._prepare(template)
        columns = [_texts(*each) for each in zip(zip(*rows, strict=True), prepared.types, strict=True)]
        try:
            if len(rows) == 1:
                await prepared.one.fetch(*(each[0] for each in columns))
                return
            if prepared.many is not None:
                try:
                    await prepared.many.fetch(*columns)
                    return
                except asyncpg.PostgresError as error:
                    if error.sqlstate != _TWICE:
                        raise
            await prepared.one.executemany(list(zip(*columns, strict=True)) if columns else [()] * len(rows))
        except ERRORS as error:
            # The table may have changed since the statement was prepared.
            self._prepared.pop(template.text, None)
            raise _failure(error) from None

    async def read(self, query: SqlTemplate, values: list[str]) -> list[tuple[object, ...]]:
        try:
            statement = self._queries.get(query.text)
            if statement is None:
                statement = await self._connection.prepare(query.sql(lambda number: f"${number + 1}"))
                self._queries[query.text] = statement
            return [tuple(each) for each in await statement.fetch(*values)]
        except ERRORS as error:
            self._queries.pop(query.text, None)
            raise _failure(error) from None

    async def _prepare(self, template: SqlTemplate) -> _Prepared:
        found = self._prepared.get(template.text)
        if found is not None:
            return found
        try:
            made = await self._prepared_now(template)
        except ERRORS as error:
            failure = _failure(error)
            raise (
                StatementRefused(str(failure), whole=True) if isinstance(failure, StatementRefused) else failure
            ) from None
        while len(self._prepared) >= _STATEMENTS:
            self._prepared.popitem(last=False)
        self._prepared[template.text] = made
        return made

    async def _prepared_now(self, template: SqlTemplate) -> _Prepared:
        connection = self._connection
        asked = await connection.prepare(template.sql(lambda number: f"${number + 1}"))
        types = list(asked.get_parameters())
        casts = [_type_name(each) for each in types]
        one = await connection.prepare(template.sql(lambda number: f"(${number + 1}::text::{casts[number]})"))
        many = None
        if template.row and types and not any(each.text.lower() == "default" for each in template.row):
            names = [f"p{number}" for number in range(len(types))]
            arrays = ", ".join(f"${number + 1}::text[]" for number in range(len(types)))
            inner = joined(template.row[1:-1], lambda number: f"(taipan_row.p{number}::{casts[number]})")
            many = await connection.prepare(
                f"{template.prefix}select {inner} from unnest({arrays}) as taipan_row({', '.join(names)})"
                f"{template.suffix}"
            )
        return _Prepared(one, many, types)


def _type_name(kind: asyncpg.Type) -> str:
    name, brackets, _ = kind.name.partition("[]")
    return f"{_quoted(kind.schema)}.{_quoted(name)}{brackets}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _texts(column: tuple[SqlValue, ...], kind: asyncpg.Type) -> Sequence[str | None]:
    """Return the values of a parameter as ``_text`` does. Raises StatementRefused."""
    if kind.name != "bytea" and kind.kind != "array":
        types = set(map(type, column))
        if types == _TEXT:
            return column  # type: ignore[return-value]  # strings
        if types == _WHOLE:
            return list(map(str, column))
    return [_text(value, kind) for value in column]


def _text(value: SqlValue, kind: asyncpg.Type) -> str | None:
    """Return the text that PostgreSQL reads as a value of this type. Raises StatementRefused."""
    if kind.name == "bytea":
        if isinstance(value, bytes | str):
            return "\\x" + (value.encode() if isinstance(value, str) else value).hex()
    if type(value) is str:
        return _array(value) if kind.kind == "array" and value.startswith("[") else value
    if value is None:
        return None
    if isinstance(value, bool):
        if kind.name in _INTEGERS:
            return "1" if value else "0"
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if kind.name in _INTEGERS and value.is_integer():
            return str(int(value))
        return float_text(value)
    raise StatementRefused(f"{describe(value)} is not UTF-8, and the parameter has the type {kind.name}")


def _array(text: str) -> str:
    """Return a list, which is JSON in a row, as an array of PostgreSQL."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return _array_text(value) if isinstance(value, list) else text


def _array_text(values: Sequence[object]) -> str:
    texts: list[str] = []
    for each in values:
        if isinstance(each, list):
            texts.append(_array_text(each))
        elif each is None:
            texts.append("NULL")
        else:
            text = each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
            texts.append('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(texts) + "}"


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    detail = getattr(error, "detail", None)
    return " ".join((f"{text}: {detail}" if detail else text).split())


def _failure(error: Exception) -> StatementRefused | OSError:
    """Return what an error of asyncpg means for the rows of the statement."""
    code = str(getattr(error, "sqlstate", None) or "")
    reason = _reason(error)
    if isinstance(error, asyncpg.DataError):
        return StatementRefused(reason)
    if not code or code.startswith(_AWAY):
        return OSError(reason)
    return StatementRefused(reason, whole=code.startswith(_EVERY_ROW))
