"""AccessControl: the one gate. Asks the chain of sources who a client is and what it may do."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ..config import AccessSettings
from ..loop.clock import Clock
from ..mqtt import reason_codes
from ..session.client_info import CERTIFICATE, RESTORED, ClientInfo
from .acl import ConfiguredRules, RuleSource
from .banned import Ban, Banned
from .cache import AclCache
from .enhanced import EnhancedMethod
from .http import HttpSource
from .jwt import JwtSource
from .outcome import WRONG, Answer, Authenticator, AuthOutcome
from .passwords import Passwords
from .scram import NAME as SCRAM_SHA_256
from .scram import FakeVerifiers, ScramSha256
from .users import CONFIGURATION, ConfiguredUsers, User, UserSource

logger = logging.getLogger(__name__)

# Permissions of one client that are asked for at a time.
_ASKED_AT_ONCE: Final = 16
# Sources that know users of others, by their names in ``ClientInfo.proved_by``.
_OUTSIDE: Final = ("jwt", "http")


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


class AccessControl:
    """Who may connect, publish and subscribe. Belongs to one event loop.

    ``authenticators``: the first source that knows the user decides. ``authorizers``: the first that has a rule for it
    decides; without one, ``no_match`` does. Sources may be added; who changes rules calls ``forget_decisions``.
    ``jwt`` and ``http`` are the outside ones, in their places in both lists where they are set up; ``asks``: whether
    ``http`` is asked for permissions.
    ``banned``: who is not even asked who it is, ``None`` where nobody can be.
    ``lost``: why nobody is let in at all, ``""`` where all the rows are there that ``tables`` keep.
    ``cache_hits`` counts decisions that came from a client's cache, ``ignored`` those that no source had a rule for.
    ``setting``: what the latest denial came from, such as ``access.rules.3`` or ``access.no_match``.
    """

    def __init__(self, settings: AccessSettings, clock: Clock) -> None:
        """``ValueError`` for a hash or a rule that cannot be read."""
        self.clock = clock
        self.cache_hits = 0
        self.ignored = 0
        self.setting = ""
        self.generation = 0
        self.banned: Banned | None = None
        self.lost = ""
        # Bytes of clients that wait to be let in; their connections count them.
        self.waiting_octets = 0
        self.passwords = Passwords(settings, clock, self._find_user)
        self.authenticators: list[UserSource | Authenticator] = []
        self.authorizers: list[RuleSource | HttpSource] = []
        # Told why an outside source gave no answer; ``server`` counts it.
        self.count_failure: Callable[[str], None] = _uncounted
        # Called when rules have changed.
        self.on_change: Callable[[], None] = _unheard
        self.http: HttpSource | None = None
        self.jwt: JwtSource | None = None
        self._started = False
        self._retiring: list[HttpSource] = []
        self._configured_users: ConfiguredUsers
        self._configured_rules: ConfiguredRules
        self._stored_users: UserSource | None = None
        self._stored_rules: RuleSource | None = None
        self._own_users: list[UserSource | Authenticator] = []
        self._own_rules: list[RuleSource | HttpSource] = []
        self._take(settings)
        self._order()

    def _take(self, settings: AccessSettings) -> None:
        # Each may raise: build them before anything changes.
        users = ConfiguredUsers(settings.users)
        rules = ConfiguredRules(settings.rules)
        http, jwt = self.http, self.jwt
        if settings.http is None:
            http = None
        elif http is None or http.settings != settings.http:
            http = HttpSource(settings.http, self.clock, lambda reason: self.count_failure(reason))
        if settings.jwt is None:
            jwt = None
        elif jwt is None or jwt.settings != settings.jwt:
            jwt = JwtSource(settings.jwt, self.clock)
        self._replace_outside(http, jwt)
        self.settings = settings
        self._configured_users = users
        self._configured_rules = rules
        self.passwords.reload(settings, users.stand_in(1 << settings.hash_cost))
        self._no_match = settings.no_match == "allow"
        self._cache = settings.cache
        self._scram = ScramSha256(self._find_user, FakeVerifiers(users.scram_verifiers()))

    def _replace_outside(self, http: HttpSource | None, jwt: JwtSource | None) -> None:
        if self.http is not None and self.http is not http:
            self._retiring = [each for each in self._retiring if each.busy]
            self._retiring.append(self.http)
            self.http.retire()
        if self.jwt is not jwt:
            if self.jwt is not None:
                self.jwt.retire()
            if jwt is not None and self._started:
                jwt.start()
        self.http, self.jwt = http, jwt

    def _order(self) -> None:
        """Put the sources in the order of the settings; what somebody else has added stays around them."""
        settings, http = self.settings, self.http
        users: dict[str, UserSource | Authenticator | None] = {
            "configuration": self._configured_users,
            "stored": self._stored_users,
            "jwt": self.jwt,
            "http": http if http is not None and http.authenticates else None,
        }
        rules: dict[str, RuleSource | HttpSource | None] = {
            "configuration": self._configured_rules,
            "stored": self._stored_rules,
            "jwt": self.jwt,
            "http": http if http is not None and http.authorizes else None,
        }
        own_users = [user for name in settings.authenticators if (user := users[name]) is not None]
        own_rules = [rule for name in settings.authorizers if (rule := rules[name]) is not None]
        self.authenticators = _placed(self.authenticators, self._own_users, own_users)
        self.authorizers = _placed(self.authorizers, self._own_rules, own_rules)
        self._own_users, self._own_rules = own_users, own_rules
        self._outside = any(isinstance(source, Authenticator) for source in own_users)
        self.asks = http is not None and http in own_rules

    def add_stored(self, users: UserSource, rules: RuleSource) -> None:
        """Take in what operators keep in the data directory."""
        self._stored_users, self._stored_rules = users, rules
        self._order()

    def start(self) -> None:
        """On the running loop: begin what goes on by itself."""
        self._started = True
        if self.jwt is not None:
            self.jwt.start()

    def reload(self, settings: AccessSettings) -> None:
        """Take new users and rules; ``ValueError`` leaves the old ones in force. Sources of others stay."""
        self._take(settings)
        self._order()
        self.drop_caches()

    def drop_caches(self) -> None:
        """Make every decision and every verified credential void, in all clients at once."""
        self.forget_decisions()
        self.passwords.verified.clear()

    def forget_decisions(self) -> None:
        """Rules have changed: make the decisions that clients remember void, in all of them at once."""
        self.generation += 1
        self.on_change()

    @property
    def restricts(self) -> bool:
        """Whether anybody could be refused anything."""
        if self.settings.no_match == "deny":
            return True
        return any(isinstance(source, HttpSource) or source.has_rules for source in self.authorizers)

    def close(self) -> None:
        """Stop the hash threads; who still waits for one, or comes later, is told that the Server is unavailable."""
        self.passwords.close()
        if self.jwt is not None:
            self.jwt.retire()

    async def stop(self) -> None:
        """``close``, and the connections to outside sources."""
        self.close()
        for source in (self.http, *self._retiring):
            if source is not None:
                await source.close()

    # Who is it

    def ban_of(self, client: ClientInfo) -> Ban | None:
        """The ban that keeps this client out."""
        return self.banned.find(client) if self.banned is not None else None

    @property
    def has_users(self) -> bool:
        """Whether anybody's name is known: then others are refused (``unknown_user``)."""
        return any(source.has_users for source in self._users())

    def is_configured(self, username: str) -> bool:
        """Whether the configuration file has a user of this name, whom no stored one can replace."""
        return self._configured_users.has(username)

    def superuser(self, client: ClientInfo) -> bool:
        """Whether this client has a superuser's right now.

        It has the right of the user that it has proved to be: one of the same name that another source knows, or that
        took the name since, is somebody else. What a service outside has said of it counts as long as that is asked.
        """
        name = client.user
        if name is None:
            return False
        by = client.proved_by
        user = self._find_named(client, name)
        if by in _OUTSIDE or (by == CERTIFICATE and user is None):
            return client.is_superuser and self._http_for_superusers() is not None
        if user is None or not user.is_superuser or by not in (user.source, CERTIFICATE, RESTORED):
            return False
        # A user of the file may have been another before the reload: it gains the right with its next CONNECT.
        return by != CONFIGURATION or client.is_superuser

    def authenticate(
        self, client: ClientInfo, password: bytes | None, certified: bool = False
    ) -> AuthOutcome | Awaitable[AuthOutcome]:
        """Check a CONNECT. Answers at once unless a password must be hashed or somebody outside be asked.

        ``certified``: the user name was taken from a client certificate that the listener verified, and needs no
        password.
        """
        username = client.username
        if certified and username:
            client.proved_by = CERTIFICATE
            user = self._find_named(client, username)
            http = self._http_for_superusers()
            if user is None and http is not None:
                return self._certify(client, http)
            return AuthOutcome(is_superuser=user is not None and user.is_superuser, proved_by=CERTIFICATE)
        if self._outside:
            return self._walk(client, password, tuple(self.authenticators), 0)
        return self._authenticate_here(client, password)

    def _http_for_superusers(self) -> HttpSource | None:
        http = self.http
        return http if http is not None and http.knows_superusers and "http" in self.settings.authenticators else None

    @staticmethod
    async def _certify(client: ClientInfo, http: HttpSource) -> AuthOutcome:
        return AuthOutcome(is_superuser=await http.is_superuser(client), proved_by=CERTIFICATE)

    def _walk(
        self,
        client: ClientInfo,
        password: bytes | None,
        chain: tuple["UserSource | Authenticator", ...],
        start: int,
    ) -> AuthOutcome | Awaitable[AuthOutcome]:
        """Ask source by source, as far as one decides."""
        for index in range(start, len(chain)):
            source = chain[index]
            if isinstance(source, Authenticator):
                outcome = source.authenticate(client, password)
                if isinstance(outcome, AuthOutcome):
                    return outcome
                if outcome is not None:
                    return self._walk_on(outcome, client, password, chain, index + 1)
            elif source.lookup(client, client.username or "") is not None:
                return self._authenticate_here(client, password)
        return self._authenticate_here(client, password)

    async def _walk_on(
        self,
        asked: Awaitable[AuthOutcome | None],
        client: ClientInfo,
        password: bytes | None,
        chain: tuple["UserSource | Authenticator", ...],
        start: int,
    ) -> AuthOutcome:
        outcome = await asked
        if outcome is not None:
            return outcome
        rest = self._walk(client, password, chain, start)
        return rest if isinstance(rest, AuthOutcome) else await rest

    def _authenticate_here(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | Awaitable[AuthOutcome]:
        """By our own users; whoever is none of them is anonymous or refused."""
        username = client.username
        has_users = self.has_users
        # Without a user name a source may still know it by its client identifier.
        user = self._find_user(client, username or "") if has_users else None
        zone = client.zone
        anonymous = client.loopback if zone.allow_anonymous is None else zone.allow_anonymous
        if user is None and anonymous and self.settings.unknown_user == "anonymous":
            return _ANONYMOUS
        if self._outside and user is None and (username or password):
            # Others have been asked: a name that nobody knows is not an anonymous client's.
            if not has_users:
                return _UNKNOWN
        elif not has_users or (user is None and not username and not password):
            if anonymous:
                return _ANONYMOUS
            return _NO_USERS if username else _NO_ANONYMOUS
        if password is None:
            return WRONG
        return self.passwords.check(client, username or "", user, password)

    def _find_user(self, client: ClientInfo, username: str) -> User | None:
        """``username``: empty for a client that gave none."""
        for source in self._users():
            user = source.lookup(client, username)
            if user is not None:
                return user
        return None

    def _find_named(self, client: ClientInfo, username: str) -> User | None:
        """The user of this name, whatever the client's identifier is."""
        for source in self._users():
            user = source.lookup(client, username)
            if user is not None and user.by_name:
                return user
        return None

    def _users(self) -> list[UserSource]:
        # Not isinstance: asked about a Protocol it costs more than all else that a CONNECT costs here.
        return [source for source in self.authenticators if not hasattr(source, "authenticate")]

    def enhanced(self, method: str) -> EnhancedMethod | None:
        """The enhanced authentication method of this name; ``None``: answer 0x8C [MQTT-4.12.0-1]."""
        if method == SCRAM_SHA_256 and any(source.has_scram for source in self._users()):
            return self._scram
        return None

    # What may it do

    def authorize_now(self, client: ClientInfo, action: str, topic: str, now: float | None = None) -> bool | None:
        """Whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter (shared or not).

        ``now``: unix seconds, where the caller knows them already. ``None``: somebody outside must be asked, ``ask``.
        """
        if client.is_superuser or not client.zone.enable_acl:
            return True
        if not self._cache:
            return self._decide(client, action, topic)
        if now is None:
            now = self.clock.now()
        cache: AclCache | None = client.acl_cache
        if cache is None:
            cache = client.acl_cache = AclCache(self.settings.cache_max_size, self.settings.cache_ttl, self.generation)
        elif cache.generation != self.generation:
            cache.clean()
            cache.size = self.settings.cache_max_size
            cache.ttl = self.settings.cache_ttl
            cache.generation = self.generation
        decision = cache.get(action, topic, now)
        if decision is not None:
            self.cache_hits += 1
            if not decision:
                self.setting = cache.setting(action, topic)
            return decision
        decision = self._decide(client, action, topic)
        if decision is not None:
            cache.put(action, topic, decision, now, self.setting)
        return decision

    def _decide(self, client: ClientInfo, action: str, topic: str) -> bool | None:
        for source in self.authorizers:
            if isinstance(source, HttpSource):
                return None
            decision = source.decide(client, action, topic)
            if decision is not None:
                self.setting = source.setting
                return decision
        self.ignored += 1
        self.setting = "access.no_match"
        return self._no_match

    async def ask(self, client: ClientInfo, action: str, topics: Sequence[str]) -> list[Answer]:
        """What ``authorize_now`` could not say, some topics at a time. Answers that last are remembered."""
        answers: list[Answer] = []
        for start in range(0, len(topics), _ASKED_AT_ONCE):
            some = topics[start : start + _ASKED_AT_ONCE]
            answers += await asyncio.gather(*[self._ask(client, action, topic) for topic in some])
        return answers

    async def _ask(self, client: ClientInfo, action: str, topic: str) -> Answer:
        generation = self.generation
        asked = self.http
        verdict = await asked.authorize(client, action, topic) if asked is not None else None
        lasting = verdict is not None and not verdict.failure
        # What lies nearer may have changed meanwhile, so all are heard now.
        answer = Answer(self._no_match, "access.no_match", True, lasting)
        for source in self.authorizers:
            if isinstance(source, HttpSource):
                decision, setting = (verdict.allowed, verdict.setting) if verdict is not None else (None, "")
            else:
                decision = source.decide(client, action, topic)
                setting = source.setting
            if decision is not None:
                answer = Answer(decision, setting, False, lasting)
                break
        cache: AclCache | None = client.acl_cache
        if lasting and self._cache and cache is not None and generation == self.generation == cache.generation:
            cache.put(action, topic, answer.allowed, self.clock.now(), answer.setting)
        return answer


Source = TypeVar("Source")


def _placed(chain: list[Source], old: list[Source], new: list[Source]) -> list[Source]:
    """``chain`` with ``new`` where ``old`` was."""
    ours = {id(source) for source in old}
    first = next((index for index, source in enumerate(chain) if id(source) in ours), len(chain))
    return chain[:first] + new + [source for source in chain[first:] if id(source) not in ours]


def _unheard() -> None:
    """Nobody listens."""


def _uncounted(reason: str) -> None:
    """Nobody counts."""
