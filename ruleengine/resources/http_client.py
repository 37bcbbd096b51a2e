"""HttpClient: requests of a resource, with limits for everything and without refused addresses."""

import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Final

import aiohttp
from yarl import URL

from ..network.allowed_networks import Networks, reason_of
from .http_reply import BadRequest, HttpReply
from .resource import ResourceError

_ENCODINGS: Final = {"gzip": 47, "x-gzip": 47, "deflate": 47}
"""Supported content codings, with the window for zlib: gzip or zlib, detected by the first bytes."""


class _Attempt:
    """One request. ``reused``: whether its connection had an earlier request."""

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


class HttpClient:
    """Sends requests to one server. Follows no redirect, keeps no cookie, uses no proxy of the environment.

    A server may close a connection just as the next request is sent on it. A request that fails on a reused connection
    before any answer is sent once more, on a new connection; this does not count as a failure.
    """

    def __init__(
        self,
        networks: Networks,
        connections: int,
        connect_timeout: float,
        request_timeout: float,
        max_reply: int,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        keep_open: bool = True,
    ) -> None:
        """Requires the running loop. ``keep_open`` False: each request has its own connection."""
        self._max_reply = max_reply
        self._server_hostname = server_hostname
        self._timeout = aiohttp.ClientTimeout(
            total=connect_timeout + request_timeout, sock_connect=connect_timeout, sock_read=request_timeout
        )
        self._networks = networks
        self._connections = connections
        self._tls = tls
        self._session = self._new_session(keep_open)
        self._unshared: aiohttp.ClientSession | None = None

    def _new_session(self, keep_open: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            ssl=self._tls if self._tls is not None else True,
            force_close=not keep_open,
            # Each connection resolves the name again, and the result is checked.
            use_dns_cache=False,
            socket_factory=self._networks.make_socket,
        )
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_reused)
        trace.on_connection_create_end.append(_created)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Content-Type", "Accept-Encoding", "User-Agent"),
            trace_configs=[trace],
        )

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HttpReply:
        """Return the server's answer. Raises ResourceError if there is none; BadRequest if nothing could be sent."""
        try:
            async with self._answered(method, url, headers, body) as response:
                return HttpReply(response.status, await self._read(response))
        except aiohttp.InvalidURL as error:
            raise BadRequest(reason_of(error)) from error
        except (aiohttp.ClientError, OSError) as error:  # including an invalid certificate, which is a ValueError
            raise ResourceError(reason_of(error)) from error
        except ValueError as error:  # aiohttp raises it for invalid headers
            raise BadRequest(reason_of(error)) from error

    @asynccontextmanager
    async def _answered(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        attempt = _Attempt()
        try:
            response = await self._request(self._session, attempt, method, url, headers, body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError) as error:
            # ServerDisconnectedError contains the beginning of the answer, if there was one.
            answering = isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)
            if not attempt.reused or answering:
                raise
            if self._unshared is None:
                self._unshared = self._new_session(keep_open=False)
            response = await self._request(self._unshared, attempt, method, url, headers, body)
        async with response:
            yield response

    async def _request(
        self,
        session: aiohttp.ClientSession,
        attempt: _Attempt,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        return await session.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            data=body,
            allow_redirects=False,
            server_hostname=self._server_hostname,
            trace_request_ctx=attempt,
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the decoded body, up to ``max_reply``: no more is read or decoded."""
        window = _ENCODINGS.get(response.headers.get("Content-Encoding", "").strip().lower())
        decoder = None if window is None else zlib.decompressobj(window)
        parts: list[bytes] = []
        left, unread = self._max_reply, self._max_reply
        async for part in response.content.iter_any():
            unread -= len(part)
            if decoder is not None:
                try:
                    part = decoder.decompress(part, left)
                except zlib.error:
                    left = 0  # the rest cannot be decoded either
                    part = b""
            parts.append(part[:left])
            left -= len(part)
            if unread < 0 or (decoder is not None and left <= 0):
                # The rest is not needed, so do not wait for it.
                response.close()
                break
        return b"".join(parts)

    async def close(self) -> None:
        await self._session.close()
        if self._unshared is not None:
            await self._unshared.close()


async def _reused(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.reused = True


async def _created(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.reused = False
