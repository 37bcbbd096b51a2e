"""The other side of each sink, for the tests that all of them pass."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Final

from aiohttp import web

from tests.ruleengine.sinks.remotes import Remote
from tests.support.cutting_proxy import CuttingProxy
from tests.support.http_sink import HttpSink
from tests.support.line_server import LineServer
from tests.support.peer import Peer


class OtherSide(ABC):
    """A system that can be started, stopped and started again; ``action`` writes one of ``rows`` to it."""

    action: ClassVar[str]
    params: ClassVar[dict[str, Any]] = {}
    address: ClassVar[str]
    """The parameter that says where it is; ``value``: as it has an address."""
    ordered: ClassVar[bool] = True

    port: int

    def value(self, host: str) -> str:
        return f"{host}:{self.port}"

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {self.address: self.value(host)}

    @abstractmethod
    async def start(self) -> None: ...

    async def proxies(self) -> list[CuttingProxy]:
        """Those between the sink and this system; ``config`` is the address of them from now on."""
        proxy = await CuttingProxy(self.port).start()
        self.port = proxy.port
        return [proxy]

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    def taken(self) -> list[int]:
        """The numbers of the rows that it has taken."""


def row(number: int) -> dict[str, Any]:
    """One that every action can write."""
    return {"n": number, "client": f"c{number % 3}", "metric": "m", "value": number, "tags": {"a": "b"}}


class _Http(OtherSide):
    def __init__(self) -> None:
        self._server = HttpSink()
        self.port = self._server.port

    def value(self, host: str) -> str:
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def taken(self) -> list[int]:
        return [number for body in self._server.bodies for number in self.numbers(json.loads(body))]

    def numbers(self, body: Any) -> list[int]:
        return [body]


class WebHookSide(_Http):
    action = "data_to_webserver"
    params: ClassVar = {"body": "${n}"}
    address = "url"


class OpenTsdbSide(_Http):
    action = "data_to_opentsdb"
    address = "server"
    ordered = False  # a point has its time

    def numbers(self, body: Any) -> list[int]:
        return [each["value"] for each in body]


class InfluxDb1Side(OtherSide):
    """Each request has one line for each point."""

    action = "data_to_influxdb"
    params: ClassVar[dict[str, Any]] = {"measurement": "m", "fields": {"n": "${n}i"}}
    address = "host"
    ordered = False  # a point has its time

    def __init__(self) -> None:
        self._server = HttpSink()
        self.port = self._server.port

    def value(self, host: str) -> str:
        return host

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "port": self.port, "database": "d"}

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def taken(self) -> list[int]:
        return [
            int(line.split("=")[1].split("i")[0])
            for body in self._server.bodies
            for line in body.decode().split("\n")
            if line
        ]


class InfluxDb2Side(InfluxDb1Side):
    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {self.address: host, "port": self.port, "org": "o", "bucket": "b", "token": "t"}


class ClickHouseSide(_Http):
    action = "data_to_clickhouse"
    params: ClassVar = {"sql": "INSERT INTO t VALUES (${n})"}
    address = "server"

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "database": "d"}

    def taken(self) -> list[int]:
        statements = [body.decode() for body in self._server.bodies if body != b"SELECT 1"]
        return [int(each) for text in statements for each in text.partition("(")[2].rstrip(")").split("),(")]


class TdengineSide(InfluxDb1Side):
    """Each request has one statement."""

    action = "data_to_tdengine"
    params: ClassVar = {"sql": "INSERT INTO t VALUES (${n})"}
    ordered = True

    def __init__(self) -> None:
        super().__init__()
        self._server.answer = _done

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {self.address: host, "port": self.port}

    def taken(self) -> list[int]:
        statements = [body.decode() for body in self._server.bodies if body.startswith(b"INSERT")]
        return [int(each) for text in statements for each in text.partition("(")[2].rstrip(")").split(") (")]


async def _done(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.json_response({"code": 0})


class BridgeSide(OtherSide):
    """A client has subscribed there before the bridge connects, also after a restart."""

    action = "data_to_mqtt_broker"
    params: ClassVar = {"payload_tmpl": "${n}", "qos": "1"}
    address = "address"

    def __init__(self) -> None:
        self._remote = Remote("taipan", Path())  # only Mosquitto writes files
        self.port = self._remote.port
        self._taken: list[int] = []
        self._listener: Peer | None = None
        self._listening: asyncio.Task[None] | None = None

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "mountpoint": "", "reconnect_interval": "50ms", "pool_size": 2}

    async def start(self) -> None:
        await self._remote.start()
        self._listener = await self._remote.client("#")
        self._listening = asyncio.get_running_loop().create_task(self._listen(self._listener))

    async def _listen(self, peer: Peer) -> None:
        while True:
            packet = await peer.expect_publish()
            self._taken.append(int(packet.payload))

    async def stop(self) -> None:
        if self._listening is not None and self._listener is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            await self._listener.close()
            self._listening = None
            await self._remote.stop()

    def taken(self) -> list[int]:
        return self._taken


class LinesSide(OtherSide):
    action = "data_to_lines"
    params: ClassVar = {"line": "${n}", "batch_size": 7}
    address = "server"

    def __init__(self) -> None:
        self._server = LineServer("t0ken")
        self.port = self._server.port

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "token": "t0ken"}

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    def taken(self) -> list[int]:
        return [int(each) for each in self._server.lines]


OTHER_SIDES: Final[dict[str, type[OtherSide]]] = {
    "web_hook": WebHookSide,
    "bridge_mqtt": BridgeSide,
    "backend_opentsdb": OpenTsdbSide,
    "backend_influxdb_http": InfluxDb1Side,
    "backend_influxdb_http_v2": InfluxDb2Side,
    "backend_clickhouse": ClickHouseSide,
    "backend_tdengine": TdengineSide,
    "line_server": LinesSide,
}
"""By resource type; ``line_server`` is that of the package ``tests/packages/lines``."""
