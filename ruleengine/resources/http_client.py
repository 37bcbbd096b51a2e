"""HttpClient: requests of a resource, with bounds on everything and no address that is refused."""

import ssl
from collections.abc import Mapping

import aiohttp
from yarl import URL

from ..allowed_networks import Networks, reason_of
from .http_reply import BadRequest, Reply
from .resource import ResourceError


class HttpClient:
    """Sends requests to one server. Follows no redirect, keeps no cookie, uses no proxy of the environment."""

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
        """Needs the running loop. ``keep_open`` False: each request has a connection of its own."""
        self._max_reply = max_reply
        self._server_hostname = server_hostname
        self._timeout = aiohttp.ClientTimeout(
            total=connect_timeout + request_timeout, sock_connect=connect_timeout, sock_read=request_timeout
        )
        connector = aiohttp.TCPConnector(
            limit=connections,
            ssl=tls if tls is not None else True,
            force_close=not keep_open,
            # Each connection resolves anew, and what it resolves to is checked.
            use_dns_cache=False,
            socket_factory=networks.make_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Content-Type", "Accept-Encoding", "User-Agent"),
        )

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """The server's answer. Raises ResourceError where there is none; BadRequest where nothing could be sent."""
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                server_hostname=self._server_hostname,
            ) as response:
                return Reply(response.status, await self._read(response))
        except aiohttp.InvalidURL as error:
            raise BadRequest(reason_of(error)) from error
        except (aiohttp.ClientError, OSError) as error:  # also a certificate that does not hold, which is a ValueError
            raise ResourceError(reason_of(error)) from error
        except ValueError as error:  # aiohttp raises it for invalid headers
            raise BadRequest(reason_of(error)) from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._max_reply:
                # The rest is not wanted, and not waited for either.
                response.close()
                break
        return b"".join(parts)[: self._max_reply]

    async def close(self) -> None:
        await self._session.close()
