"""The action of a database: fills in the statement for each row."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from ..actions.action import Action, ActionContext, Row
from ..actions.sink_action import WorkerKeys, batch_params, insert_params, to_sink, with_insert_mode, workers_param
from ..event import Event
from ..params import Param, ParamError, Text, resource_param
from ..resources.sink import SinkRequest
from .database_sink import DatabaseSink
from .sql_template import Dialect, SqlTemplate

_encode: Final = msgspec.msgpack.Encoder().encode
_SinkT = TypeVar("_SinkT", bound=DatabaseSink)


class DataToDatabase:
    """Encodes the values of a row; the statement is the group of the request."""

    def __init__(self, context: ActionContext, dialect: Dialect) -> None:
        """Raises ParamError."""
        params = context.params
        try:
            self._template = SqlTemplate(params["sql"], dialect)
        except ValueError as error:
            raise ParamError("sql", str(error)) from None
        self._insert_null: bool = params["sql_insert_null"]
        self._keys = WorkerKeys(params)

    def request(self, row: Row, event: Event, sink: DatabaseSink) -> SinkRequest:
        template = self._template
        try:
            body = _encode(template.values(row, self._insert_null))
        except UnicodeEncodeError:
            raise ValueError("sql: a value is not UTF-8") from None
        return SinkRequest(body, self._keys.key(event), template.text)


def database_action(sink: type[_SinkT], context: ActionContext) -> Action:
    """Return ``create`` of an ActionType. Raises ParamError."""

    def maker(context: ActionContext) -> DataToDatabase:
        return DataToDatabase(context, sink.dialect)

    return to_sink(sink, maker, batches=True)(with_insert_mode(context))


def database_action_params(resource: str) -> tuple[Param, ...]:
    """Return the parameters of an action that writes to a resource of this type."""
    return (
        resource_param(resource),
        Param("sql", 1, "string", Text("SQL Template", "SQL 模板"),
              Text("One statement; each ${...} becomes a parameter of it. Rows of a batch share an INSERT statement",
                   "一条 SQL 语句，每个 ${...} 都作为语句参数；批量时多条数据合并为一条 INSERT 语句"),
              required=True, input="textarea"),
        *batch_params(2),
        workers_param(5),
        *insert_params(6),
    )  # fmt: skip
