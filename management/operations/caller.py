"""Caller: the user or application that makes an HTTP request, and whether it still has access."""

from collections.abc import Callable
from typing import Final, Literal

APPLICATION: Final = "application"
SESSION: Final = "session"
"""A dashboard user who has logged in."""
OPENID: Final = "openid"
"""A dashboard user who has logged in by OpenID Connect."""
PASSWORD: Final = "password"
"""A dashboard user who sends name and password with each request."""

NOT_ALLOWED: Final = "not_allowed"
"""The reason for a caller whose access was revoked."""

Scope = Literal["all", "read", "publish"]
"""The scopes of an application: everything; reading, like a viewer; or publishing messages."""

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMINISTRATOR: Final = "administrator"
ROLES: Final = (VIEWER, OPERATOR, ADMINISTRATOR)
"""Roles of dashboard users; each may do all that the ones before it may."""
ANYBODY: Final = ""
"""In place of a role: every user who has logged in, also one with a role of a later version."""


def is_at_least(role: str, least: str) -> bool:
    """Return whether a role includes what ``least`` may. A role that this version does not know includes nothing."""
    return least == ANYBODY or (role in ROLES and ROLES.index(role) >= ROLES.index(least))


def _never() -> str:
    return ""


class Caller:
    """The caller of an operation. ``kind``: one of the constants above, empty for an anonymous caller. ``role``:
    that of a dashboard user. ``scopes``: what an application may do; an unknown scope permits nothing; ``None``: a
    dashboard user.

    ``ended()`` returns why the caller no longer has access, ``""`` while it has; long operations check once a second.
    ``expires_at``: end of a session in Unix seconds. ``token``: token of a session."""

    __slots__ = ("address", "ended", "expires_at", "kind", "name", "role", "scopes", "token")

    def __init__(
        self,
        kind: str,
        name: str,
        role: str,
        address: str = "",
        ended: Callable[[], str] = _never,
        expires_at: float | None = None,
        token: str = "",
        scopes: frozenset[str] | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.role = role
        self.address = address
        self.ended = ended
        self.expires_at = expires_at
        self.token = token
        self.scopes = scopes

    @property
    def is_user(self) -> bool:
        """Whether the caller is a dashboard user."""
        return self.kind in (SESSION, OPENID, PASSWORD)


NOBODY: Final = Caller("", "", "")
"""The caller of public endpoints."""
