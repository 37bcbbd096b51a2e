"""OpenIdLogins: logins by OpenID Connect, with the authorization code flow and PKCE.

A login that has begun costs no memory: the browser keeps a random value and its time in a cookie, and ``state``,
``nonce`` and the PKCE verifier are derived from it with a key of this process. A callback is accepted only from the
browser that has begun the login, so no page can log a reader in as another user."""

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

from yarl import URL

from taipan.broker.access.guesses import address_group
from taipan.broker.observability.log_text import one_line
from taipan.broker.server import Server

from ...configuration.openid import OpenIdSettings
from ..caller import Caller
from ..dashboard_sessions import DashboardSessions
from ..dashboard_users import DashboardUsers
from .id_token import verify_id_token
from .person import Person, lacks, person_of
from .provider import OpenIdProvider
from .refused import OpenIdRefused

logger = logging.getLogger(__name__)

LIFETIME: Final = 600
"""Seconds from the click on the button until the callback."""
MAX_AT_A_TIME: Final = 32
"""Maximum number of callbacks for which the node asks the provider at a time."""
PATH: Final = "/api/v4/auth/openid"
_MAX_CODE: Final = 4096
_MAX_COOKIE: Final = 128
_SAY_EVERY: Final = 10.0


class Begun(NamedTuple):
    """A login that has begun: the browser keeps ``cookie`` and opens ``url``, the provider's."""

    cookie: str
    url: str


class OpenIdLogins:
    """The logins of ``[dashboard.openid]``."""

    lifetime: Final = LIFETIME

    def __init__(
        self, server: Server, settings: OpenIdSettings, users: DashboardUsers, sessions: DashboardSessions
    ) -> None:
        """Raises ``ValueError`` for a file that cannot be used."""
        self.settings = settings
        self._server = server
        self._users = users
        self._sessions = sessions
        self._provider = OpenIdProvider(settings, server.clock)
        self._key = secrets.token_bytes(32)
        self._open = asyncio.Semaphore(MAX_AT_A_TIME)
        # reason -> when the next line may be logged, number of failures since the last line
        self._said: dict[str, tuple[float, int]] = {}
        origin = str(URL(settings.dashboard_url).origin())
        self.is_secure = origin.startswith("https:")
        """Whether browsers open the dashboard by HTTPS."""
        self.start_url = f"{origin}{PATH}/start"
        self._redirect_uri = f"{origin}{PATH}/callback"
        self._page = settings.dashboard_url.rstrip("/") + "/"

    def page(self, reason: str = "") -> str:
        """Return the URL of the dashboard; with a ``reason``, the page explains it."""
        return f"{self._page}#/?openid={reason}" if reason else self._page

    async def begin(self, address: str) -> Begun:
        """Begin a login. Raises OpenIdRefused."""
        try:
            metadata = await self._provider.metadata()
        except OpenIdRefused as refused:
            raise self._refuse(refused, address) from None
        cookie = f"{int(self._server.clock.now())}.{secrets.token_urlsafe(32)}"
        challenge = hashlib.sha256(self._derived("verifier", cookie).encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": self._derived("state", cookie),
            "nonce": self._derived("nonce", cookie),
            "code_challenge": _base64(challenge),
            "code_challenge_method": "S256",
        }
        return Begun(cookie, _with(metadata.authorization_endpoint, query))

    async def finish(self, query: Mapping[str, str], cookie: str, address: str) -> Caller:
        """Complete a login: return the caller of its new session. ``query``: the query of the callback. Raises
        OpenIdRefused."""
        try:
            person = await self._person(query, cookie, address)
        except OpenIdRefused as refused:
            raise self._refuse(refused, address) from None
        return self._sessions.begin_openid(person.name, person.role, address)

    async def logout_url(self) -> str:
        """Return the URL at which the user also logs out at the provider, empty if there is none."""
        if not self.settings.logout_at_provider:
            return ""
        try:
            end = (await self._provider.metadata()).end_session_endpoint
        except OpenIdRefused:
            return ""
        query = {"client_id": self.settings.client_id, "post_logout_redirect_uri": self._page}
        return _with(end, query) if end else ""

    async def _person(self, query: Mapping[str, str], cookie: str, address: str) -> Person:
        self._check_state(query.get("state", ""), cookie)
        if "error" in query:
            detail = f"{query['error'][:50]} {query.get('error_description', '')[:100]}"
            raise OpenIdRefused("denied", one_line(detail.strip()))
        if "iss" not in query:
            if (await self._provider.metadata()).authorization_response_iss_parameter_supported:
                raise OpenIdRefused("token", "iss: missing, though the provider always sends it")
        elif query["iss"] != self.settings.issuer:
            raise OpenIdRefused("token", "iss: the answer is from another issuer", "issuer")
        code = query.get("code", "")
        if not 0 < len(code) <= _MAX_CODE:
            raise OpenIdRefused("token", "code: missing or too long")
        if not await self._users.wait_after_guesses(address):
            raise OpenIdRefused("busy", "too many logins are waiting after failed attempts")
        if self._open.locked():
            raise OpenIdRefused("busy", f"{MAX_AT_A_TIME} logins at a time")
        async with self._open:
            try:
                person = await self._ask(code, cookie)
            except OpenIdRefused as refused:
                if refused.reason == "token":
                    self._users.note_login(address, right=False)
                raise
        self._users.note_login(address, right=True)
        return person

    async def _ask(self, code: str, cookie: str) -> Person:
        settings, clock = self.settings, self._server.clock
        tokens = await self._provider.redeem(code, self._derived("verifier", cookie), self._redirect_uri)
        nonce = self._derived("nonce", cookie)
        claims = await verify_id_token(tokens.id_token, self._provider, settings, nonce, clock.wall())
        if lacks(claims, settings):
            more = await self._provider.userinfo(tokens.access_token)
            if more:
                if more.get("sub") != claims["sub"]:
                    raise OpenIdRefused("token", "userinfo: sub belongs to another user")
                claims = {**more, **claims}
        return person_of(claims, settings)

    def _check_state(self, state: str, cookie: str) -> None:
        if not cookie or len(cookie) > _MAX_COOKIE:
            raise OpenIdRefused(
                "state", "this browser did not start the login, or started it at another address", "dashboard_url"
            )
        wanted = self._derived("state", cookie)
        if not hmac.compare_digest(state.encode("utf-8", "surrogatepass"), wanted.encode()):
            raise OpenIdRefused("state", "the state belongs to another login")
        # The time is part of the state, so nobody has changed it.
        if self._server.clock.now() >= int(cookie.partition(".")[0]) + LIFETIME:
            raise OpenIdRefused("state", f"the login started more than {LIFETIME} seconds ago")

    def _derived(self, purpose: str, cookie: str) -> str:
        text = f"{purpose} {cookie}".encode("utf-8", "surrogatepass")
        return _base64(hmac.digest(self._key, text, "sha256"))

    def _refuse(self, refused: OpenIdRefused, address: str) -> OpenIdRefused:
        """Count and log a failure."""
        self._server.metrics.refusals.add(f"dashboard_openid_{refused.reason}")
        now = self._server.clock.now()
        when, count = self._said.get(refused.reason, (0.0, 0))
        if now < when:
            self._said[refused.reason] = (when, count + 1)
        else:
            self._said[refused.reason] = (now + _SAY_EVERY, 0)
            logger.warning(
                "dashboard_openid_refused reason=%s count=%s setting=%s address=%s detail=%s",
                refused.reason,
                count + 1,
                refused.setting,
                address_group(address),
                refused.detail,
            )
        return refused


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _with(url: str, query: dict[str, str]) -> str:
    """Return the URL with more parameters; it may have some already."""
    joint = "&" if "?" in url else "?"
    return f"{url}{joint}{urlencode(query)}"
