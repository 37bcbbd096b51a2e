"""Stored users: by username (EMQX 4.1's ``login``, 4.4's ``username``) and by client ID."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence, Set
from typing import Final

import msgspec

from taipan.broker.access.authentication import anonymous_allowed
from taipan.broker.access.configuration.users import CONFIGURATION
from taipan.broker.access.foreign_hashes import PasswordHash
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.random_secret import RandomSecretHash
from taipan.broker.access.stored.users import CLIENT_ID, USERNAME, StoredUser
from taipan.broker.channel.user_changes import disconnect, proved_to_be, tell_rights
from taipan.broker.loop.cooperative_slice import SLICE, CooperativeSlice
from taipan.broker.server import Server

from ..configuration.known_secrets import is_known, is_known_password
from .durable_answer import check_store_writable, rows_of_a_size, wait_until_stored
from .listing import FILTERED, Listing, searched
from .node_calls import NodeCalls
from .refusal import EXISTS, NO_USER, RPC_ERROR, WRONG, Refusal, missing, wrong

logger = logging.getLogger(__name__)

OK: Final = "ok"
EXISTED: Final = "{error,existed}"

MAX_USERS: Final = 10_000
"""Maximum number of new users in one request."""
_MAX_NAMED: Final = 100


class NewUser(msgspec.Struct, frozen=True):
    """A user to create. ``hash``: the hash of the password, if it already exists. ``high_entropy``: the password
    cannot be guessed."""

    name: str
    password: str = ""
    is_superuser: bool = False
    hash: PasswordHash | None = None
    high_entropy: bool = False


class LoginRecord(msgspec.Struct):
    """Specification, Authentication user record."""

    login: str
    password: str
    is_superuser: bool


class UserRecord(msgspec.Struct):
    """EMQX 4.4's record of a user: no password; ``created_at`` in milliseconds."""

    name: str
    created_at: int


class ClientIdUserRecord(UserRecord):
    name: str = msgspec.field(name="clientid")


class UsernameUserRecord(UserRecord):
    name: str = msgspec.field(name="username")


_USER_RECORDS: Final[dict[str, type[UserRecord]]] = {CLIENT_ID: ClientIdUserRecord, USERNAME: UsernameUserRecord}


class Users:
    """Operations on users. ``kind``: whether users are identified by ``USERNAME`` or ``CLIENT_ID``. Only users by
    username can be superusers."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self._users = server.stored_users
        calls.serve(self.named_clients)

    def listing(self, page: int, limit: int) -> Listing[LoginRecord]:
        """Return authentication user records, oldest first."""
        rows = searched(self._users.all(), lambda user: user.kind == USERNAME)
        return Listing(rows, page, limit, login_record, self._users.count(USERNAME))

    def records(
        self, kind: str, page: int, limit: int, exact: str | None = None, like: str | None = None
    ) -> Listing[UserRecord]:
        """Return EMQX 4.4's records, newest first. ``like``: a part of the name."""

        def matches(user: StoredUser) -> bool:
            if user.kind != kind or (exact is not None and user.name != exact):
                return False
            return like is None or like in user.name

        users = self._users.all()
        users.reverse()
        count = self._users.count(kind) if exact is None and like is None else FILTERED
        found = searched(users, matches)
        return Listing(found, page, limit, user_record, count)

    def lookup(self, name: str, kind: str = USERNAME) -> StoredUser | None:
        return self._users.get(kind, name)

    async def add(
        self, users: Sequence[NewUser], kind: str = USERNAME, progress: Callable[[int], None] | None = None
    ) -> dict[str, str]:
        """Create those users that do not exist yet, each as soon as its hash is ready; return the result by name.

        ``progress`` is called with the number of finished users.
        """
        if not users:
            raise missing("a user")
        if len(users) > MAX_USERS:
            raise Refusal(WRONG, f"more than {MAX_USERS} users in one request")
        for user in users:
            _check_superuser(user, user.is_superuser)
        check_store_writable(self._server.tables)
        first: dict[str, NewUser] = {}
        for user in users:
            first.setdefault(user.name, user)
        outcome = dict.fromkeys(first, EXISTED)
        remaining = iter(enumerate(first.values()))
        # Hashes are computed in any order, and stored in the order of the request.
        hashed: dict[int, PasswordHash | None] = {}
        names = list(first)
        stored = 0
        # Enough to keep every thread busy.
        workers = min(len(first), self._server.access.authentication.passwords.queue.threads + 2)

        async def hash_some() -> None:
            nonlocal stored
            work = CooperativeSlice(SLICE / workers)
            for index, user in remaining:
                if self._taken(user.name, kind):
                    made = None
                else:
                    made = _cheap_hash(user) or await self._hash(user.password)
                hashed[index] = made
                while stored in hashed:
                    self._put(first[names[stored]], kind, hashed.pop(stored), outcome)
                    stored += 1
                if progress is not None:
                    progress(stored)
                await work.checkpoint()

        tasks = [asyncio.ensure_future(hash_some()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        await wait_until_stored(self._server.tables)
        return outcome

    def _put(self, user: NewUser, kind: str, hash: PasswordHash | None, outcome: dict[str, str]) -> None:
        # Another request may have been faster.
        if hash is not None and not self._taken(user.name, kind):
            check_store_writable(self._server.tables)
            with rows_of_a_size():
                self._users.put(kind, user.name, hash, user.is_superuser)
            outcome[user.name] = OK

    async def first_user(self) -> str | None:
        """Return how creating the first user affects other clients; ``None`` if it does not, or if this would not be
        the first user."""
        server = self._server
        access = server.access
        if access.authentication.has_users or access.settings.unknown_user == "anonymous" or not self._open():
            return None
        found, missing = await self._calls.everywhere(self.named_clients)
        given = sum(count for _, count in found)
        unasked = f" (without {', '.join(missing)}, which did not answer)" if missing else ""
        return (
            "this is the first user: from now on clients with an unknown username or password are"
            f" refused (setting access.unknown_user); {given} of the connected clients gave a username{unasked},"
            " they stay connected until they reconnect"
        )

    @staticmethod
    def default_passwords(stored: Collection[NewUser]) -> str | None:
        """Log and return which of these users have a published default as their password; ``None``: none has."""
        names = [user.name for user in stored if _has_default_password(user)]
        if not names:
            return None
        named = ",".join(names[:_MAX_NAMED])
        logger.warning("default_secret count=%s users=%s", len(names), named)
        return (
            f"the password of {len(names)} of these users is EMQX's published default, which anybody may know: {named}"
        )

    def named_clients(self) -> int:
        """Return the number of clients connected to this node that gave a username."""
        return sum(1 for channel in self._server.context.channels.values() if channel.client.username)

    def _open(self) -> bool:
        """Return whether a listener accepts anonymous clients."""
        settings = self._server.settings
        pairs = zip(self._server.listeners, settings.listener_zones, strict=True)
        return any(anonymous_allowed(zone, listener.loopback) for listener, zone in pairs)

    async def add_one(self, user: NewUser, kind: str = USERNAME) -> None:
        """Create one user. Raises Refusal if it already exists."""
        if (await self.add([user], kind))[user.name] != OK:
            raise Refusal(EXISTS, f"{user.name} already exists")

    async def update(self, new: NewUser, is_superuser: bool | None = None, kind: str = USERNAME) -> None:
        """Set a new password and, unless ``is_superuser`` is ``None``, another right, which also applies to connected
        clients."""
        name = new.name
        self._existing(name, kind)
        hashed = _cheap_hash(new) or await self._hash(new.password)
        user = self._existing(name, kind)
        check_store_writable(self._server.tables)
        superuser = user.is_superuser if is_superuser is None else is_superuser
        _check_superuser(new, superuser)
        with rows_of_a_size():
            self._users.put(kind, name, hashed, superuser)
        if superuser != user.is_superuser:
            await self.tell_connected({name})
        await wait_until_stored(self._server.tables)

    async def delete(self, name: str, kind: str = USERNAME) -> None:
        """Delete a user. Clients that have authenticated as this user are disconnected (0x87); their sessions stay."""
        self._existing(name, kind)
        check_store_writable(self._server.tables)
        self._users.remove(kind, name)
        gone = proved_to_be(self._server.context, kind, {name}, self._users.name)
        if kind == USERNAME:
            await self.tell_connected({name})
        await wait_until_stored(self._server.tables)
        await disconnect(gone)

    def _taken(self, name: str, kind: str) -> bool:
        in_file = kind == USERNAME and self._server.access.authentication.is_configured(name)
        return in_file or self._users.get(kind, name) is not None

    def _existing(self, name: str, kind: str) -> StoredUser:
        user = self._users.get(kind, name)
        if user is not None:
            return user
        if kind == USERNAME and self._server.access.authentication.is_configured(name):
            raise Refusal(WRONG, f"{name} is in the configuration file, [[access.users]]: change it there")
        raise Refusal(NO_USER, f"no user {name}" if kind == USERNAME else f"no user with client ID {name}")

    async def _hash(self, password: str) -> ScryptHash:
        try:
            return await self._server.access.authentication.passwords.hash(password.encode("utf-8", "surrogatepass"))
        except (RuntimeError, MemoryError, ValueError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            raise Refusal(RPC_ERROR, "no password can be hashed: the node is stopping or out of memory") from error

    async def end_connected(self, names: Set[str]) -> None:
        """Disconnect clients that have authenticated as one of these users, who were removed from the file; their
        sessions stay."""
        gone = proved_to_be(self._server.context, USERNAME, names, CONFIGURATION)
        await disconnect(gone, "access.users")

    async def tell_connected(self, names: Set[str] | None) -> None:
        """Send clients of these users their present rights, as ``tell_rights`` does."""
        await tell_rights(self._server.context, names)


def _has_default_password(user: NewUser) -> bool:
    """Slow hashes are not tried."""
    return is_known(user.password) if user.hash is None else is_known_password(str(user.hash))


def _check_superuser(user: NewUser, is_superuser: bool) -> None:
    if is_superuser and _has_default_password(user):
        raise wrong("password", f"superuser {user.name} cannot have EMQX's published default as its password")


def _cheap_hash(user: NewUser) -> PasswordHash | None:
    """Return whether the user's hash needs no thread."""
    if user.hash is not None or not user.high_entropy:
        return user.hash
    return RandomSecretHash.create(user.password.encode("utf-8", "surrogatepass"))


def login_record(user: StoredUser) -> LoginRecord:
    return LoginRecord(user.name, user.password, user.is_superuser)


def user_record(user: StoredUser) -> UserRecord:
    return _USER_RECORDS[user.kind](user.name, int(user.created_at * 1000))
