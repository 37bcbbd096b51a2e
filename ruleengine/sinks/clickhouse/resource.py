"""The resource type ``backend_clickhouse``: the HTTP interface of a ClickHouse server."""

import re
from typing import Final
from urllib.parse import quote, urlsplit

from ...databases.quoted_sql import BooleanLiterals
from ...databases.quoted_sql_action import QuotedSqlSink
from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...network.tls import tls_params
from ...params import Param, ParamError, Text
from ...resources.batch_division import BatchAnswer
from ...resources.batch_sink import basic_authorization, request_params, waits
from ...resources.http_reply import HttpReply, outcome_of
from ...resources.resource import ResourceType
from ...resources.sink import SinkContext, buffered

_CODE: Final = re.compile(rb"Code: ([0-9]{1,5})")
# Authentication, permissions, and the database: an operator has to change a configuration.
_CONFIGURATION: Final = frozenset({81, 192, 193, 194, 195, 291, 497, 516})
# Time-outs, limits of the server, and replicas that are away.
_LATER: Final = frozenset({159, 160, 164, 201, 202, 203, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 319, 999})
# Errors of a statement that no row can change: a column or a table does not exist.
_EVERY_ROW: Final = frozenset({16, 60})
_SHOWN: Final = 300


class ClickHouse(QuotedSqlSink):
    """A server. A statement is written as a whole or, if one of its values is invalid, not at all."""

    literals = BooleanLiterals("1", "0")

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        server = str(config["server"]).strip()
        url = (server if "://" in server else f"http://{server}").rstrip("/")
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        usable = usable and url.isascii() and url.isprintable() and " " not in url
        if not usable or parts.path or parts.query or parts.fragment or parts.username is not None:
            raise ParamError("server", "expected http://host:port, https://host:port or host:port")
        self._url = f"{url}/?database={quote(config['database'], safe='')}"
        self._headers = {"content-type": "text/plain; charset=utf-8"}
        self._headers |= basic_authorization("user", config["user"], config["key"])
        super().__init__(context, url)

    async def execute(self, database: str, sql: bytes) -> BatchAnswer:
        reply = await self.request("POST", self._url, self._headers, sql)
        return BatchAnswer(reply) if isinstance(reply, DeliveryOutcome) else answer_of(reply)

    async def ask(self) -> BatchAnswer:
        return await self.execute("", b"SELECT 1")


def answer_of(reply: HttpReply) -> BatchAnswer:
    """Return what an answer means. Its body contains the number of the error; older servers answer all of them with
    the status 500."""
    if reply.status == 200:
        return BatchAnswer(DELIVERED)
    match = _CODE.search(reply.body)
    outcome = outcome_of(reply)
    code = int(match[1]) if match is not None else -1
    if code in _CONFIGURATION or code in _LATER or reply.status in (401, 403):
        return BatchAnswer(waits(outcome.reason))
    if code < 0:
        return BatchAnswer(outcome, reply.status in (400, 413))
    return BatchAnswer(DeliveryOutcome(outcome.reason[:_SHOWN], aside=True), code not in _EVERY_ROW)


TYPE: Final = ResourceType(
    "backend_clickhouse",
    Text("ClickHouse", "ClickHouse"),
    Text("A ClickHouse server that stores rows", "存储数据的 ClickHouse 服务器"),
    buffered(ClickHouse),
    (
        Param("server", 1, "string", Text("Server", "服务器地址"),
              Text("URL of the HTTP interface", "HTTP 接口的 URL"),
              required=True, default="http://127.0.0.1:8123", parts=True),
        Param("database", 2, "string", Text("Database", "数据库"),
              Text("The name of the database", "数据库名称"), required=True),
        Param("user", 3, "string", Text("User", "用户名"),
              Text("The user; empty: the server's default", "用户名，留空则使用服务器的默认用户"), default=""),
        Param("key", 4, "password", Text("Key", "密码"), Text("The user's password", "用户的密码"), default=""),
        *tls_params(5),
        *request_params(20, 8),
    ),
    connection=("server", "database", "user", "key", *(each.name for each in tls_params(0))),
    order=22,
)  # fmt: skip
RESOURCES: Final = (TYPE,)
