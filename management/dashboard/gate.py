"""DashboardGate: access control for the dashboard's server. Its users authenticate by session or by name and
password."""

from typing import Final

from aiohttp import web

from ..http.credentials import CredentialsCheck, basic_of
from ..http.session_cookie import HEADER, token_of
from ..operations.caller import Caller
from ..operations.dashboard_sessions import DashboardSessions
from ..operations.dashboard_users import DashboardUsers
from ..operations.refusal import NO_CREDENTIALS, Refusal


class DashboardGate:
    """``applications``: on the management port, HTTP Basic contains AppID and AppSecret; ``None``: it contains name and
    password of a dashboard user, as EMQX 4's dashboard sends them."""

    has_login: Final = True

    def __init__(
        self, users: DashboardUsers, sessions: DashboardSessions, applications: CredentialsCheck | None = None
    ) -> None:
        self._users = users
        self._sessions = sessions
        self._applications = applications

    async def check(self, request: web.Request) -> Caller:
        """Return the caller. A session takes precedence. Raises Refusal."""
        address = request.remote or ""
        token = token_of(request)
        if token:
            caller = self._sessions.find(token, address)
            if caller is not None:
                return caller
        if "Authorization" not in request.headers:
            if token:
                raise Refusal(NO_CREDENTIALS, "the session has ended: POST /auth starts a new one")
            raise Refusal(
                NO_CREDENTIALS, f"log in: POST /auth; requests that rely on its cookie carry the header {HEADER}"
            )
        if self._applications is not None:
            return self._applications.check(request)
        name, password = basic_of(request, "HTTP Basic credentials are required: name and password of a dashboard user")
        return self._sessions.without_session(await self._users.log_in(name, password, address), address)
