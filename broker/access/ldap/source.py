"""LdapSource: asks a directory over a pool of connections."""

import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ...config import RuleSettings
from ...mqtt import reason_codes
from ...session.client_info import ClientInfo
from ...setting_rules import Fault
from ..acl import AclRule
from ..auth_result import AuthOutcome
from ..connection_pool import ConnectionPool
from ..database import DatabaseSource, Queries, StoredPassword, Values
from ..database_checks import tls_faults, tls_of
from ..outside import DENY, Verdict
from ..password_hash import PasswordVerifier
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION, UNDECIDED
from ..source import SourceContext
from .connection import LdapConnection
from .declaration import LdapAccessSettings, addresses_of
from .hashes import hash_in_directory
from .message import Condition, Conditions, DirectoryEntry
from .names import USER, name_of, placeholders, text_of

_WORDS: Final = ("custom_base_dn", "superuser_group", "device_dn")
_ENABLED: Final = "isEnabled"
_PUBLISH: Final = "mqttPublishTopic"
_SUBSCRIBE: Final = "mqttSubscriptionTopic"
_BOTH: Final = "mqttPubSubTopic"
_TOPICS: Final = {_PUBLISH: "publish", _SUBSCRIBE: "subscribe", _BOTH: "pubsub"}
_MOST_GROUPS: Final = 1000
_KNOWN: Final = frozenset(["username_attr", "device_dn", USER])
_LEVELS: Final = 3
"""Maximum nesting depth of conditions, counted in the library's structures."""


def faults(settings: LdapAccessSettings) -> Iterator[Fault]:
    """Yield the faults in combinations of keys, and those of the files."""
    texts = {"custom_base_dn": settings.custom_base_dn}
    for index, each in enumerate(settings.filters):
        texts[f"filters.{index}.key"], texts[f"filters.{index}.value"] = each.key, each.value
    for key, text in texts.items():
        for name in sorted(placeholders(text) - _KNOWN):
            yield Fault((key,), f"${{{name}}} is not one of ${{username_attr}}, ${{user}}, ${{device_dn}}")
    if not any(USER in placeholders(text) for text in texts.values()):
        yield Fault(("custom_base_dn",), "names no client: ${user} is missing")
    if any(USER in placeholders(each.key) for each in settings.filters):
        yield Fault(("filters",), "${user} is possible only in a value")
    if _depth(_conditions(settings, "")) > _LEVELS:
        yield Fault(("filters",), "and and or alternate too often")
    if bool(settings.bind_dn) != bool(settings.bind_password):
        key, other = ("bind_dn", "bind_password") if settings.bind_dn else ("bind_password", "bind_dn")
        yield Fault((key,), f"needs {other}: without it, the directory would be asked anonymously")
    if settings.tls and settings.start_tls:
        yield Fault(("start_tls",), "tls encrypts from the first byte on; set one of them")
    yield from tls_faults(_secured(settings))


def _secured(settings: LdapAccessSettings) -> LdapAccessSettings:
    """Return the settings with ``tls`` set for StartTLS as well: its certificates are read and verified in the same
    way."""
    return msgspec.structs.replace(settings, tls=settings.tls or settings.start_tls)


class LdapSource(DatabaseSource):
    """Belongs to one event loop. Logins with ``bind_as_user`` have their own connections, as many as questions."""

    setting = "access.ldap.device_dn"
    title = "the directory"

    def __init__(self, settings: LdapAccessSettings, context: SourceContext) -> None:
        """Raises ValueError for a file that cannot be used."""
        user = frozenset("u")
        superuser = user if settings.superuser_group else None
        super().__init__("ldap", settings, context, Queries(_WORDS, user, superuser, user))
        self._settings = settings
        self._addresses = addresses_of(settings.servers, settings.port)
        self._tls: ssl.SSLContext | None = tls_of(_secured(settings))
        self._names = _names(settings)
        self._identities = _identities(settings)
        self._pool: ConnectionPool[LdapConnection] = ConnectionPool(self._bound, LdapConnection.abort)
        self._logins: ConnectionPool[LdapConnection] = ConnectionPool(self._new_connection, LdapConnection.abort)

    # ----------------------------------------------------------- connections

    async def connect(self) -> None:
        """Open the first connection of the pool."""
        self._pool.keep(await self._bound())

    async def _new_connection(self) -> LdapConnection:
        """To the first server that can be reached."""
        settings = self._settings
        failure = SourceFailed(NO_CONNECTION, away=True)
        for host, port in self._addresses:
            try:
                return await LdapConnection.open(host, port, self._tls, settings.tls, settings.connect_timeout)
            except SourceFailed as why:
                failure = why
        raise failure

    async def _bound(self) -> LdapConnection:
        settings = self._settings
        connection = await self._new_connection()
        try:
            if settings.bind_dn and not await connection.bind(
                settings.bind_dn.encode(), settings.bind_password.encode()
            ):
                raise SourceFailed(NO_CONNECTION, detail="bind_dn or bind_password is wrong", away=True)
        except SourceFailed as why:
            connection.abort()
            raise SourceFailed(NO_CONNECTION, detail=why.detail, away=True) from None
        except BaseException:
            connection.abort()
            raise
        return connection

    def close_connections(self) -> None:
        self._pool.close()
        self._logins.close()

    # ------------------------------------------------------------- questions

    async def find_password(self, values: Values) -> "_StoredEntry | None":
        entry = await self._find_user(values, (self._settings.password_attributetype, _ENABLED))
        if entry is None:
            return None
        stored = entry.values(self._settings.password_attributetype)
        if len(stored) > 1 and not self._settings.bind_as_user:
            raise SourceFailed("bad_row", detail=f"{len(stored)} values of {self._settings.password_attributetype}")
        # With bind_as_user, the directory has the password, and need not show it.
        password = stored[0] if stored and not self._settings.bind_as_user else b"-"
        return _StoredEntry(password if _is_enabled(entry) else None, None, entry.dn)

    def verifier(self, row: StoredPassword, password: bytes, owner: str) -> PasswordVerifier | None:
        return hash_in_directory(password, owner)

    async def verify(self, client: ClientInfo, row: StoredPassword, password: bytes | None) -> AuthOutcome | None:
        if not self._settings.bind_as_user:
            return await super().verify(client, row, password)
        wrong = self.not_let_in(Verdict(DENY, "", self._auth_setting), client, password)
        # A bind without a password is one as anonymous, and succeeds (RFC 4513, 5.1.2).
        if not password or row.password is None:
            return wrong
        assert isinstance(row, _StoredEntry)
        dn, given = row.dn, password
        accepted: list[bool] = []

        async def question() -> Verdict:
            accepted.append(await self._logins.use(lambda connection: connection.bind(dn, given)))
            return Verdict(UNDECIDED, "", self._auth_setting)

        verdict = await self.ask(self._auth_setting, question)
        if verdict.decision != UNDECIDED:
            refused = self.not_let_in(verdict, client, password)
            # The entry exists: another source must not accept the client with another password.
            return refused or AuthOutcome(
                reason_codes.SERVER_UNAVAILABLE, detail=verdict.failure, setting=verdict.setting
            )
        return None if accepted == [True] else wrong

    async def find_superuser(self, values: Values) -> bool:
        entry = await self._find_user(values, (_ENABLED,))
        if entry is None or not _is_enabled(entry):
            return False
        return bool(await self._search(self._settings.superuser_group, _membership(entry.dn, values["u"]), ("1.1",), 1))

    async def find_rules(self, values: Values) -> Sequence[AclRule]:
        if "u" not in values:
            return []
        entry = await self._find_user(values, (_PUBLISH, _SUBSCRIBE, _BOTH, _ENABLED))
        if entry is None:
            return []
        if not _is_enabled(entry):
            return [_NOTHING]
        entries = [entry]
        if self._settings.groups_dn:
            member = _membership(entry.dn, values["u"])
            entries += await self._search(self._settings.groups_dn, member, (_PUBLISH, _SUBSCRIBE, _BOTH), _MOST_GROUPS)
        return [rule for each in entries for rule in _rules_of(each)]

    async def _find_user(self, values: Values, attributes: Sequence[str]) -> DirectoryEntry | None:
        user = values["u"]
        base = name_of(self._settings.custom_base_dn, self._names, user)
        wanted = [*attributes, *(each for each in self._identities if each not in attributes)]
        found = await self._search(base, _conditions(self._settings, user), wanted, 1)
        if not found:
            return None
        # A directory may find "ann" by "ANN" or " ann". Here these are other users, with other rules and sessions.
        exact = user.encode("utf-8", "surrogatepass")
        same = not self._identities or any(exact in found[0].values(each) for each in self._identities)
        return found[0] if same else None

    async def _search(
        self, base: str, condition: Condition | Conditions, attributes: Sequence[str], most: int
    ) -> list[DirectoryEntry]:
        return await self._pool.use(lambda connection: connection.search(base, condition, attributes, most))


@dataclass(frozen=True, slots=True)
class _StoredEntry(StoredPassword):
    """``password``: None if the entry may not log in."""

    dn: bytes


_NOTHING: Final = AclRule(RuleSettings(allow=False), "access.ldap.device_dn")


def _names(settings: LdapAccessSettings) -> dict[str, str]:
    return {"username_attr": settings.username_attributetype, "device_dn": settings.device_dn}


def _identities(settings: LdapAccessSettings) -> list[str]:
    """Return the attributes whose value is compared with the username."""
    found = [text_of(each.key, _names(settings), "") for each in settings.filters if each.value == f"${{{USER}}}"]
    if "username_attr" in placeholders(settings.custom_base_dn):
        found.append(settings.username_attributetype)
    return found


def _is_enabled(entry: DirectoryEntry) -> bool:
    return all(value.strip().lower() == b"true" for value in entry.values(_ENABLED))


def _rules_of(entry: DirectoryEntry) -> Iterator[AclRule]:
    for attribute, action in _TOPICS.items():
        topics = [value.decode("utf-8", "replace") for value in entry.values(attribute)]
        if topics:
            yield AclRule(RuleSettings(allow=True, action=action, topics=topics))  # type: ignore[arg-type]


def _membership(dn: bytes, user: str) -> Conditions:
    return "or", [("member", dn), ("uniqueMember", dn), ("memberUid", user.encode("utf-8", "surrogatepass"))]


def _conditions(settings: LdapAccessSettings, user: str) -> Condition | Conditions:
    """Return the conditions of ``filters`` in order, as in EMQX: each operator combines all conditions before it with
    the next one."""
    names = _names(settings)
    made: Condition | Conditions = ("objectClass", settings.match_objectclass.encode())
    for index, each in enumerate(settings.filters):
        value = text_of(each.value, names, user).encode("utf-8", "surrogatepass")
        condition: Condition = (text_of(each.key, names, ""), value)
        if index == 0:
            made = condition
            continue
        operator = settings.filters[index - 1].op
        if made[0] == operator and not isinstance(made[1], bytes):
            made = (operator, [*made[1], condition])
        else:
            made = (operator, [made, condition])
    return made


def _depth(condition: Condition | Conditions) -> int:
    second = condition[1]
    return 1 if isinstance(second, bytes) else 1 + max(_depth(each) for each in second)
