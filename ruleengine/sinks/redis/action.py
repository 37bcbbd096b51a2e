"""The action ``data_to_redis``: a command for each row."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ...actions.action import Action, ActionContext, ActionType, Row
from ...actions.lookup_subscriptions import lookup_action
from ...actions.message_facts import order_key
from ...actions.sink_action import batch_params, insert_mode_params, to_sink, with_insert_mode
from ...actions.template import Template
from ...event import Event
from ...params import Param, ParamError, Text, resource_param, retry_for_param
from ...resources.sink import SinkRequest
from .redis_sink import RedisSink

_encode: Final = msgspec.msgpack.Encoder().encode
_CUT: Final = re.compile(r"\$\{[^}]*$")
# Commands after which the connection is another one, or after which answers are missing or belong to no command.
_REFUSED: Final = frozenset({
    "ASKING", "AUTH", "CLIENT", "DISCARD", "EXEC", "HELLO", "MONITOR", "MULTI", "PSUBSCRIBE", "PSYNC", "PUNSUBSCRIBE",
    "QUIT", "READONLY", "READWRITE", "RESET", "SELECT", "SHUTDOWN", "SSUBSCRIBE", "SUBSCRIBE", "SUNSUBSCRIBE", "SYNC",
    "UNSUBSCRIBE", "UNWATCH", "WATCH",
})  # fmt: skip
_Word = bytes | Template


class DataToRedis:
    """Fills in the words of the command. A word remains one word, whatever value is filled in."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        words = context.params["cmd"].split()
        if not words or "${" in words[0]:
            raise ParamError("cmd", "expected a command of Redis whose first word is its name")
        if words[0].upper() in _REFUSED:
            raise ParamError("cmd", f"{words[0]} changes the connection, which other rows use, too")
        if any(_CUT.search(word) for word in words):
            raise ParamError("cmd", "a placeholder cannot contain a space")
        self._words: list[_Word] = [Template(word) if "${" in word else word.encode() for word in words]

    def request(self, row: Row, event: Event, sink: RedisSink) -> SinkRequest:
        words = [word.render_bytes(row) if isinstance(word, Template) else word for word in self._words]
        return SinkRequest(_encode(words), order_key(event))


def _action(context: ActionContext) -> Action:
    sink: type[RedisSink] = RedisSink  # type: ignore[type-abstract]  # of any of its types
    return to_sink(sink, DataToRedis, batches=True)(with_insert_mode(context))


_RESOURCES: Final = ("backend_redis_single", "backend_redis_sentinel", "backend_redis_cluster")
TYPE: Final = ActionType(
    "data_to_redis",
    Text("Data to Redis", "保存数据到 Redis"),
    Text("Send a command to Redis for each row", "为每条数据向 Redis 发送一条命令"),
    _action,
    (
        resource_param("backend_redis_single, backend_redis_sentinel or backend_redis_cluster"),
        Param("cmd", 1, "string", Text("Redis Command", "Redis 命令"),
              Text("One command. It is split at spaces before each ${...} is filled in",
                   "一条 Redis 命令，先按空格拆分，再填入每个 ${...}"),
              required=True, input="textarea"),
        *batch_params(2),
        *insert_mode_params(5),
        retry_for_param(7),
    ),
    resource_types=_RESOURCES,
    category="data_persist",
    order=23,
)  # fmt: skip
ACTIONS: Final = (TYPE, lookup_action("lookup_sub_to_redis", "Redis", RedisSink, _RESOURCES, 42))
