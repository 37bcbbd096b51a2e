"""The resource type ``backend_tdengine``: the REST interface of a TDengine server, which taosAdapter provides."""

from typing import Final
from urllib.parse import quote

import msgspec

from ...databases.quoted_sql import BooleanLiterals
from ...databases.quoted_sql_action import QuotedSqlSink
from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...params import Param, Text
from ...resources.batch_division import BatchAnswer
from ...resources.batch_sink import (
    address_params,
    basic_authorization,
    https_params,
    of_status,
    origin_of,
    request_params,
    waits,
)
from ...resources.http_reply import HttpReply
from ...resources.resource import ResourceType
from ...resources.sink import SinkContext, buffered

_CODE: Final = 0xFFFF
# The network between the servers of TDengine: codes below.
_NETWORK: Final = 0x0100
# Servers, their files, and the election of leaders, by the upper byte of a code.
_SERVERS: Final = frozenset({0x04, 0x05, 0x09, 0x10})
# No memory or disk space, starting or stopping; the user, its rights, and the database.
_LATER: Final = frozenset({
    0x0102, 0x0106, 0x0111, 0x0125, 0x0126, 0x012B, 0x0130, 0x0131, 0x0207, 0x0208, 0x0213, 0x0303, 0x0315, 0x0344,
    0x0351, 0x0357, 0x0358, 0x0380, 0x0386, 0x0388, 0x0396,
})  # fmt: skip
# Errors of a statement that no row can change: a table does not exist.
_EVERY_ROW: Final = frozenset({0x0361, 0x0362, 0x2603})
_SHOWN: Final = 300


class _Answer(msgspec.Struct):
    """``status`` is that of TDengine 2: ``succ`` or ``error``."""

    code: int = 0
    desc: str = ""
    status: str = "succ"


_decode: Final = msgspec.json.Decoder(_Answer).decode


class Tdengine(QuotedSqlSink):
    """A server. A statement is written as a whole or, if one of its values is invalid, not at all."""

    literals = BooleanLiterals("true", "false")
    between_rows = b" "

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        origin = origin_of(config)
        self._url = f"{origin}/rest/sql"
        self._headers = {"content-type": "text/plain; charset=utf-8"}
        self._headers |= basic_authorization("username", config["username"], config["password"])
        super().__init__(context, origin)

    async def execute(self, database: str, sql: bytes) -> BatchAnswer:
        url = f"{self._url}/{quote(database, safe='')}" if database else self._url
        reply = await self.request("POST", url, self._headers, sql)
        return BatchAnswer(reply) if isinstance(reply, DeliveryOutcome) else answer_of(reply)

    async def ask(self) -> BatchAnswer:
        return await self.execute("", b"SELECT SERVER_VERSION()")


def answer_of(reply: HttpReply) -> BatchAnswer:
    """Return what an answer means. The status is 200 also for most errors; the body contains their number."""
    try:
        answer = _decode(reply.body)
    except msgspec.MsgspecError:
        if reply.status == 200:
            return BatchAnswer(waits("an answer that is not TDengine's"))
        return of_status(reply, frozenset({400, 413}))
    code = answer.code & _CODE
    if not code and answer.status == "succ":
        return BatchAnswer(DELIVERED) if reply.status == 200 else of_status(reply, frozenset({400, 413}))
    reason = f"{answer.desc or 'no description'} (0x{code:04X})"[:_SHOWN]
    if code < _NETWORK or code >> 8 in _SERVERS or code in _LATER or reply.status in (401, 403):
        return BatchAnswer(waits(reason))
    return BatchAnswer(DeliveryOutcome(reason, aside=True), code not in _EVERY_ROW)


TYPE: Final = ResourceType(
    "backend_tdengine",
    Text("TDengine", "TDengine"),
    Text("A TDengine server that stores rows", "存储数据的 TDengine 服务器"),
    buffered(Tdengine),
    (
        *address_params(6041),
        Param("username", 3, "string", Text("Username", "用户名"),
              Text("The user to log in as; empty: without a login", "登录用户，留空则不登录"), default=""),
        Param("password", 4, "password", Text("Password", "密码"), Text("The user's password", "用户的密码"),
              default=""),
        *https_params(5),
        *request_params(20, 8),
    ),
    connection=("host", "port", "username", "password", *(each.name for each in https_params(0))),
    order=22,
)  # fmt: skip
RESOURCES: Final = (TYPE,)
