"""DatabaseSource: reads users, superusers and rules from a database, each with a query that the operator configures.

A subclass per database runs the queries and reads their rows. The base class decides the order of the queries, verifies
passwords, and applies the rules.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config import RuleSettings
from ..session.client_info import ClientInfo
from .acl import AclRule, asked_about
from .auth_result import WRONG, AuthOutcome
from .declaration import RemoteSettings
from .outside import ALLOW, DENY, IGNORE, OutsideSource, Verdict
from .password_hash import PasswordVerifier
from .query_hash import HashFormat, QueryHash
from .remote import RemoteSource, SourceFailed
from .remote_status import UNDECIDED
from .source import SourceContext

Values = Mapping[str, str]
"""The value of each placeholder, by its letter. A placeholder for which the client has no value is missing."""


@dataclass(frozen=True, slots=True)
class Queries:
    """The three queries: the last key of each setting (``words``), and the letters of the placeholders that each query
    has. None: the query is not configured."""

    words: tuple[str, str, str]
    auth: frozenset[str] | None
    superuser: frozenset[str] | None
    acl: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """The two columns of a user's row. ``password`` is None for NULL."""

    password: bytes | None
    salt: bytes | None


class DatabaseSource(RemoteSource):
    """Belongs to one event loop."""

    # A query takes less than a millisecond, and all clients of a node may reconnect at once.
    waiting_per_connection = 2048
    without_outcome = "has no such user"
    without_decision = "has no rule for it"

    def __init__(self, name: str, settings: RemoteSettings, context: SourceContext, queries: Queries) -> None:
        super().__init__(name, settings, context)
        self._queries = queries
        self._auth_setting, self._super_setting, self._acl_setting = (f"access.{name}.{word}" for word in queries.words)

    # --------------------------------------------------------- of a database

    @abstractmethod
    async def find_password(self, values: Values) -> StoredPassword | None:
        """Return the row of a user, or None if there is none. Raises SourceFailed."""

    @abstractmethod
    async def find_superuser(self, values: Values) -> bool:
        """Return whether the database calls the client a superuser. Raises SourceFailed."""

    @abstractmethod
    async def find_rules(self, values: Values) -> Sequence[AclRule]:
        """Return the rules that may concern a client; the first that matches decides. Raises SourceFailed, and
        ValueError for a row that cannot be read as a rule."""

    @abstractmethod
    def verifier(self, row: StoredPassword, password: bytes, owner: str) -> PasswordVerifier | None:
        """Return the verifier for ``password``, the password of ``row``, or None if no password can match. ``owner`` is
        different for each user."""

    # ------------------------------------------------------------- questions

    def authenticator(self) -> "DatabaseSource | None":
        return self if self._queries.auth is not None else None

    def authorizer(self) -> OutsideSource | None:
        return self if self._queries.acl is not None else None

    @property
    def knows_superusers(self) -> bool:
        return self._queries.superuser is not None

    async def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        letters = self._queries.auth or frozenset()
        values = self._known(client, client.username)
        if not letters <= values.keys():
            return None  # for example a client without a username
        found: list[StoredPassword] = []

        async def question() -> Verdict:
            row = await self.find_password(values)
            if row is None:
                return Verdict(IGNORE, "", self._auth_setting)
            found.append(row)
            return Verdict(UNDECIDED, "", self._auth_setting)

        verdict = await self.ask(self._auth_setting, question)
        if verdict.decision != UNDECIDED:
            return self.not_let_in(verdict, client, password)
        refused = await self.verify(client, found[0], password)
        if refused is not None:
            self.status.decided(DENY)
            return refused
        self.status.decided(ALLOW)
        client.proved_by = self.name if "u" in letters and client.username else ""
        superuser = await self.is_superuser(client)
        return AuthOutcome(is_superuser=superuser, proved_by=client.proved_by, proves_client_id="c" in letters)

    async def verify(self, client: ClientInfo, row: StoredPassword, password: bytes | None) -> AuthOutcome | None:
        """Return the refusal, or None if the password is right."""
        wrong = self.not_let_in(Verdict(DENY, "", self._auth_setting), client, password)
        if password is None or not row.password:
            return wrong
        owner = (client.username or "") if "u" in (self._queries.auth or ()) else client.client_id
        verifier = self.verifier(row, row.password, f"{self.name}:{owner}")
        if verifier is None:
            return wrong
        outcome = await self._context.verify(client, owner, verifier, password)
        return wrong if outcome is WRONG else outcome

    async def is_superuser(self, client: ClientInfo) -> bool:
        """Return whether the database calls the client a superuser; after a failure, False."""
        letters = self._queries.superuser
        values = self._known(client, client.user)
        if letters is None or not letters <= values.keys():
            return False
        told: list[bool] = []

        async def question() -> Verdict:
            told.append(await self.find_superuser(values))
            return Verdict(UNDECIDED, "", self._super_setting)

        await self.ask(self._super_setting, question)
        return told == [True]

    async def authorize(self, client: ClientInfo, action: str, topic: str) -> Verdict:
        """Return the decision of the database's rules. Clients whose username begins with ``$`` are left to the next
        source, as in EMQX 4."""
        user = client.user or ""
        if user.startswith("$"):
            return Verdict(IGNORE, "", self._acl_setting)
        values = self._known(client, client.user)

        async def question() -> Verdict:
            try:
                rules = await self.find_rules(values)
            except ValueError as error:
                raise SourceFailed("bad_row", detail=str(error)) from None
            return Verdict(decided(rules, client, action, topic), "", self._acl_setting)

        return await self.ask(self._acl_setting, question)

    def _known(self, client: ClientInfo, username: str | None) -> Values:
        return {letter: value for letter, value in self.facts(client, username).items() if value}


def hash_of_columns(form: HashFormat, row: StoredPassword, password: bytes, owner: str) -> QueryHash | None:
    """Return the verifier for a row in the format of ``password_hash``, or None if the salt is missing."""
    if form.salted and row.salt is None:
        return None
    return QueryHash(form, password, row.salt or b"", owner)


def decided(rules: Sequence[AclRule], client: ClientInfo, action: str, topic: str) -> str:
    """Return the decision of the first rule that matches, or ``IGNORE`` if no rule matches."""
    publish = action == "publish"
    whole, levels = asked_about(publish, topic)
    for rule in rules:
        if (rule.publish if publish else rule.subscribe) and rule.concerns(client):
            if rule.matches_topic(client, whole, levels):
                return ALLOW if rule.allow else DENY
    return IGNORE


def action_of(access: object) -> str:
    """Return the action for EMQX's number: 1 subscribe, 2 publish, 3 both. Raises ``ValueError``."""
    action = {"1": "subscribe", "2": "publish", "3": "pubsub"}.get(as_text(access).strip())
    if action is None:
        raise ValueError(f"access is {as_text(access)!r}, expected 1 (subscribe), 2 (publish) or 3 (both)")
    return action


def new_rule(allow: bool, access: object, topic: str, **conditions: str) -> AclRule:
    """Return the access rule of a row. Raises ``ValueError`` for an invalid row."""
    return AclRule(RuleSettings(allow=allow, action=action_of(access), topics=[topic], **conditions))  # type: ignore[arg-type]


def as_bytes(value: object) -> bytes | None:
    """Return a column as the bytes that were hashed or stored, or None for NULL."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def as_text(value: object) -> str:
    """Return a column as text; NULL becomes an empty string."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(int(value)) if isinstance(value, bool) else str(value)
