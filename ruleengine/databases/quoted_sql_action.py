"""QuotedSqlSink: an HTTP sink that executes statements, and the action for it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, TypeVar

import msgspec

from ..actions.action import Action, ActionContext, Row
from ..actions.sink_action import (
    WorkerKeys,
    batch_params,
    insert_params,
    to_sink,
    with_insert_mode,
    workers_param,
)
from ..delivery.buffered_row import BufferedRow
from ..event import Event
from ..params import Param, ParamError, Text, resource_param
from ..resources.batch_division import BatchAnswer
from ..resources.batch_sink import BatchSink
from ..resources.sink import SinkRequest
from .quoted_sql import BooleanLiterals, QuotedSql

_SinkT = TypeVar("_SinkT", bound="QuotedSqlSink")


class QuotedSqlSink(BatchSink):
    """The tuples of a batch share an INSERT statement. ``group`` of a row is [database, text before, text after]."""

    literals: ClassVar[BooleanLiterals]
    between_rows: ClassVar[bytes] = b","

    @abstractmethod
    async def execute(self, database: str, sql: bytes) -> BatchAnswer:
        """Execute a statement."""

    async def send(self, rows: list[BufferedRow]) -> BatchAnswer:
        database, before, after = msgspec.json.decode(rows[0].group, type=tuple[str, str, str])
        tuples = self.between_rows.join([each.request for each in rows])
        return await self.execute(database, before.encode() + tuples + after.encode())


class DataToQuotedSql:
    """The action: fills in the statement of a row."""

    def __init__(self, context: ActionContext, statement: QuotedSql) -> None:
        """Raises ParamError."""
        params = context.params
        self._statement = statement
        self._insert_null: bool = params["sql_insert_null"]
        self._database: str = params.get("db_name", "")
        self._keys = WorkerKeys(params)

    def request(self, row: Row, event: Event, sink: QuotedSqlSink) -> SinkRequest:
        before, values, after = self._statement.render(row, self._insert_null)
        if not values:
            before, values = "", before
        try:
            body = values.encode()
            group = msgspec.json.encode([self._database, before, after]).decode()
        except UnicodeEncodeError:
            raise ValueError("sql: a value is not UTF-8") from None
        return SinkRequest(body, self._keys.key(event), group)


def quoted_sql_action(sink: type[_SinkT], context: ActionContext) -> Action:
    """Return ``create`` of an ActionType. Raises ParamError."""
    try:
        statement = QuotedSql(context.params["sql"], sink.literals)
    except ValueError as error:
        raise ParamError("sql", str(error)) from None
    context = with_insert_mode(context)
    if not statement.repeatable:
        context = replace(context, params={**context.params, "enable_batch": False})
    return to_sink(sink, lambda context: DataToQuotedSql(context, statement), batches=True)(context)


def quoted_sql_params(resource: str) -> tuple[Param, ...]:
    """Return the parameters of an action that executes statements on a resource of this type."""
    return (
        resource_param(resource),
        Param("sql", 1, "string", Text("SQL Template", "SQL 模板"),
              Text("One statement. ${...} in quotes is escaped; outside of quotes it is a number, a boolean or NULL",
                   "一条 SQL 语句。引号内的 ${...} 会被转义；引号外只能是数字、布尔值或 NULL"),
              required=True, input="textarea"),
        *batch_params(2),
        workers_param(5),
        *insert_params(6),
    )  # fmt: skip
