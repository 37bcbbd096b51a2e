"""Users that the node keeps: by user name (EMQX 4.1's ``login``, 4.4's ``username``) and by client identifier."""

import asyncio
from collections.abc import Sequence, Set
from typing import Final

import msgspec

from broker.access.password import ScryptHash
from broker.access.stored_users import USERNAME, StoredUser
from broker.server import Server

from .listing import FILTERED, Listing, Row, searched
from .refusal import EXISTS, NO_USER, RPC_ERROR, WRONG, Refusal, missing
from .stored import promised, ready

OK: Final = "ok"
EXISTED: Final = "{error,existed}"

MOST_USERS: Final = 2000
"""New users in one request: each costs one hash of about 40 ms."""

_CLIENTS_A_SLICE: Final = 2000
_USERS_A_SLICE: Final = 200


class NewUser(msgspec.Struct, frozen=True):
    name: str
    password: str
    is_superuser: bool = False


class Users:
    """``kind`` is what a user's name is: ``USERNAME`` or ``CLIENT_ID``. Only users by user name can be superusers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._users = server.stored_users

    def listing(self, page: int, limit: int) -> Listing:
        """Authentication user records, the oldest first."""
        rows = searched(self._users.all(), lambda user: user.kind == USERNAME)
        return Listing(rows, page, limit, login_record, self._users.count(USERNAME))

    def accounts(self, kind: str, page: int, limit: int, exact: str | None = None, like: str | None = None) -> Listing:
        """EMQX 4.4's records, the newest first. ``like``: a part of the name."""
        everybody = exact is None and like is None

        def matches(user: StoredUser) -> bool:
            if user.kind != kind or (exact is not None and user.name != exact):
                return False
            return like is None or like in user.name

        users = self._users.all()
        users.reverse()
        count = self._users.count(kind) if everybody else FILTERED
        found = searched(users, matches)
        return Listing(found, page, limit, account_record, count)

    def lookup(self, name: str, kind: str = USERNAME) -> StoredUser | None:
        return self._users.get(kind, name)

    async def add(self, users: Sequence[NewUser], kind: str = USERNAME) -> dict[str, str]:
        """Add those that are not there yet, when every password is hashed; how it went, by name."""
        if not users:
            raise missing("a user")
        if len(users) > MOST_USERS:
            raise Refusal(WRONG, f"more than {MOST_USERS} users in one request: each costs 40 ms of hashing")
        ready(self._server.tables)
        first: dict[str, NewUser] = {}
        for user in users:
            first.setdefault(user.name, user)
        new = [user for user in first.values() if not self._taken(user.name, kind)]
        hashes = await asyncio.gather(*(self._hash(user.password) for user in new))
        ready(self._server.tables)
        outcome = dict.fromkeys(first, EXISTED)
        for index, (user, password) in enumerate(zip(new, hashes, strict=True), 1):
            if index % _USERS_A_SLICE == 0:
                await asyncio.sleep(0)
            # Another request may have been quicker.
            if not self._taken(user.name, kind):
                self._users.put(kind, user.name, password, user.is_superuser)
                outcome[user.name] = OK
        await promised(self._server.tables)
        return outcome

    async def add_one(self, user: NewUser, kind: str = USERNAME) -> None:
        """Refused where it is there already."""
        if (await self.add([user], kind))[user.name] != OK:
            raise Refusal(EXISTS, f"{user.name} is there already")

    async def update(self, name: str, password: str, is_superuser: bool | None = None, kind: str = USERNAME) -> None:
        """A new password, and unless ``is_superuser`` is ``None`` another right, which counts for connected clients."""
        self._existing(name, kind)
        hashed = await self._hash(password)
        user = self._existing(name, kind)
        ready(self._server.tables)
        superuser = user.is_superuser if is_superuser is None else is_superuser
        self._users.put(kind, name, hashed, superuser)
        if superuser != user.is_superuser:
            await self.tell_connected({name})
        await promised(self._server.tables)

    async def delete(self, name: str, kind: str = USERNAME) -> None:
        """Its connected clients stay connected; one that was a superuser is no longer."""
        user = self._existing(name, kind)
        ready(self._server.tables)
        self._users.remove(kind, name)
        if user.is_superuser:
            await self.tell_connected({name})
        await promised(self._server.tables)

    def _taken(self, name: str, kind: str) -> bool:
        in_file = kind == USERNAME and self._server.access.is_configured(name)
        return in_file or self._users.get(kind, name) is not None

    def _existing(self, name: str, kind: str) -> StoredUser:
        user = self._users.get(kind, name)
        if user is not None:
            return user
        if kind == USERNAME and self._server.access.is_configured(name):
            raise Refusal(WRONG, f"{name} stands in the configuration file, [[access.users]]: change it there")
        raise Refusal(NO_USER, f"no user {name}" if kind == USERNAME else f"no user with client identifier {name}")

    async def _hash(self, password: str) -> ScryptHash:
        try:
            return await self._server.access.hash_password(password.encode("utf-8", "surrogatepass"))
        except (RuntimeError, MemoryError, ValueError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            raise Refusal(RPC_ERROR, "no password can be hashed: the node is stopping or out of memory") from error

    async def tell_connected(self, names: Set[str]) -> None:
        """Who is connected as one of these users, and has proved it, has from now on the right that the user has."""
        access = self._server.access
        for looked, channel in enumerate(list(self._server.context.channels.values()), 1):
            client = channel.client
            username = client.username
            if username is not None and username in names and not client.anonymous:
                # Who came before there was this user has proved to be somebody else.
                user = self._users.get(USERNAME, username)
                proved = client.is_superuser or (user is not None and user.created_at <= client.connected_at)
                client.is_superuser = proved and access.superuser(client)
                # What nobody was asked about while it was one.
                channel.admitted.clear()
            if looked % _CLIENTS_A_SLICE == 0:
                await asyncio.sleep(0)


def login_record(user: StoredUser) -> Row:
    """Specification, Authentication user record."""
    return {"login": user.name, "password": user.password, "is_superuser": user.is_superuser}


def account_record(user: StoredUser) -> Row:
    """EMQX 4.4's: no password; ``created_at`` in milliseconds."""
    return {user.kind: user.name, "created_at": int(user.created_at * 1000)}
