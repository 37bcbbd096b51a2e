"""Stored users: users that operators add while the node runs, kept in a table, by username or by client ID."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ...loop.clock import Clock
from ...persistence.tables import Tables
from ...session.client_info import ClientInfo
from ..foreign_hashes import NO_BCRYPT, BcryptHash, PasswordHash, parse_hash
from ..hash_costs import HashCosts
from ..password_hash import ScryptHash
from ..users import User

logger = logging.getLogger(__name__)

TABLE: Final = "users"
USERNAME: Final = "username"
CLIENT_ID: Final = "clientid"


class StoredUser(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """``kind``: the kind of ``name``, ``USERNAME`` or ``CLIENT_ID``. ``password``: its stored hash, in a form for
    ``foreign_hashes``. ``created_at``: Unix seconds."""

    kind: str
    name: str
    password: str
    is_superuser: bool = False
    created_at: float = 0.0


class StoredUsers:
    """A ``UserSource``.

    A client with a stored username needs that user's password; otherwise, a client with a stored client ID needs the
    password of that client ID."""

    has_scram: Final = False

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self.name = "stored"
        self._clock = clock
        self._table = tables.open(TABLE, StoredUser, access=True, shared=True)
        self._table.on_taken.append(self._taken)
        self._counts: dict[str, int] = {}
        self.costs = HashCosts()
        # Called with the user that another node has stored, ``None`` if it was deleted.
        self.on_taken: list[Callable[[StoredUser | None, StoredUser | None], None]] = []

    def index_restored(self) -> None:
        """Count the restored users."""
        self._counts = {}
        for user in self._table.values():
            self._counts[user.kind] = self._counts.get(user.kind, 0) + 1
        self.costs = HashCosts(user.password for user in self._table.values())

    def warn_of_missing_package(self) -> None:
        """Log how many users cannot log in until the package is installed."""
        count = sum(user.password.startswith(BcryptHash.PREFIX) for user in self._table.values())
        if count and not BcryptHash.installed():
            logger.warning("stored_hashes_not_verifiable count=%s detail=%s", count, NO_BCRYPT)

    @property
    def has_users(self) -> bool:
        return len(self._table) > 0

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def get(self, kind: str, name: str) -> StoredUser | None:
        return self._table.get(_key(kind, name))

    def all(self) -> list[StoredUser]:
        """Return a copy, oldest first."""
        return list(self._table.values())

    def put(
        self,
        kind: str,
        name: str,
        password: PasswordHash,
        is_superuser: bool = False,
        created_at: float | None = None,
    ) -> None:
        """Add a user, or replace the one with this name, which keeps its creation time."""
        old = self.get(kind, name)
        if not len(self._table):
            detail = "usernames that no source knows are refused from now on, unless this setting accepts them"
            logger.warning("first_stored_user %s=%s setting=access.unknown_user detail=%s", kind, name, detail)
        if created_at is None:
            created_at = old.created_at if old is not None else self._clock.wall()
        user = StoredUser(kind, name, str(password), is_superuser, created_at)
        self._table.put(_key(kind, name), user)
        self._count(old, -1)
        self._count(user, 1)

    def remove(self, kind: str, name: str) -> bool:
        """Remove a user; return whether it existed."""
        old = self.get(kind, name)
        if old is None:
            return False
        self._table.remove(_key(kind, name))
        self._count(old, -1)
        return True

    def _count(self, user: StoredUser | None, step: int) -> None:
        if user is not None:
            self._counts[user.kind] = self.count(user.kind) + step
            self.costs.count(user.password, step)

    def _taken(self, key: str, old: StoredUser | None, new: StoredUser | None) -> None:
        self._count(old, -1)
        self._count(new, 1)
        for call in self.on_taken:
            call(old, new)

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        row = self.get(USERNAME, username) if username else None
        if row is None:
            row = self.get(CLIENT_ID, client.client_id) if client.client_id else None
        if row is None:
            return None
        password: PasswordHash | None
        try:
            password = parse_hash(row.password)
        except ValueError as error:
            logger.error("stored_hash_unreadable %s=%s error=%s", row.kind, row.name, error)
            password = None
        renew = self._renewal(row) if password is not None and password.outdated else None
        by_name = row.kind == USERNAME
        superuser = by_name and row.is_superuser
        return User(username, password, None, superuser, renew, self.name, by_name)

    def _renewal(self, row: StoredUser) -> Callable[[ScryptHash], None]:
        def renew(password: ScryptHash) -> None:
            # An operator may have changed the user in the meantime.
            if self.get(row.kind, row.name) is row:
                self.put(row.kind, row.name, password, row.is_superuser)
                logger.info("stored_hash_renewed %s=%s", row.kind, row.name)

        return renew


def _key(kind: str, name: str) -> str:
    return f"{kind}:{name}"
