"""HttpSink: the common part of sinks with an HTTP server."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..delivery.buffer import DeliveryOutcome
from ..network.allowed_networks import Networks
from .http_reply import BadRequest, HttpReply, host_and_port
from .resource import ResourceError
from .sink import Sink, SinkContext

if TYPE_CHECKING:
    from .http_client import HttpClient


class HttpSink(Sink):
    """An HTTP client with one connection for each lane."""

    def __init__(
        self,
        context: SinkContext,
        url: str,
        connect_timeout: float,
        response_timeout: float,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        keep_open: bool = True,
    ) -> None:
        """``url``: an http or https URL with a host. Timeouts are in seconds."""
        self._noticed = context.noticed
        self._settings = context.node.settings
        self._networks = Networks(self._settings.refused_networks)
        self._connections: int = context.config["pool_size"]
        self._host, self._port = host_and_port(url)
        self._connect_timeout = connect_timeout
        self._response_timeout = response_timeout
        self._tls = tls
        self._server_hostname = server_hostname
        self._keep_open = keep_open
        self._client: HttpClient | None = None

    async def connect(self) -> None:
        from .http_client import HttpClient  # imported here: a node without such a resource needs no aiohttp

        if self._client is None:
            self._client = HttpClient(
                self._networks,
                self._connections,
                self._connect_timeout,
                self._response_timeout,
                self._settings.max_reply_bytes,
                self._tls,
                self._server_hostname,
                self._keep_open,
            )

    async def test(self) -> None:
        timeout = self._settings.liveness_timeout
        await self._networks.probe(self._host, self._port, timeout, self._tls, self._server_hostname)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpReply | DeliveryOutcome:
        """Return the server's answer, or a DeliveryOutcome if there is none."""
        assert self._client is not None
        try:
            reply = await self._client.send(method, url, headers, body)
        except BadRequest as error:
            return DeliveryOutcome(str(error))
        except ResourceError as error:
            return DeliveryOutcome(str(error), retry=True, unreachable=True)
        self._noticed()
        return reply
