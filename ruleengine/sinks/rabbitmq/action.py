"""The action ``data_to_rabbit``: a message for each row."""

from __future__ import annotations

from typing import Final

import msgspec

from ...actions.action import ActionContext, ActionType, Row
from ...actions.message_facts import order_key
from ...actions.sink_action import to_sink
from ...actions.template import Template
from ...event import Event
from ...params import Param, ParamError, Text, resource_param, retry_for_param
from ...resources.sink import SinkRequest
from .message import RabbitMessage
from .resource import RabbitSink

_encode: Final = msgspec.msgpack.Encoder().encode
_LONGEST: Final = 255
"""Bytes of a name or a routing key in AMQP."""
_WINDOW: Final = 100
"""Messages of a lane that wait for their confirmations at the same time."""


class DataToRabbit:
    """Fills in the routing key and the payload."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        params = context.params
        self._exchange: str = params["exchange"]
        if len(self._exchange.encode()) > _LONGEST:
            raise ParamError("exchange", f"longer than {_LONGEST} bytes")
        self._type: str = params["exchange_type"]
        self._durable: bool = params["durable"]
        self._routing_key = Template(params["routing_key"])
        self._payload = Template(params["payload_tmpl"])

    def request(self, row: Row, event: Event, sink: RabbitSink) -> SinkRequest:
        routing_key = self._routing_key.render(row) if self._routing_key.text else ""
        if isinstance(routing_key, bytes):
            raise ValueError("routing_key: a value is not UTF-8")
        try:
            length = len(routing_key.encode())
        except UnicodeEncodeError:
            raise ValueError("routing_key: a value is not UTF-8") from None
        if length > _LONGEST:
            raise ValueError(f"routing_key: longer than {_LONGEST} bytes")
        payload = self._payload.render_bytes(row)
        message = RabbitMessage(self._exchange, self._type, self._durable, routing_key, payload)
        return SinkRequest(_encode(message), order_key(event), "", _WINDOW, 0.0)


TYPE: Final = ActionType(
    "data_to_rabbit",
    Text("Data to RabbitMQ", "桥接数据到 RabbitMQ"),
    Text("Publish each row to an exchange of RabbitMQ", "将每条数据发布到 RabbitMQ 的交换机"),
    to_sink(RabbitSink, DataToRabbit),
    (
        resource_param("bridge_rabbit"),
        Param("exchange", 1, "string", Text("Exchange", "交换机"),
              Text("The name of the exchange; it is created if it does not exist", "交换机名称，不存在时自动创建"),
              required=True),
        Param("exchange_type", 2, "string", Text("Exchange Type", "交换机类型"),
              Text("The type of an exchange that is created", "自动创建的交换机的类型"),
              default="topic", enum=["direct", "fanout", "topic", "headers"]),
        Param("routing_key", 3, "string", Text("Routing Key", "路由键"),
              Text("Template of the routing key", "路由键模板"), required=True),
        Param("durable", 4, "boolean", Text("Durable", "持久化"),
              Text("Messages, and an exchange that is created, survive a restart of RabbitMQ",
                   "消息和自动创建的交换机在 RabbitMQ 重启后保留"), default=False),
        Param("payload_tmpl", 5, "string", Text("Payload Template", "消息内容模板"),
              Text("Template of the message; empty: the whole row as JSON", "消息内容模板，留空则为整条数据的 JSON"),
              default="", input="textarea"),
        retry_for_param(6),
    ),
    resource_types=("bridge_rabbit",),
    category="data_forward",
    order=26,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
