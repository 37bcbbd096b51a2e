"""HttpSource: a service of the operator, which is asked over HTTP who a client is and what it may do.

The questions are those of EMQX 4's ``emqx_auth_http``: 200 allows, 200 with the body ``ignore`` leaves it to the next
source, 4xx denies. Everything else is a failure: no answer in time, no connection, 5xx, a redirect.
"""

import asyncio
import json
import ssl
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from ...session.client_info import ClientInfo
from ..auth_result import AuthOutcome
from ..outside import ALLOW, DENY, IGNORE, OutsideSource, Verdict
from ..placeholders import filled_in, letters
from ..remote import RemoteSource, SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from .declaration import HttpAccessSettings
from .settings import tls_context

_MAX_BODY: Final = 65_536
_AWAY: Final = frozenset([502, 503, 504])
"""Statuses by which a proxy says that the service behind it is away."""


class _Question:
    """One of the three URLs, and the form of its requests."""

    __slots__ = ("method", "params", "setting", "url")

    def __init__(self, what: str, url: str, method: str, params: dict[str, str]) -> None:
        self.setting = f"access.http.{what}_url"
        self.url = url
        self.method = method.upper()
        self.params = tuple(params.items())

    def fill(self, values: dict[str, str]) -> dict[str, str]:
        return {name: filled_in(template, values) for name, template in self.params}

    def tells(self, letter: str) -> bool:
        """Return whether a parameter contains the placeholder with this letter."""
        return any(letter in letters(template) for _, template in self.params)


class HttpSource(RemoteSource):
    """Asks, over at most ``pool_size`` connections that stay open. Belongs to one event loop."""

    setting = "access.http.acl_url"
    title = "the HTTP service"
    without_decision = "leaves it to the next source"

    def __init__(self, settings: HttpAccessSettings, context: SourceContext) -> None:
        """Raises ``ValueError`` for a ``cafile`` that cannot be used."""
        super().__init__("http", settings, context)
        self.settings = settings
        self._auth = _Question("auth", settings.auth_url, settings.auth_method, settings.auth_params)
        self._super = _Question(
            "superuser", settings.superuser_url, settings.superuser_method, settings.superuser_params
        )
        self._acl = _Question("acl", settings.acl_url, settings.acl_method, settings.acl_params)
        self._tls = tls_context(settings)
        self._session: aiohttp.ClientSession | None = None

    def authenticator(self) -> "HttpSource | None":
        return self if self._auth.url else None

    def authorizer(self) -> OutsideSource | None:
        return self if self._acl.url else None

    @property
    def knows_superusers(self) -> bool:
        return bool(self._super.url)

    # ------------------------------------------------------------- questions

    async def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        """Return whether the service accepts the client, even an anonymous one. ``None``: the next source decides."""
        values = self.facts(client, client.username)
        # ``urlencode`` preserves bytes that are not UTF-8.
        values["P"] = (password or b"").decode("utf-8", "surrogateescape")
        verdict = await self._ask(self._auth, values)
        if verdict.decision != ALLOW:
            return self.not_let_in(verdict, client, password)
        # The service has not decided about data that it did not receive.
        client.proved_by = self.name if self._auth.tells("u") and client.username else ""
        superuser = await self.is_superuser(client)
        return AuthOutcome(is_superuser=superuser, proved_by=client.proved_by, proves_client_id=self._auth.tells("c"))

    async def is_superuser(self, client: ClientInfo) -> bool:
        """Return whether the service answers 200; after a failure, False."""
        if not self.knows_superusers:
            return False
        verdict = await self._ask(self._super, self.facts(client, client.user))
        return verdict.decision == ALLOW and not verdict.failure

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Return whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter."""
        values = self.facts(client, client.user)
        values["A"] = "2" if action == "publish" else "1"
        values["t"] = topic
        return await self._ask(self._acl, values)

    async def _ask(self, question: _Question, values: dict[str, str]) -> Verdict:
        async def answer() -> Verdict:
            status, body = await self._exchange(question, values)
            if status == 200:
                return Verdict(IGNORE if body == b"ignore" else ALLOW, "", question.setting)
            if 400 <= status < 500:
                return Verdict(DENY, "", question.setting)
            raise SourceFailed(f"status_{status}", away=status in _AWAY)

        return await self.ask(question.setting, answer)

    async def _exchange(self, question: _Question, values: dict[str, str]) -> tuple[int, bytes]:
        try:
            return await self._send(question, values)
        except aiohttp.ConnectionTimeoutError:
            raise SourceFailed("timeout", "access.http.connect_timeout", away=True) from None
        except TimeoutError:
            raise
        except aiohttp.ClientConnectorError as error:
            raise SourceFailed(NO_CONNECTION, detail=str(error.os_error), away=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: an invalid URL, or a header that cannot be sent
            raise SourceFailed("broken", detail=type(error).__name__, away=not isinstance(error, ValueError)) from None

    async def _send(self, question: _Question, values: dict[str, str]) -> tuple[int, bytes]:
        params = question.fill(values)
        url = URL(question.url)
        headers: dict[str, str] = {}
        data: bytes | None = None
        if question.method == "GET":
            query = urlencode(params, errors="surrogateescape")
            joint = "&" if url.query_string else "?"
            url = URL(f"{url.with_fragment(None)}{joint if query else ''}{query}", encoded=True)
        elif self.settings.body == "json":
            data = json.dumps(params).encode()
            headers["Content-Type"] = "application/json"
        else:
            data = urlencode(params, errors="surrogateescape").encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if self._session is None:
            self._session = self._new_session()
        send = partial(self._answer, self._session, question.method, url, data, {**headers, **self.settings.headers})
        try:
            return await send()
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # The service may close a connection just as it is used again.
            return await send()

    @staticmethod
    async def _answer(
        session: aiohttp.ClientSession, method: str, url: URL, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        async with session.request(method, url, data=data, headers=headers, allow_redirects=False) as response:
            body = b""
            # Read to its end: only then can the connection be used for the next question.
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _MAX_BODY:
                    break
            return response.status, body.strip()

    async def connect(self) -> None:
        """Open a connection to each server of the URLs, and close it: the service may count requests."""
        urls = [URL(each.url) for each in (self._auth, self._super, self._acl) if each.url]
        for server in dict.fromkeys(url.origin() for url in urls):
            tls = (
                (ssl.create_default_context() if self._tls is True else self._tls) if server.scheme == "https" else None
            )
            try:
                async with asyncio.timeout(self.settings.connect_timeout):
                    _, writer = await asyncio.open_connection(server.host, server.port, ssl=tls)
            except TimeoutError:
                raise SourceFailed("timeout", "access.http.connect_timeout") from None
            except (OSError, ValueError) as error:
                raise SourceFailed(NO_CONNECTION, detail=str(error)) from None
            writer.transport.abort()

    def _new_session(self) -> aiohttp.ClientSession:
        settings = self.settings
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.pool_size, ssl=self._tls, keepalive_timeout=60.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        )

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        return None if self._session is None else self._session.close()
