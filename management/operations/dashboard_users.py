"""Dashboard users: people who may use the dashboard, each with a password and a role. They are rows of the store.

EMQX has ``tags``, a free text that describes the user; the role is Taipan's own."""

import logging
import re
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from taipan.broker.access.foreign_hashes import parse_hash
from taipan.broker.access.guesses import address_group
from taipan.broker.access.hash_costs import HashCosts
from taipan.broker.access.password_check import Passwords
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.random_secret import generate
from taipan.broker.access.users import User
from taipan.broker.config import AccessSettings, ZoneSettings
from taipan.broker.mqtt import reason_codes
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo

from .caller import ADMINISTRATOR, VIEWER
from .durable_answer import check_store_writable, rows_of_a_size, wait_until_stored
from .refusal import (
    ADMIN_STAYS,
    EXISTS,
    NO_USER,
    OLD_PASSWORD_WRONG,
    RPC_ERROR,
    WRONG_CREDENTIALS,
    Refusal,
    wrong,
)

logger = logging.getLogger(__name__)

TABLE: Final = "dashboard_users"
FIRST_USER: Final = "admin"
_ROLES_IN_TAGS: Final = (ADMINISTRATOR, VIEWER)
"""Other words in EMQX's tags have no meaning there, so they give no role here."""
MAX_NAME_LENGTH: Final = 256
"""In bytes."""
MAX_TAGS_LENGTH: Final = 1024
MIN_PASSWORD_LENGTH: Final = 8
MAX_PASSWORD_LENGTH: Final = 64
_WORDS: Final = re.compile(r"[^\s,;]+")
_BUSY_EVERY: Final = 10.0


class DashboardUser(msgspec.Struct, array_like=True, frozen=True):
    """``password``: its stored hash. ``revision``: changes with password or role, which ends the sessions.
    ``created_at``: Unix seconds."""

    name: str
    password: str
    role: str
    tags: str = ""
    revision: int = 0
    created_at: float = 0.0


class DashboardUserRecord(msgspec.Struct):
    """EMQX's record, with the role."""

    username: str
    tags: str
    role: str


class WrongLogin(Refusal):
    """EMQX's error, which does not reveal whether name or password is wrong."""

    def __init__(self) -> None:
        super().__init__(WRONG_CREDENTIALS, "Username/Password error")


def role_in(tags: str) -> str | None:
    """Return the role that EMQX's tags name, if any."""
    words = {word.lower() for word in _WORDS.findall(tags)}
    return next((role for role in _ROLES_IN_TAGS if role in words), None)


def check_password(key: str, password: str) -> None:
    """Check a password against EMQX's rules. Raises Refusal 108 if it breaks one."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise wrong(key, f"expected {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters")
    if not (password.isascii() and password.isprintable()):
        raise wrong(key, "expected printable ASCII characters")
    kinds = (str.isalpha, str.isdigit, lambda each: not each.isalnum())
    if sum(any(is_kind(each) for each in password) for is_kind in kinds) < 2:
        raise wrong(key, "expected at least two of letters, digits and other characters")


class DashboardUsers:
    """``on_changed``: called with the name of a user who was deleted, or has another password or role."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._table = server.tables.open(TABLE, DashboardUser, access=True, shared=True)
        self._table.on_taken.append(self._taken)
        self.on_changed: list[Callable[[str], None]] = []
        self._zone = ZoneSettings()
        # A separate queue: password guesses of MQTT clients do not delay operators.
        self._passwords = Passwords(
            _one_thread(server.settings.access),
            server.clock,
            lambda client, name: self._user(name),
            server.metrics.refusals.add,
            lambda client: False,
        )
        # There are only a few.
        self._passwords.costs = lambda: [HashCosts(row.password for row in self._table.values())]
        self._say_busy_at = 0.0

    def reload(self, settings: AccessSettings) -> None:
        """Apply ``access.guesses`` and the other password settings."""
        self._passwords.reload(_one_thread(settings))

    def close(self) -> None:
        """Stop checking passwords."""
        self._passwords.close()

    # ------------------------------------------------------------------- login

    async def log_in(self, name: str, password: str, address: str) -> DashboardUser:
        """Return the user with this password. Raises WrongLogin, or another Refusal if the password cannot be
        checked."""
        client = ClientInfo("", self._zone, peer_host=address, username=name)
        user = self._user(name[:MAX_NAME_LENGTH])
        found = self._passwords.check(client, name, user, password.encode("utf-8", "surrogatepass"))
        outcome = found if not hasattr(found, "__await__") else await found
        row = self._table.get(name)
        if outcome.reason_code == reason_codes.SUCCESS and row is not None:
            if TABLE in self._server.store_alarms.tables_lost:
                raise Refusal(
                    WRONG_CREDENTIALS,
                    "dashboard users may be lost (data.access_lost); to accept the loss: taipan-ctl data accept-loss",
                )
            return row
        if outcome.reason_code == reason_codes.BAD_USER_NAME_OR_PASSWORD:
            self._server.metrics.refusals.add("dashboard_login")
            logger.warning("dashboard_login_refused address=%s username=%s", address_group(address), name[:100])
            raise WrongLogin()
        self._server.metrics.refusals.add("dashboard_login_busy")
        now = self._server.clock.now()
        if now >= self._say_busy_at:
            self._say_busy_at = now + _BUSY_EVERY
            logger.warning("dashboard_login_not_tried address=%s reason=%s", address_group(address), outcome.detail)
        raise Refusal(RPC_ERROR, f"the password cannot be checked now: {outcome.detail}")

    async def wait_after_guesses(self, address: str) -> bool:
        """Wait as a password from this address would, for a login that another system checks; return whether there was
        room."""
        waiting = self._passwords.wait(*self._elsewhere(address))
        return waiting is None or await waiting

    def note_login(self, address: str, right: bool) -> None:
        """Note the result of such a login."""
        self._passwords.proved(*self._elsewhere(address), right)

    def _elsewhere(self, address: str) -> tuple[ClientInfo, str]:
        """Return client and name of a login without a name: each address has its own, so that no address slows down
        another one."""
        name = f"openid:{address_group(address)}"
        return ClientInfo("", self._zone, peer_host=address, username=name), name

    def _user(self, name: str) -> User | None:
        row = self._table.get(name)
        if row is None:
            return None
        try:
            password = parse_hash(row.password)
        except ValueError as error:
            logger.error("dashboard_hash_unreadable username=%s error=%s", name, error)
            return None
        renew = self._renewal(row) if password.outdated else None
        return User(name, password, None, False, renew, "dashboard")

    def _renewal(self, row: DashboardUser) -> Callable[[ScryptHash], None]:
        def renew(password: ScryptHash) -> None:
            if self._table.get(row.name) is row:
                self._table.put(row.name, msgspec.structs.replace(row, password=str(password)))

        return renew

    # ---------------------------------------------------------------- the rows

    async def create_first(self) -> tuple[str, str] | None:
        """Create a user if none exists. Return its name and password, which is shown only this once."""
        if len(self._table) or TABLE in self._server.store_alarms.tables_lost:
            return None
        rows = self._server.tables.shared_rows
        if rows is not None and rows.begin():
            return None  # another node of the cluster may have some
        password = generate()
        hashed = str(await self._hash(password))
        if len(self._table):
            return None
        self._put(DashboardUser(FIRST_USER, hashed, ADMINISTRATOR, ADMINISTRATOR))
        try:
            await wait_until_stored(self._server.tables)
        except Refusal as refusal:
            logger.warning("dashboard_first_user_unsure error=%s", refusal.message)
        # Another node of the cluster may have been faster: its password is valid.
        row = self._table.get(FIRST_USER)
        return (FIRST_USER, password) if row is not None and row.password == hashed else None

    def stored(self) -> list[DashboardUser]:
        """Return the users, oldest first: a copy that includes the hashes of their passwords."""
        return list(self._table.values())

    def put(self, user: DashboardUser) -> None:
        """Add or replace a user for an import. A user with another password or role loses all sessions."""
        there = self._table.get(user.name)
        if there is None or not same_user(there, user):
            self._put(user, there)

    def is_replaced_by(self, user: DashboardUser) -> bool:
        """Return whether ``put`` would change password or role of an existing user."""
        there = self._table.get(user.name)
        return there is not None and (there.password, there.role) != (user.password, user.role)

    def would_lack_administrator(self, users: list[DashboardUser]) -> bool:
        """Return whether no administrator would remain if these users were imported."""
        roles = {user.name: user.role for user in self._table.values()}
        return (
            ADMINISTRATOR in roles.values()
            and ADMINISTRATOR
            not in {
                **roles,
                **{user.name: user.role for user in users},
            }.values()
        )

    def listing(self) -> list[DashboardUserRecord]:
        """Return the records of all users, oldest first."""
        return [user_record(user) for user in self._table.values()]

    def get(self, name: str) -> DashboardUser | None:
        return self._table.get(name)

    async def add(self, name: str, password: str, tags: str = "", role: str | None = None) -> None:
        """``role``: by default the role in ``tags``, otherwise viewer."""
        if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_LENGTH:
            raise wrong("username", f"expected 1 to {MAX_NAME_LENGTH} bytes")
        if ":" in name or not name.isprintable():
            raise wrong("username", "expected printable characters and no colon")
        check_password("password", password)
        if name in self._table:
            raise Refusal(EXISTS, f"Username Already Exist: {name}")
        check_store_writable(self._server.tables)
        hashed = str(await self._hash(password))
        if name in self._table:
            raise Refusal(EXISTS, f"Username Already Exist: {name}")
        self._put(DashboardUser(name, hashed, role or role_in(tags) or VIEWER, tags))
        await wait_until_stored(self._server.tables)

    async def update(
        self, name: str, tags: str | None = None, role: str | None = None, password: str | None = None
    ) -> None:
        """Update a user; arguments that are ``None`` change nothing. Tags that name a role set the role, unless
        ``role`` is given."""
        self._existing(name)
        hashed = None
        if password is not None:
            check_password("password", password)
            hashed = str(await self._hash(password))
        user = self._existing(name)
        role = role or (role_in(tags) if tags is not None else None) or user.role
        if role != ADMINISTRATOR:
            self._keep_administrator(name)
        check_store_writable(self._server.tables)
        new = msgspec.structs.replace(
            user, tags=user.tags if tags is None else tags, role=role, password=hashed or user.password
        )
        if new != user:
            self._put(new, user)
        await wait_until_stored(self._server.tables)

    async def change_password(self, name: str, old: str, new: str, address: str) -> None:
        """Change a password. Raises Refusal 114 if ``old`` is wrong; wrong passwords are slowed down as at login."""
        self._existing(name)
        check_password("new_pwd", new)
        try:
            await self.log_in(name, old, address)
        except WrongLogin:
            raise Refusal(OLD_PASSWORD_WRONG, "the old password is wrong") from None
        await self.update(name, password=new)

    async def delete(self, name: str) -> None:
        self._existing(name)
        self._keep_administrator(name)
        check_store_writable(self._server.tables)
        self._table.remove(name)
        self._changed(name)
        await wait_until_stored(self._server.tables)

    def _existing(self, name: str) -> DashboardUser:
        user = self._table.get(name)
        if user is None:
            raise Refusal(NO_USER, f"Username Not Found: {name[:MAX_NAME_LENGTH]}")
        return user

    def _keep_administrator(self, name: str) -> None:
        """Check that another administrator exists. Raises Refusal 106 if ``name`` is the only one."""
        administrators = [user.name for user in self._table.values() if user.role == ADMINISTRATOR]
        if administrators == [name]:
            raise Refusal(ADMIN_STAYS, f"Cannot delete admin: {name} is the last administrator")

    def _put(self, user: DashboardUser, old: DashboardUser | None = None) -> None:
        changed = old is None or (old.password, old.role) != (user.password, user.role)
        user = msgspec.structs.replace(
            user,
            revision=secrets.randbits(62) if changed or old is None else old.revision,
            created_at=old.created_at if old is not None else self._server.clock.wall(),
        )
        with rows_of_a_size():
            self._table.put(user.name, user)
        if changed:
            self._changed(user.name)

    def _taken(self, name: str, old: DashboardUser | None, new: DashboardUser | None) -> None:
        """Handle a change of a user by another node."""
        if old is not None and (new is None or new.revision != old.revision):
            self._changed(name)

    def _changed(self, name: str) -> None:
        for call in self.on_changed:
            call(name)

    async def _hash(self, password: str) -> ScryptHash:
        try:
            return await self._passwords.hash(password.encode("ascii"))
        except (RuntimeError, MemoryError, ValueError) as error:
            raise Refusal(RPC_ERROR, "no password can be hashed: the node is stopping or out of memory") from error


def same_user(one: DashboardUser, other: DashboardUser) -> bool:
    """Return whether an operator would consider the users equal."""
    return (one.password, one.role, one.tags) == (other.password, other.role, other.tags)


def user_record(user: DashboardUser) -> DashboardUserRecord:
    return DashboardUserRecord(user.name, user.tags, user.role)


def _one_thread(settings: AccessSettings) -> AccessSettings:
    return msgspec.structs.replace(settings, hash_threads=1)
