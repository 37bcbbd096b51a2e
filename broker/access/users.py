"""Users: the data about users that a source provides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..session.client_info import ClientInfo
from .hash_costs import HashCosts
from .password_hash import PasswordVerifier, ScryptHash
from .scram import ScramVerifier


@dataclass(slots=True, repr=False)
class User:
    """One user of a source. Without ``password`` no plain password is accepted, without ``scram`` no SCRAM login.

    ``source``: the name of that source. ``by_name``: the secret proves the username; otherwise the user was found by
    the client's identifier, and the secret proves only the identifier.

    ``reloaded``: a reload may have given the name to another user, so the superuser right of the user at CONNECT
    applies.

    ``renew``: for an old stored form of the password, receives the new hash that a login has made possible."""

    username: str
    password: PasswordVerifier | None = None
    scram: ScramVerifier | None = None
    is_superuser: bool = False
    renew: Callable[[ScryptHash], None] | None = None
    source: str = "users"
    by_name: bool = True
    reloaded: bool = False


class UserSource(Protocol):
    """One of ``Authentication.users``. It answers from memory."""

    name: str

    @property
    def has_users(self) -> bool:
        """Whether the source has any user."""
        ...

    @property
    def costs(self) -> HashCosts:
        """The cost of its users' passwords."""
        ...

    @property
    def has_scram(self) -> bool:
        """Whether any user of the source can authenticate by SCRAM."""
        ...

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        """Return the user for ``username`` (or for the client's identifier, as the source decides).

        ``username`` is empty for a client without one."""
        ...
