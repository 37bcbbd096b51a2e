"""AuthOutcome: how an authentication ended; and what a source outside of our own users looks like."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from ..mqtt import reason_codes
from ..session.client_info import ClientInfo
from .guesses import Guesses


@dataclass(slots=True)
class AuthOutcome:
    """How an authentication ended: ``reason_code`` 0, or the 5.0 Reason Code that refuses.

    ``anonymous``: allowed without having proved who it is. ``proved_by``: the source that has proved the client's
    user name, empty where none has: then no rule sees that name. ``proves_client_id``: its Client Identifier is proved.
    ``detail`` says why and ``setting`` which key of the configuration decided (``-``: none), for the log only.
    """

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
    """What one source said of a login that is only tried. ``outcome``: ``None`` where it leaves it to others."""

    source: str
    outcome: AuthOutcome | None
    detail: str = ""


@dataclass(slots=True)
class Trial:
    """A login that is only tried: ``steps`` take what each source says. ``guesses``: wrong ones are counted there, and
    slow no client; a right one changes nothing that is stored. ``decided_by``: the source that has the last word."""

    guesses: Guesses
    steps: list[LoginStep] = field(default_factory=list)
    decided_by: str = ""


@runtime_checkable
class Authenticator(Protocol):
    """A source in the chain of ``Authentication`` that checks credentials by itself."""

    name: str

    def authenticate(
        self, client: ClientInfo, password: bytes | None
    ) -> AuthOutcome | Awaitable[AuthOutcome | None] | None:
        """``None``: the next source is to be asked."""
        ...
