"""The action of a database: fills in the statement for each row."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from ..actions.action import Action, ActionContext, Row
from ..actions.sink_action import WorkerKeys, batch_params, to_sink, workers_param
from ..event import Event
from ..params import Param, ParamError, Text, resource_param, retry_for_param
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
        if not isinstance(params["sync_timeout"], int):
            raise ParamError("sync_timeout", "expected a whole number")
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
    params = context.params
    if params["insert_mode"] == "sync" and not params.get("retry_for"):
        context = replace(context, params={**params, "retry_for": params["sync_timeout"] / 1000})

    def maker(context: ActionContext) -> DataToDatabase:
        return DataToDatabase(context, sink.dialect)

    return to_sink(sink, maker, batches=True)(context)


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
        Param("insert_mode", 6, "string", Text("Insert Mode", "写入模式"),
              Text("async: a row waits for a database that is away; sync: it fails after sync_timeout, and the "
                   "fallbacks run", "async：数据库不可用时数据等待；sync：超过同步超时即失败并执行备选动作"),
              default="async", enum=["async", "sync"]),
        Param("sync_timeout", 7, "number", Text("Sync Timeout", "同步超时"),
              Text("Milliseconds, for the insert mode sync; retry_for replaces it", "同步写入的超时（毫秒）"),
              default=5000, range=(1, 86_400_000)),
        Param("sql_insert_null", 8, "boolean", Text("Insert NULL", "插入 NULL"),
              Text("Write NULL for a value that is undefined; false: the text undefined",
                   "变量未定义时写入 NULL；false 则写入文本 undefined"), default=False),
        retry_for_param(9),
    )  # fmt: skip
