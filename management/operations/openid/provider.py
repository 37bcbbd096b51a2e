"""OpenIdProvider: the conversation with a provider over HTTPS, with limits for the size and the time of each answer.

What the provider publishes, its discovery document and its keys, is kept for an hour. It is fetched when a login needs
it: a node without logins sends nothing."""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote_plus

import aiohttp
import msgspec
from yarl import URL

from taipan.broker.access.key_set import KeySet
from taipan.broker.loop.clock import Clock
from taipan.broker.observability.log_text import one_line

from ...configuration.openid import OpenIdSettings, check_provider_url, read_secret, tls_context
from .refused import OpenIdRefused

if TYPE_CHECKING:
    from taipan.broker.access.key_set import VerificationKey

logger = logging.getLogger(__name__)

MAX_ANSWER: Final = 262_144
"""Maximum size in bytes of an answer of the provider."""
KEPT: Final = 3600.0
"""Seconds after which the discovery document and the keys are fetched again."""
RETRY: Final = 5.0
"""Seconds after a failure during which logins fail without another attempt."""
NEW_KEYS_EVERY: Final = 10.0
"""Seconds between two requests for keys because of tokens with unknown keys."""
_MAX_DETAIL: Final = 200
_REQUIRED: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_OPTIONAL: Final = ("userinfo_endpoint", "end_session_endpoint")

T = TypeVar("T")


class Metadata(msgspec.Struct, frozen=True):
    """The part of a discovery document that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class Tokens(msgspec.Struct, frozen=True):
    """The answer of the token endpoint."""

    id_token: str
    access_token: str = ""


class OpenIdProviderFailed(OpenIdRefused):
    """The provider cannot be reached, or its answer cannot be used."""

    def __init__(self, detail: str, setting: str = "issuer") -> None:
        super().__init__("provider", one_line(detail[:_MAX_DETAIL]), setting)


class _Kept(Generic[T]):
    """Something that was fetched. Several callers at a time share one request; after a failure, the old value remains
    valid, and the next request follows ``RETRY`` seconds later."""

    def __init__(self, clock: Clock, fetch: Callable[[], Awaitable[T]]) -> None:
        self._clock = clock
        self._fetch = fetch
        self._lock = asyncio.Lock()
        self._value: T | None = None
        self._failure: OpenIdProviderFailed | None = None
        self._fetched_at = 0.0
        self._fresh_until = 0.0

    async def get(self, older_than: float | None = None) -> T:
        """Return the value; fetch it if there is none, or if it is old. ``older_than``: fetch it also if it is older
        than this number of seconds."""
        async with self._lock:
            now = self._clock.now()
            if older_than is not None and now - self._fetched_at >= older_than and self._failure is None:
                self._fresh_until = now
            if now >= self._fresh_until:
                await self._renew()
            if self._value is None:
                assert self._failure is not None
                raise self._failure
            return self._value

    async def _renew(self) -> None:
        try:
            self._value = await self._fetch()
        except OpenIdProviderFailed as failure:
            # Counted from now, or those who wait would ask one after the other.
            self._failure, self._fresh_until = failure, self._clock.now() + RETRY
            if self._value is not None:
                logger.warning("openid_not_refreshed setting=%s detail=%s", failure.setting, failure.detail)
        else:
            self._fetched_at = self._clock.now()
            self._failure, self._fresh_until = None, self._fetched_at + KEPT


class OpenIdProvider:
    """The provider of ``[dashboard.openid]``."""

    def __init__(self, settings: OpenIdSettings, clock: Clock) -> None:
        """Raises ``ValueError`` for a file that cannot be used."""
        self._settings = settings
        self._secret = read_secret(settings)
        self._tls = tls_context(settings)
        self._metadata = _Kept(clock, self._fetch_metadata)
        self._keys = _Kept(clock, self._fetch_keys)

    async def metadata(self) -> Metadata:
        """Return the discovery document. Raises OpenIdProviderFailed."""
        return await self._metadata.get()

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Exchange a code for tokens. Raises OpenIdRefused."""
        settings, metadata = self._settings, await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        if self._secret and "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(self._secret)}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form["client_id"] = settings.client_id
            if self._secret:
                form["client_secret"] = self._secret
        status, body = await self._ask("POST", metadata.token_endpoint, headers, form)
        if status != 200:
            error = _error_of(body)
            if error == "invalid_grant":
                raise OpenIdRefused("token", "invalid_grant: the provider does not accept the code")
            setting = "client_secret" if error in ("invalid_client", "unauthorized_client") else "issuer"
            raise OpenIdProviderFailed(f"token_endpoint: status {status} {error}", setting)
        return _decoded(body, Tokens, "token_endpoint")

    async def key(self, algorithm: str, key_id: object) -> "VerificationKey | None":
        """Return the key that verifies a token, after another look at the keys if it is not known; ``None``: there is
        no such key. Raises OpenIdProviderFailed."""
        found = (await self._keys.get()).find(algorithm, key_id)
        if found is None:
            found = (await self._keys.get(older_than=NEW_KEYS_EVERY)).find(algorithm, key_id)
        return found

    async def userinfo(self, access_token: str) -> dict[str, Any]:
        """Return the claims of the userinfo endpoint, none if the provider has no such endpoint. Raises
        OpenIdProviderFailed."""
        url = (await self.metadata()).userinfo_endpoint
        if not url or not access_token.isascii() or not access_token.isprintable():
            return {}
        status, body = await self._ask("GET", url, {"Authorization": f"Bearer {access_token}"})
        if status != 200:
            raise OpenIdProviderFailed(f"userinfo_endpoint: status {status}")
        return _decoded(body, dict[str, Any], "userinfo_endpoint")

    async def try_out(self) -> None:
        """Fetch the discovery document and the keys. Raises OpenIdProviderFailed."""
        await self._metadata.get()
        await self._keys.get()

    async def _fetch_metadata(self) -> Metadata:
        issuer = self._settings.issuer
        status, body = await self._ask("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if status != 200:
            raise OpenIdProviderFailed(f"discovery: status {status}")
        metadata = _decoded(body, Metadata, "discovery")
        if metadata.issuer != issuer:
            raise OpenIdProviderFailed(f"discovery: the issuer is {metadata.issuer!r}, not {issuer!r}")
        for name in (*_REQUIRED, *_OPTIONAL):
            url = getattr(metadata, name)
            if url or name in _REQUIRED:
                try:
                    check_provider_url(url, https=issuer.lower().startswith("https:"))
                except ValueError as error:
                    raise OpenIdProviderFailed(f"discovery: {name}: {error}") from None
        return metadata

    async def _fetch_keys(self) -> KeySet:
        status, body = await self._ask("GET", (await self.metadata()).jwks_uri)
        if status != 200:
            raise OpenIdProviderFailed(f"jwks_uri: status {status}")
        try:
            return KeySet.parse(body)
        except ValueError as error:
            raise OpenIdProviderFailed(f"jwks_uri: {error}") from None

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, form: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return status and body. Follows no redirect. Raises OpenIdProviderFailed."""
        timeout = self._settings.timeout
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, force_close=True),
            timeout=aiohttp.ClientTimeout(total=timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json"},
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
        )
        where = URL(url).path
        try:
            async with (
                session,
                session.request(method, url, headers=headers, data=form, allow_redirects=False) as response,
            ):
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_ANSWER:
                        raise OpenIdProviderFailed(f"{where}: the answer is longer than {MAX_ANSWER} bytes")
                return response.status, bytes(body)
        except TimeoutError:
            raise OpenIdProviderFailed(f"{where}: no answer within {timeout:g} seconds", "timeout") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = str(error.os_error) if isinstance(error, aiohttp.ClientConnectorError) else type(error).__name__
            raise OpenIdProviderFailed(f"{where}: {reason}") from None


def _decoded(body: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OpenIdProviderFailed(f"{where}: {error}") from None


def _error_of(body: bytes) -> str:
    """Return the ``error`` of an OAuth 2.0 answer, empty if there is none."""
    try:
        error = msgspec.json.decode(body).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, RecursionError):
        return ""
    return error[:_MAX_DETAIL] if isinstance(error, str) else ""
