"""Users: what a source of them tells."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..session.client_info import ClientInfo
from .hash_costs import HashCosts
from .password_hash import PasswordVerifier, ScryptHash
from .scram import ScramVerifier


@dataclass(slots=True, repr=False)
class User:
    """One user as a source knows it. Without ``password`` no plain password opens, without ``scram`` no SCRAM does.

    ``source``: the name of that source. ``by_name``: its secret proves the user name; else it was found by the client's
    identifier, and its secret proves that and nothing else.

    ``reloaded``: a reload may have given the name to another, so that its right as a superuser counts for who was given
    it at CONNECT.

    ``renew``: where the stored form of the password is an old one, takes the new one that a login has made possible.
    """

    username: str
    password: PasswordVerifier | None = None
    scram: ScramVerifier | None = None
    is_superuser: bool = False
    renew: Callable[[ScryptHash], None] | None = None
    source: str = "users"
    by_name: bool = True
    reloaded: bool = False


class UserSource(Protocol):
    """One of ``Authentication.users``. Answers from memory."""

    name: str

    @property
    def has_users(self) -> bool:
        """Whether it knows any user."""
        ...

    @property
    def costs(self) -> HashCosts:
        """What the passwords of its users cost."""
        ...

    @property
    def has_scram(self) -> bool:
        """Whether a user it knows may authenticate by SCRAM."""
        ...

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        """The user who goes by ``username`` (or by the client's identifier, as the source likes).

        ``username`` is empty for a client that gave none.
        """
        ...
