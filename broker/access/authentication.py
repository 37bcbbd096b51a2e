"""Authentication: the identity of a client. Asks the sources of users in order; ``Passwords`` verifies passwords."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ..config import AccessSettings, ZoneSettings
from ..loop.clock import Clock
from ..mqtt import reason_codes
from ..session.client_info import PROVED_BY_TLS, RESTORED, ClientInfo
from .auth_result import WRONG, Authenticator, AuthOutcome, LoginStep, Trial
from .enhanced import EnhancedMethod
from .password_check import Passwords, let_in
from .scram import NAME as SCRAM_SHA_256
from .scram import FakeVerifiers, ScramSha256
from .source import Source, SourceParts
from .users import User, UserSource

_ANONYMOUS: Final = AuthOutcome(anonymous=True)
_NO_ANONYMOUS: Final = AuthOutcome(
    reason_codes.NOT_AUTHORIZED, detail="anonymous_not_allowed", setting="allow_anonymous"
)
_NO_USERS: Final = AuthOutcome(
    reason_codes.BAD_USER_NAME_OR_PASSWORD, detail="no_users_are_configured", setting="allow_anonymous"
)
_UNKNOWN: Final = AuthOutcome(
    reason_codes.BAD_USER_NAME_OR_PASSWORD, detail="no_source_knows_it", setting="access.authenticators"
)

_KNOWS: Final = "knows this user"
_KNOWS_NOT: Final = "does not know this user"

_Outcome = AuthOutcome | Awaitable[AuthOutcome]


class Authentication:
    """The first source that knows the user decides. ``users``: the sources that answer from memory, in order."""

    def __init__(
        self,
        settings: AccessSettings,
        clock: Clock,
        count: Callable[[str], None],
        was_here: Callable[[ClientInfo], bool],
    ) -> None:
        """``count``: called with each reason why a client waits or is refused. ``was_here``: whether a session shows
        that a client was accepted before."""
        self.settings = settings
        self.users: list[UserSource] = []
        self.passwords = Passwords(settings, clock, self._find_user, count, was_here)
        self.passwords.costs = lambda: [source.costs for source in self.users]
        self._sources: Sequence[Source] = ()
        # The sources that check credentials themselves, by their names in ``ClientInfo.proved_by``.
        self._outside: frozenset[str] = frozenset()
        # All sources, if one of them checks credentials itself; otherwise empty.
        self._chain: tuple[UserSource | Authenticator, ...] = ()
        self._added: tuple[Authenticator, ...] = ()
        self._configured_chain: tuple[UserSource | Authenticator, ...] = ()
        self._scram: ScramSha256

    def reload(self, settings: AccessSettings, parts: Sequence[SourceParts]) -> None:
        """``parts``: those of all active sources, in any order."""
        self.settings = settings
        self._sources = [each.source for each in parts]
        self.passwords.reload(settings)
        scram_verifiers = [verifier for each in parts for verifier in each.scram_verifiers]
        self._scram = ScramSha256(self._find_user, FakeVerifiers(scram_verifiers))
        known = {each.source.name: each.authenticator for each in parts}
        found = [source for name in settings.authenticators if (source := known.get(name)) is not None]
        self.users = [source for source in found if not isinstance(source, Authenticator)]
        self._configured_chain = tuple(found)
        users = {name for name, source in known.items() if source is not None and not isinstance(source, Authenticator)}
        self._outside = frozenset(known) - users
        self._join_chain()

    def add(self, source: Authenticator) -> None:
        """Add a source of the embedding program: it is asked after earlier ones of this kind, and before those of the
        settings."""
        self._added = (*self._added, source)
        self._join_chain()

    def _join_chain(self) -> None:
        chain = self.chain
        self._chain = chain if any(isinstance(source, Authenticator) for source in chain) else ()

    @property
    def chain(self) -> tuple[UserSource | Authenticator, ...]:
        """All that are asked, in order."""
        return (*self._added, *self._configured_chain)

    @property
    def has_users(self) -> bool:
        """Whether there are any users: then unknown names are refused (``unknown_user``)."""
        return any(source.has_users for source in self.users)

    def is_configured(self, username: str) -> bool:
        """Return whether the configuration file has a user with this name, which no stored user can replace."""
        return any(source.keeps(username) for source in self._sources)

    def is_superuser(self, client: ClientInfo) -> bool:
        """Return whether this client has a superuser's right now.

        It has the right of the user that it has authenticated as: a user with the same name in another source, or one
        that was given the name later, is another user. The answer of an external service applies as long as the service
        is asked."""
        name = client.user
        if name is None:
            return False
        by = client.proved_by
        if any(source.name == by for source in self._added):
            return client.is_superuser
        user = self._find_named(client, name)
        if by in self._outside or (by in PROVED_BY_TLS and user is None):
            return client.is_superuser and self._source_for_superusers() is not None
        if user is None or not user.is_superuser or not (by in (user.source, RESTORED) or by in PROVED_BY_TLS):
            return False
        # After a reload, the user of the file may be a different one: this user gains the right with the next CONNECT.
        return by != user.source or not user.reloaded or client.is_superuser

    def assume(self, client: ClientInfo) -> None:
        """Treat this client as if it had authenticated with the right password or token."""
        user = self._find_user(client, client.username or "")
        if user is not None:
            outcome = let_in(user)
            client.proved_by, client.is_superuser = outcome.proved_by, outcome.is_superuser
            client.proved_client_id = outcome.proves_client_id
        elif client.username:
            outside = [source.name for source in self._chain if isinstance(source, Authenticator)]
            client.proved_by = outside[0] if outside else ""

    def authenticate(
        self, client: ClientInfo, password: bytes | None, proved_by: str = "", trial: Trial | None = None
    ) -> _Outcome:
        """Check a CONNECT. Answers immediately unless a password must be hashed or an external service must be asked.

        ``proved_by``: the part of TLS (CERTIFICATE or PSK) that has proved the username, which then needs no password;
        or empty. ``trial``: a test login by an operator, without a CONNECT."""
        username = client.username
        if proved_by and username:
            client.proved_by = proved_by
            if trial is not None:
                trial.decided_by = proved_by
            user = self._find_named(client, username)
            knowing = self._source_for_superusers()
            if user is None and knowing is not None:
                return self._ask_whether_superuser(client, knowing, proved_by)
            return AuthOutcome(is_superuser=user is not None and user.is_superuser, proved_by=proved_by)
        if self._chain:
            return self._ask_chain(client, password, self._chain, 0, trial)
        return self._authenticate_here(client, password, trial)

    def _source_for_superusers(self) -> Source | None:
        """Return the source that is asked about clients that other sources have authenticated."""
        for source in self._sources:
            if source.knows_superusers and source.name in self.settings.authenticators:
                return source
        return None

    @staticmethod
    async def _ask_whether_superuser(client: ClientInfo, source: Source, proved_by: str) -> AuthOutcome:
        return AuthOutcome(is_superuser=await source.is_superuser(client), proved_by=proved_by)

    def _without_outcome(self, name: str) -> str:
        """Return why a source leaves a client to the next one, in words."""
        return next((source.without_outcome for source in self._sources if source.name == name), Source.without_outcome)

    def _ask_chain(
        self,
        client: ClientInfo,
        password: bytes | None,
        chain: tuple[UserSource | Authenticator, ...],
        start: int,
        trial: Trial | None,
    ) -> _Outcome:
        """Ask the sources in order, until one decides."""
        for index in range(start, len(chain)):
            source = chain[index]
            if isinstance(source, Authenticator):
                outcome = source.authenticate(client, password)
                if isinstance(outcome, AuthOutcome):
                    _note(trial, source.name, outcome)
                    return outcome
                if outcome is not None:
                    return self._continue_chain(outcome, client, password, chain, index + 1, trial)
                if trial is not None:
                    _note(trial, source.name, None, self._without_outcome(source.name))
            else:
                user = source.lookup(client, client.username or "")
                _note(trial, source.name, None, _KNOWS if user is not None else _KNOWS_NOT)
                if user is not None:
                    break
        return self._authenticate_here(client, password, trial)

    async def _continue_chain(
        self,
        asked: Awaitable[AuthOutcome | None],
        client: ClientInfo,
        password: bytes | None,
        chain: tuple[UserSource | Authenticator, ...],
        start: int,
        trial: Trial | None,
    ) -> AuthOutcome:
        outcome = await asked
        if trial is not None:
            name = chain[start - 1].name
            _note(trial, name, outcome, "" if outcome is not None else self._without_outcome(name))
        if outcome is not None:
            return outcome
        rest = self._ask_chain(client, password, chain, start, trial)
        return rest if isinstance(rest, AuthOutcome) else await rest

    def _authenticate_here(self, client: ClientInfo, password: bytes | None, trial: Trial | None) -> _Outcome:
        """Authenticate with the node's own users; an unknown client is anonymous or refused."""
        username = client.username
        has_users = self.has_users
        # A source may know a client without a username by its client identifier.
        user = self._find_user(client, username or "") if has_users else None
        if trial is not None:
            trial.decided_by = "anonymous" if user is None else user.source
            if not self._chain:
                for source in self.users:
                    found = source.lookup(client, username or "")
                    _note(trial, source.name, None, _KNOWS if found is not None else _KNOWS_NOT)
                    if found is not None:
                        break
        anonymous = anonymous_allowed(client.zone, client.loopback)
        if user is None and anonymous and self.settings.unknown_user == "anonymous":
            return _ANONYMOUS
        if self._chain and user is None and (username or password):
            # Others have been asked: a client with an unknown name is not anonymous.
            if not has_users:
                return _UNKNOWN
        elif not has_users or (user is None and not username and not password):
            if anonymous:
                return _ANONYMOUS
            return _NO_USERS if username else _NO_ANONYMOUS
        if password is None:
            return WRONG
        return self.passwords.check(client, username or "", user, password, trial)

    def _find_user(self, client: ClientInfo, username: str) -> User | None:
        """``username``: empty for a client without one."""
        for source in self.users:
            user = source.lookup(client, username)
            if user is not None:
                return user
        return None

    def _find_named(self, client: ClientInfo, username: str) -> User | None:
        """Return the user with this name, regardless of the client's identifier."""
        for source in self.users:
            user = source.lookup(client, username)
            if user is not None and user.by_name:
                return user
        return None

    def enhanced_method(self, name: str) -> EnhancedMethod | None:
        """Return the enhanced authentication method with this name; ``None``: respond with 0x8C [MQTT-4.12.0-1]."""
        if name == SCRAM_SHA_256 and any(source.has_scram for source in self.users):
            return self._scram
        return None


def _note(trial: Trial | None, source: str, outcome: AuthOutcome | None, detail: str = "") -> None:
    if trial is not None:
        trial.steps.append(LoginStep(source, outcome, detail))
        if outcome is not None:
            trial.decided_by = source


def anonymous_allowed(zone: ZoneSettings, loopback: bool) -> bool:
    """Return whether a listener accepts anonymous clients. ``loopback``: all its clients are on this machine."""
    return loopback if zone.allow_anonymous is None else zone.allow_anonymous
