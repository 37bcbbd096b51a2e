"""LaneConnections: one connection for each lane of a sink, and one that only checks whether the server is alive."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from ..network.allowed_networks import Networks
from ..network.tls import tls_params
from ..params import Param, Text
from .resource import ResourceError
from .sink import limit_params

PROBE: Final = -1
"""The lane of the connection that only checks whether the server is alive."""


class LaneConnection(ABC):
    """A connection of one lane."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the other side has closed the connection."""

    @abstractmethod
    def abort(self) -> None:
        """Close without waiting."""


_ConnectionT = TypeVar("_ConnectionT", bound=LaneConnection)
_T = TypeVar("_T")


class LaneConnections(Generic[_ConnectionT]):
    """``open`` connects and logs in; it raises OSError or ResourceError. ``reconnects``: whether another connection may
    be opened after one was lost."""

    def __init__(self, open: Callable[[], Awaitable[_ConnectionT]], connect_timeout: float, reconnects: bool) -> None:
        self._open = open
        self._connect_timeout = connect_timeout
        self._reconnects = reconnects
        self._lost = ""
        self._connections: dict[int, _ConnectionT] = {}

    async def get(self, lane: int) -> _ConnectionT:
        """Return the connection of a lane. Raises OSError or ResourceError."""
        found = self._connections.get(lane)
        if found is not None and not found.closed:
            return found
        if found is not None:
            self.drop(lane)
        if self._lost and not self._reconnects:
            raise ResourceError(self._lost)
        async with asyncio.timeout(self._connect_timeout):
            made = await self._open()
        self._connections[lane] = made
        return made

    def drop(self, lane: int) -> None:
        """Close a connection that has ended, or whose state is unknown."""
        found = self._connections.pop(lane, None)
        if found is not None:
            self._lost = "the connection has been lost, and auto_reconnect is false: restart the resource"
            with contextlib.suppress(OSError):
                found.abort()

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()
        await asyncio.sleep(0)


async def to_first_address(networks: Networks, host: str, port: int, open: Callable[[str], Awaitable[_T]]) -> _T:
    """Return what ``open`` returns for the first IP address of a host for which it does not raise OSError or
    ResourceError. Raises the first of these errors."""
    refusal: Exception | None = None
    for address in await networks.addresses(host, port):
        try:
            return await open(address)
        except (OSError, ResourceError) as error:
            refusal = refusal or error
    raise refusal or OSError(f"{host} has no address")


def lane_params(order: int, request: Text, reconnects: bool = True) -> tuple[Param, ...]:
    """Return ``pool_size``, ``auto_reconnect`` if ``reconnects``, ``ssl`` and the parameters of TLS, the time limits,
    and the limits of the buffer; numbered from ``order``. ``request``: what ``request_timeout`` limits."""
    reconnect = Param("auto_reconnect", order + 1, "boolean", Text("Reconnect", "自动重连"),
                      Text("Connect again after a connection was lost; false: only when the resource is restarted",
                           "连接断开后自动重连；false 则需重启资源"), default=True)  # fmt: skip
    tls = tls_params(order + 3)
    after = order + 3 + len(tls)
    return (
        Param("pool_size", order, "number", Text("Pool Size", "连接池大小"),
              Text("Connections that write; one more checks the server", "用于写入的连接数，另有一个用于检测"),
              default=8, range=(1, 256)),
        *([reconnect] if reconnects else ()),
        Param("ssl", order + 2, "boolean", Text("TLS", "TLS"),
              Text("Connect by TLS; a server without it is refused", "使用 TLS 连接，不支持 TLS 的服务器将被拒绝"),
              default=False),
        *tls,
        Param("connect_timeout", after, "string", Text("Connect Timeout", "连接超时"),
              Text("Time limit for connecting and logging in", "连接并登录的最长时间"), default="5s"),
        Param("request_timeout", after + 1, "string", Text("Request Timeout", "请求超时"), request, default="30s"),
        *limit_params(after + 2),
    )  # fmt: skip


def missing(library: str, extra: str) -> ResourceError:
    """Return the error for a library that is not installed."""
    return ResourceError(f"{library} is not installed: pip install 'taipan-mqtt[{extra}]'")
