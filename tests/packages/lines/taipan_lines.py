"""Write rows to a line server: one line of JSON for each row, one line as its answer."""

import asyncio

from taipan.ruleengine.actions.action import ActionContext, ActionType, Row
from taipan.ruleengine.actions.message_facts import order_key
from taipan.ruleengine.actions.sink_action import batch_params, to_sink
from taipan.ruleengine.actions.template import Template
from taipan.ruleengine.delivery.buffer import DELIVERED, DeliveryOutcome
from taipan.ruleengine.delivery.buffered_row import BufferedRow
from taipan.ruleengine.event import Event
from taipan.ruleengine.network.allowed_networks import Networks
from taipan.ruleengine.params import Param, ParamError, Text, resource_param, retry_for_param
from taipan.ruleengine.resources.resource import ResourceType
from taipan.ruleengine.resources.sink import Sink, SinkContext, SinkRequest, buffered, limit_params


class LineServer(Sink):
    """A line server. The first line of a connection is the token."""

    def __init__(self, context: SinkContext) -> None:
        host, _, port = context.config["server"].rpartition(":")
        if not host or not port.isdecimal():
            raise ParamError("server", "expected host:port")
        settings = context.node.settings
        self._host, self._port = host, int(port)
        self._token = context.config["token"].encode()
        self._networks = Networks(settings.refused_networks)
        self._timeout = settings.liveness_timeout

    async def test(self) -> None:
        await self._ask([])

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        return [outcome(answer) for answer in await self._ask([each.request for each in rows])]

    async def _ask(self, lines: list[bytes]) -> list[bytes]:
        """The answer to each line. Raises OSError."""
        reader, writer = await self._networks.connect(self._host, self._port, self._timeout)
        try:
            async with asyncio.timeout(self._timeout):
                writer.writelines([each + b"\n" for each in (self._token, *lines)])
                answers = [(await reader.readline()).strip() for _ in (self._token, *lines)]
        finally:
            writer.transport.abort()
        if answers[0] != b"ok":
            raise ConnectionError(answers[0].decode() or "the server has closed the connection")
        return answers[1:]


def outcome(answer: bytes) -> DeliveryOutcome:
    if answer == b"ok":
        return DELIVERED
    later = answer in (b"", b"busy")
    return DeliveryOutcome(answer.decode() or "no answer", retry=later, unreachable=answer == b"")


class DataToLines:
    """Fill in the template of the line."""

    def __init__(self, context: ActionContext) -> None:
        self._line = Template(context.params["line"])

    def request(self, row: Row, event: Event, sink: LineServer) -> SinkRequest:
        return SinkRequest(self._line.render_bytes(row), order_key(event))


RESOURCES = [
    ResourceType(
        "line_server",
        Text("Line server", "行服务器"),
        Text("A server that takes lines", "接收文本行的服务器"),
        buffered(LineServer),
        (
            Param("server", 1, "string", Text("Server", "服务器"), Text("host:port", "host:port"), required=True),
            Param("token", 2, "password", Text("Token", "令牌"), Text("Its token", "令牌"), default=""),
            *limit_params(3),
        ),
        connection=("server", "token"),
    )
]
ACTIONS = [
    ActionType(
        "data_to_lines",
        Text("Data to a line server", "发送到行服务器"),
        Text("Write each row as a line", "将每条数据写为一行"),
        to_sink(LineServer, DataToLines, batches=True),
        (
            resource_param("line_server"),
            Param("line", 1, "string", Text("Line", "行"), Text("Template; empty: the row", "模板"), default=""),
            *batch_params(2),
            retry_for_param(5),
        ),
        resource_types=("line_server",),
        category="data_forward",
    )
]
