"""Users: what a source of them tells, and those of the configuration file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ..config import UserSettings
from ..session.client_info import ClientInfo
from .foreign_hashes import parse_hash
from .hash_costs import HashCosts
from .password_hash import PasswordVerifier, ScryptHash
from .scram import ScramVerifier

CONFIGURATION: Final = "configuration"
"""The source of users, and of rules, that is the configuration file."""


@dataclass(slots=True, repr=False)
class User:
    """One user as a source knows it. Without ``password`` no plain password opens, without ``scram`` no SCRAM does.

    ``source``: the name of that source. ``by_name``: its secret proves the user name; else it was found by the client's
    identifier, and its secret proves that and nothing else.

    ``renew``: where the stored form of the password is an old one, takes the new one that a login has made possible.
    """

    username: str
    password: PasswordVerifier | None = None
    scram: ScramVerifier | None = None
    is_superuser: bool = False
    renew: Callable[[ScryptHash], None] | None = None
    source: str = "users"
    by_name: bool = True


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


class ConfiguredUsers:
    """The ``[[access.users]]`` of the configuration file, a ``UserSource``.

    ``ValueError`` for a hash it cannot read.
    """

    __slots__ = ("_users", "costs", "has_scram", "name")

    def __init__(self, settings: Sequence[UserSettings]) -> None:
        self.name = CONFIGURATION
        self._users = {entry.username: _user(entry) for entry in settings}
        self.costs = HashCosts(str(user.password) for user in self._users.values() if user.password is not None)
        self.has_scram = any(user.scram is not None for user in self._users.values())

    @property
    def has_users(self) -> bool:
        return bool(self._users)

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        return self._users.get(username) if username else None

    def has(self, username: str) -> bool:
        return username in self._users

    def scram_verifiers(self) -> list[ScramVerifier]:
        """Those of all users, in the order of the file."""
        return [user.scram for user in self._users.values() if user.scram is not None]


def _user(entry: UserSettings) -> User:
    return User(
        entry.username,
        parse_hash(entry.password_hash) if entry.password_hash else None,
        ScramVerifier.parse(entry.scram) if entry.scram else None,
        entry.is_superuser,
        source=CONFIGURATION,
    )
