"""QuotedSqlSink: an HTTP sink that executes statements, and the action for it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar, TypeVar

import msgspec

from ..delivery.buffered_row import BufferedRow
from ..event import Event
from ..params import Param, ParamError, Text, resource_param, retry_for_param
from ..resources.batch_sink import BatchAnswer, BatchSink
from ..resources.sink import SinkRequest
from .action import Action, ActionContext, Row
from .quoted_sql import BooleanLiterals, QuotedSql
from .sink_action import WorkerKeys, batch_params, to_sink, workers_param

_SinkT = TypeVar("_SinkT", bound="QuotedSqlSink")


class QuotedSqlSink(BatchSink):
    """The tuples of a batch share an INSERT statement. ``group`` of a row is [database, text before, text after]."""

    literals: ClassVar[BooleanLiterals]

    @abstractmethod
    async def execute(self, database: str, sql: bytes) -> BatchAnswer:
        """Execute a statement."""

    async def send(self, rows: list[BufferedRow]) -> BatchAnswer:
        database, before, after = msgspec.json.decode(rows[0].group, type=tuple[str, str, str])
        tuples = b",".join([each.request for each in rows])
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
    params = context.params
    if not isinstance(params["sync_timeout"], int):
        raise ParamError("sync_timeout", "expected a whole number")
    try:
        statement = QuotedSql(params["sql"], sink.literals)
    except ValueError as error:
        raise ParamError("sql", str(error)) from None
    changed = dict(params)
    if params["insert_mode"] == "sync" and not params.get("retry_for"):
        changed["retry_for"] = params["sync_timeout"] / 1000
    if not statement.repeatable:
        changed["enable_batch"] = False
    return to_sink(sink, lambda context: DataToQuotedSql(context, statement), batches=True)(
        replace(context, params=changed)
    )


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
        Param("insert_mode", 6, "string", Text("Insert Mode", "写入模式"),
              Text("async: a row waits for a server that is away; sync: it fails after sync_timeout, and the fallbacks "
                   "run", "async：服务器不可用时数据等待；sync：超过同步超时即失败并执行备选动作"),
              default="async", enum=["async", "sync"]),
        Param("sync_timeout", 7, "number", Text("Sync Timeout", "同步超时"),
              Text("Milliseconds, for the insert mode sync; retry_for replaces it", "同步写入的超时（毫秒）"),
              default=5000, range=(1, 86_400_000)),
        Param("sql_insert_null", 8, "boolean", Text("Insert NULL", "插入 NULL"),
              Text("Write NULL for a value that is undefined; false: the text undefined",
                   "变量未定义时写入 NULL；false 则写入文本 undefined"), default=False),
        retry_for_param(9),
    )  # fmt: skip
