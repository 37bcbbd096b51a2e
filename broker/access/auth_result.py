"""AuthOutcome: the result of an authentication; and the interface of sources that check credentials themselves."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from ..mqtt import reason_codes
from ..session.client_info import ClientInfo
from .guesses import Guesses


@dataclass(slots=True)
class AuthOutcome:
    """The result of an authentication: ``reason_code`` 0, or the 5.0 Reason Code of the refusal.

    ``anonymous``: accepted without proof of its identity. ``proved_by``: the source that has verified the client's
    username, empty if none has: then no rule sees that name. ``proves_client_id``: its Client Identifier is verified.
    ``detail`` is the reason and ``setting`` the key of the configuration that decided (``-``: none), for the log
    only."""

    reason_code: int = 0
    is_superuser: bool = False
    anonymous: bool = False
    detail: str = ""
    setting: str = "-"
    proved_by: str = ""
    proves_client_id: bool = False


WRONG: Final = AuthOutcome(
    reason_codes.BAD_USER_NAME_OR_PASSWORD, detail="bad_username_or_password", setting="access.users"
)
BUSY: Final = AuthOutcome(reason_codes.SERVER_BUSY, detail="too_many_passwords_to_verify", setting="access.hash_wait")
STOPPING: Final = AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail="server_stopping")
BROKEN: Final = AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail="password_hash_failed")


@dataclass(slots=True)
class LoginStep:
    """The answer of one source to a test login. ``outcome``: ``None`` if it leaves the decision to others."""

    source: str
    outcome: AuthOutcome | None
    detail: str = ""


@dataclass(slots=True)
class Trial:
    """A test login: ``steps`` collect the answers of the sources. ``guesses``: wrong passwords are counted there, and
    do not delay clients; a correct one changes no stored data. ``decided_by``: the source that decides."""

    guesses: Guesses
    steps: list[LoginStep] = field(default_factory=list)
    decided_by: str = ""


@runtime_checkable
class Authenticator(Protocol):
    """A source in the chain of ``Authentication`` that checks credentials itself."""

    name: str

    def authenticate(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthOutcome | Awaitable[AuthOutcome | None] | None:
        """Return the result; ``None``: ask the next source."""
        ...
