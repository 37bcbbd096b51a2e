"""ConfiguredUsers: the users of the configuration file."""

from collections.abc import Sequence
from typing import Final

from ...config import UserSettings
from ...session.client_info import ClientInfo
from ..foreign_hashes import parse_hash
from ..hash_costs import HashCosts
from ..scram import ScramVerifier
from ..users import User

CONFIGURATION: Final = "configuration"
"""The name of the configuration file as a source of users and rules."""


class ConfiguredUsers:
    """The ``[[access.users]]`` of the configuration file, a ``UserSource``.

    Raises ``ValueError`` for a hash that it cannot read."""

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
        """Return the verifiers of all users, in the order of the file."""
        return [user.scram for user in self._users.values() if user.scram is not None]


def _user(entry: UserSettings) -> User:
    return User(
        entry.username,
        parse_hash(entry.password_hash) if entry.password_hash else None,
        ScramVerifier.parse(entry.scram) if entry.scram else None,
        entry.is_superuser,
        source=CONFIGURATION,
        reloaded=True,
    )
