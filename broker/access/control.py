"""AccessControl: the one gate. Asks the chain of sources who a client is and what it may do."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ..config import AccessSettings
from ..core.client_info import ClientInfo
from ..core.clock import Clock
from ..mqtt import reason_codes
from .acl import ConfiguredRules, RuleSource
from .banned import Ban, Banned
from .cache import AclCache
from .enhanced import EnhancedMethod
from .password import PasswordVerifier, ScryptHash, VerifiedCredentials
from .scram import NAME as SCRAM_SHA_256
from .scram import FakeVerifiers, ScramSha256
from .users import ConfiguredUsers, User, UserSource

logger = logging.getLogger(__name__)

# Passwords waiting for a hash thread, per thread. At 40 ms each the last of them waits half of the idle timeout.
_QUEUE_PER_THREAD: Final = 128


class AuthOutcome:
    """How an authentication ended: ``reason_code`` 0, or the 5.0 Reason Code that refuses.

    ``anonymous``: allowed without having proved to be anybody. ``detail`` says why and ``setting`` which key of the
    configuration decided (``-``: none), for the log only.
    """

    __slots__ = ("anonymous", "detail", "is_superuser", "reason_code", "setting")

    def __init__(
        self,
        reason_code: int = 0,
        is_superuser: bool = False,
        anonymous: bool = False,
        detail: str = "",
        setting: str = "-",
    ) -> None:
        self.reason_code = reason_code
        self.is_superuser = is_superuser
        self.anonymous = anonymous
        self.detail = detail
        self.setting = setting


_ANONYMOUS: Final = AuthOutcome(anonymous=True)
_NO_ANONYMOUS: Final = AuthOutcome(
    reason_codes.NOT_AUTHORIZED, detail="anonymous_not_allowed", setting="allow_anonymous"
)
_NO_USERS: Final = AuthOutcome(
    reason_codes.BAD_USER_NAME_OR_PASSWORD, detail="no_users_are_configured", setting="allow_anonymous"
)
_USER: Final = AuthOutcome()
_SUPERUSER: Final = AuthOutcome(is_superuser=True)
_WRONG: Final = AuthOutcome(
    reason_codes.BAD_USER_NAME_OR_PASSWORD, detail="bad_username_or_password", setting="access.users"
)
_BUSY: Final = AuthOutcome(
    reason_codes.SERVER_BUSY, detail="too_many_passwords_to_verify", setting="access.hash_threads"
)
_STOPPING: Final = AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail="server_stopping")
_BROKEN: Final = AuthOutcome(reason_codes.SERVER_UNAVAILABLE, detail="password_hash_failed")


class AccessControl:
    """Who may connect, publish and subscribe. Belongs to one event loop.

    ``authenticators``: the first source that knows the user decides. ``authorizers``: the first that has a rule for it
    decides; without one, ``no_match`` does. Sources may be added; who changes rules calls ``forget_decisions``.
    ``banned``: who is not even asked who it is, ``None`` where nobody can be.
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
        self._closed = False
        self._renewing: set[bytes] = set()
        self._verified = VerifiedCredentials()
        self._pending: dict[bytes, asyncio.Future[bool]] = {}
        self.authenticators: list[UserSource] = []
        self.authorizers: list[RuleSource] = []
        self._configured_users: ConfiguredUsers
        self._configured_rules: ConfiguredRules
        self._threads = settings.hash_threads
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="taipan-hash")
        self._hashing = asyncio.Semaphore(self._threads)
        self._take(settings)
        self.authenticators.append(self._configured_users)
        self.authorizers.append(self._configured_rules)

    def _take(self, settings: AccessSettings) -> None:
        # Both may raise: build them before anything changes.
        users = ConfiguredUsers(settings.users)
        rules = ConfiguredRules(settings.rules)
        self.settings = settings
        self._configured_users = users
        self._configured_rules = rules
        self._hash_n = 1 << settings.hash_cost
        self._stand_in = users.stand_in(self._hash_n)
        self._no_match = settings.no_match == "allow"
        self._cache = settings.cache
        self._scram = ScramSha256(self._find_user, FakeVerifiers(users.scram_verifiers()))

    def reload(self, settings: AccessSettings) -> None:
        """Take new users and rules; ``ValueError`` leaves the old ones in force. Sources of others keep their place."""
        users, rules = self._configured_users, self._configured_rules
        self._take(settings)
        self.authenticators = [self._configured_users if source is users else source for source in self.authenticators]
        self.authorizers = [self._configured_rules if source is rules else source for source in self.authorizers]
        if settings.hash_threads != self._threads:
            # What waits in the old pool is finished there.
            self._pool.shutdown(wait=False)
            self._threads = settings.hash_threads
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="taipan-hash")
            self._hashing = asyncio.Semaphore(self._threads)
        self.drop_caches()

    def drop_caches(self) -> None:
        """Make every decision and every verified credential void, in all clients at once."""
        self.forget_decisions()
        self._verified.clear()

    def forget_decisions(self) -> None:
        """Make the decisions that clients remember void, in all of them at once."""
        self.generation += 1

    def close(self) -> None:
        """Stop the hash threads; who still waits for one, or comes later, is told that the Server is unavailable."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Who is it

    def ban_of(self, client: ClientInfo) -> Ban | None:
        """The ban that keeps this client out."""
        return self.banned.find(client) if self.banned is not None else None

    async def hash_password(self, password: bytes) -> ScryptHash:
        """A new hash, made off the loop. Of any number asked for at once only as many as there are threads stand
        before the passwords of clients that wait to be let in."""
        async with self._hashing:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, ScryptHash.create, password, self._hash_n)

    def is_configured(self, username: str) -> bool:
        """Whether the configuration file has a user of this name, whom no stored one can replace."""
        return self._configured_users.has(username)

    def superuser(self, client: ClientInfo) -> bool:
        """Whether the sources call this client's user a superuser now."""
        user = self._find_user(client, client.username) if client.username else None
        return user is not None and user.is_superuser

    def authenticate(
        self, client: ClientInfo, password: bytes | None, certified: bool = False
    ) -> AuthOutcome | Awaitable[AuthOutcome]:
        """Check a CONNECT. Answers at once unless a password must be hashed.

        ``certified``: the user name was taken from a client certificate that the listener verified, and needs no
        password.
        """
        username = client.username
        if certified and username:
            user = self._find_user(client, username)
            return _SUPERUSER if user is not None and user.is_superuser else _USER
        has_users = any(source.has_users for source in self.authenticators)
        # Without a user name a source may still know it by its client identifier.
        user = self._find_user(client, username or "") if has_users else None
        if not has_users or (user is None and not username and not password):
            allowed = client.zone.allow_anonymous
            if allowed or (allowed is None and client.loopback):
                return _ANONYMOUS
            return _NO_USERS if username else _NO_ANONYMOUS
        if password is None:
            return _WRONG
        # A wrong password, an unknown user and a user without a password all cost one hash off the loop.
        verifier: PasswordVerifier = self._stand_in
        if user is not None and user.password is not None:
            verifier = user.password
        else:
            user = None
        fingerprint = verifier.fingerprint
        digest = self._verified.digest(username or "", fingerprint, password)
        if user is not None and digest in self._verified:
            return _SUPERUSER if user.is_superuser else _USER
        future = self._pending.get(digest)
        if future is None:
            if self._closed:
                return _STOPPING
            if len(self._pending) >= self._threads * _QUEUE_PER_THREAD:
                return _BUSY
            future = self._submit(digest, verifier, password)
        return self._verify(client, username or "", user, password, digest, future)

    def _submit(self, digest: bytes, verifier: PasswordVerifier, password: bytes) -> asyncio.Future[bool]:
        # The same credentials sent by many clients at once are hashed once.
        future = asyncio.get_running_loop().run_in_executor(self._pool, verifier.verify, password)
        self._pending[digest] = future

        def finished(done: asyncio.Future[bool]) -> None:
            self._pending.pop(digest, None)
            if not done.cancelled():
                # Looked at here: those who asked may all be gone.
                done.exception()

        future.add_done_callback(finished)
        return future

    async def _verify(
        self,
        client: ClientInfo,
        username: str,
        user: User | None,
        password: bytes,
        digest: bytes,
        future: asyncio.Future[bool],
    ) -> AuthOutcome:
        fingerprint = user.password.fingerprint if user is not None and user.password is not None else b""
        try:
            # Shielded: a client that leaves must not take the answer away from others.
            right = await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.cancelled():
                raise
            return _STOPPING
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            logger.error("password_hash_failed client_id=%s username=%s error=%s", client.client_id, username, error)
            return _BROKEN
        if user is None or not right:
            return _WRONG
        # Users may have been reloaded meanwhile: only what is true now counts.
        user = self._find_user(client, username)
        if user is None or user.password is None or user.password.fingerprint != fingerprint:
            return _WRONG
        self._verified.add(digest)
        if user.renew is not None:
            self._renew(user.renew, fingerprint, password)
        return _SUPERUSER if user.is_superuser else _USER

    def _renew(self, renew: Callable[[ScryptHash], None], fingerprint: bytes, password: bytes) -> None:
        """Put a hash of ours in the place of an old one, a moment later; at the next login where there is no time."""
        if fingerprint in self._renewing or self._closed or len(self._renewing) >= _QUEUE_PER_THREAD:
            return
        self._renewing.add(fingerprint)
        task = asyncio.ensure_future(self.hash_password(password))

        def finished(done: asyncio.Future[ScryptHash]) -> None:
            self._renewing.discard(fingerprint)
            if done.cancelled():
                return
            error = done.exception()
            if error is not None:
                logger.warning("stored_hash_not_renewed error=%s", error)
            else:
                renew(done.result())

        task.add_done_callback(finished)

    def _find_user(self, client: ClientInfo, username: str) -> User | None:
        """``username``: empty for a client that gave none."""
        for source in self.authenticators:
            user = source.lookup(client, username)
            if user is not None:
                return user
        return None

    def enhanced(self, method: str) -> EnhancedMethod | None:
        """The enhanced authentication method of this name; ``None``: answer 0x8C [MQTT-4.12.0-1]."""
        if method == SCRAM_SHA_256 and any(source.has_scram for source in self.authenticators):
            return self._scram
        return None

    # What may it do

    def authorize_now(self, client: ClientInfo, action: str, topic: str, now: float | None = None) -> bool | None:
        """Whether the client may ``"publish"`` to a Topic Name or ``"subscribe"`` to a Topic Filter (shared or not).

        ``now``: unix seconds, where the caller knows them already. Today's sources all answer from memory, so it is
        never ``None``; ``None`` is kept for a source that must be awaited.
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
        cache.put(action, topic, decision, now, self.setting)
        return decision

    def _decide(self, client: ClientInfo, action: str, topic: str) -> bool:
        for source in self.authorizers:
            decision = source.decide(client, action, topic)
            if decision is not None:
                self.setting = source.setting
                return decision
        self.ignored += 1
        self.setting = "access.no_match"
        return self._no_match
