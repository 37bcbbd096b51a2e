"""Sessions of dashboard users, from login to logout or expiry.

They are only in memory: a restart ends them, and other nodes do not know them."""

import hashlib
import logging
import secrets
from typing import Final

from taipan.broker.server import Server

from ..configuration.settings import DashboardSettings
from .caller import OPENID, PASSWORD, SESSION, Caller
from .dashboard_users import DashboardUser, DashboardUsers

logger = logging.getLogger(__name__)

EXPIRED: Final = "expired"
LOGGED_OUT: Final = "logged_out"
USER_CHANGED: Final = "user_changed"
TOO_MANY: Final = "dashboard.max_sessions"
_SWEEP_EVERY: Final = 1.0


class _Session:
    """``revision``: the revision of its user; ``None``: the user logged in by OpenID Connect and is not a row here.
    ``ends``: expiry on the node's clock; ``expires_at``: the same in Unix seconds. ``ended``: why the session has
    ended."""

    __slots__ = ("address", "ended", "ends", "expires_at", "name", "revision", "role")

    def __init__(
        self, name: str, role: str, revision: int | None, address: str, ends: float, expires_at: float
    ) -> None:
        self.name = name
        self.role = role
        self.revision = revision
        self.address = address
        self.ends = ends
        self.expires_at = expires_at
        self.ended = ""

    def why_ended(self) -> str:
        return self.ended


class DashboardSessions:
    """At most ``dashboard.max_sessions``.

    A session ends ``dashboard.session_lifetime`` seconds after its login, at logout, and when its user is deleted or
    gets another password or role. ``logins``, ``changes``: numbers of logins and of changes since the start."""

    def __init__(self, server: Server, settings: DashboardSettings, users: DashboardUsers) -> None:
        self._server = server
        self._settings = settings
        self._users = users
        self.logins = 0
        self.changes = 0
        # By the hash of the token, so that the content of memory does not grant access. The oldest first.
        self._sessions: dict[bytes, _Session] = {}
        users.on_changed.append(self._user_changed)

    def start(self) -> None:
        """Start to end expired sessions, including those that are no longer used."""
        self._server.ticker.every(_SWEEP_EVERY, lambda now: self._sweep())

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: DashboardUser, address: str) -> Caller:
        """Start a session for a user who has logged in."""
        return self._begin(user.name, user.role, user.revision, address)

    def begin_openid(self, name: str, role: str, address: str) -> Caller:
        """Start a session for a user who has logged in by OpenID Connect. No dashboard user has such a name."""
        return self._begin(name, role, None, address)

    def _begin(self, name: str, role: str, revision: int | None, address: str) -> Caller:
        self._sweep()
        if len(self._sessions) >= self._settings.max_sessions:
            counts: dict[str, int] = {}
            for each in self._sessions.values():
                counts[each.name] = counts.get(each.name, 0) + 1
            most = max(counts, key=counts.__getitem__)
            self._end(next(key for key, each in self._sessions.items() if each.name == most), TOO_MANY)
        clock, lifetime = self._server.clock, self._settings.session_lifetime
        session = _Session(name, role, revision, address, clock.now() + lifetime, clock.wall() + lifetime)
        token = secrets.token_urlsafe(32)
        self.logins += 1
        self._sessions[_key(token)] = session
        logger.info("dashboard_login username=%s role=%s address=%s", name, role, address)
        return self._caller(session, address, token)

    def find(self, token: str, address: str) -> Caller | None:
        """Return the caller of a session while it is valid."""
        key = _key(token)
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.revision is not None and not self._is_current(session):
            self._end(key, USER_CHANGED)
        elif self._server.clock.now() >= session.ends:
            self._end(key, EXPIRED)
        else:
            return self._caller(session, address, token)
        return None

    def _is_current(self, session: _Session) -> bool:
        user = self._users.get(session.name)
        return user is not None and user.revision == session.revision

    def end(self, token: str) -> bool:
        """End a session (logout); return whether it existed."""
        return self._end(_key(token), LOGGED_OUT)

    def without_session(self, user: DashboardUser, address: str) -> Caller:
        """Return the caller who sends name and password with each request."""

        def ended() -> str:
            now = self._users.get(user.name)
            return "" if now is not None and now.revision == user.revision else USER_CHANGED

        return Caller(PASSWORD, user.name, user.role, address, ended)

    def _caller(self, session: _Session, address: str, token: str) -> Caller:
        kind = OPENID if session.revision is None else SESSION
        return Caller(kind, session.name, session.role, address, session.why_ended, session.expires_at, token)

    def _end(self, key: bytes, reason: str) -> bool:
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        session.ended = reason
        logger.info("dashboard_session_ended username=%s address=%s reason=%s", session.name, session.address, reason)
        return True

    def _user_changed(self, name: str) -> None:
        for key in [key for key, session in self._sessions.items() if session.name == name]:
            self._end(key, USER_CHANGED)

    def _sweep(self) -> None:
        now = self._server.clock.now()
        for key in list(self._sessions):
            if self._sessions[key].ends > now:
                break  # all have the same lifetime
            self._end(key, EXPIRED)


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
