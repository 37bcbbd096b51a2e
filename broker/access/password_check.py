"""Passwords: whether a password is correct. The answer is immediate if it is known or cheap to compute, otherwise it
comes after a thread has hashed the password.

::

    fast hash, right                                 -> in
    verified before, not slowed                      -> in
    everything else    held while it is slowed, then in line for a hash thread, then in or refused
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from ..config import AccessSettings
from ..loop.clock import Clock
from ..mqtt import reason_codes
from ..session.client_info import ClientInfo
from .auth_result import BROKEN, BUSY, STOPPING, WRONG, AuthOutcome, Trial
from .foreign_hashes import PackageMissing
from .guesses import Guesses, address_group, name_key
from .hash_costs import HashCosts
from .hash_queue import KNOWN, NEW, OTHER, HashingBusy, HashQueue, Job, Result, nothing
from .password_hash import PasswordVerifier, ScryptHash, VerifiedCredentials
from .users import User

logger = logging.getLogger(__name__)

# Number of new hashes, for logins with an old one, that are computed at the same time.
_RENEWALS: Final = 128
# Number of characters of a username that are kept while an attempt with it waits.
_MAX_NAME: Final = 256
# The address of test logins.
_TRIALS: Final = "try_login"


class Passwords:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: AccessSettings,
        clock: Clock,
        find: Callable[[ClientInfo, str], User | None],
        count: Callable[[str], None],
        was_here: Callable[[ClientInfo], bool],
    ) -> None:
        """``find`` looks up a user in the current sources. ``count``: called with the reason why an attempt has to
        wait. ``was_here``: whether a session shows that a client was accepted before."""
        self._find = find
        self._was_here = was_here
        # The hash for verifying passwords of unknown users while there are no users.
        self._dummy_hash = ScryptHash.unknown(1 << settings.hash_cost)
        # The cost of the passwords of the known users.
        self.costs: Callable[[], Sequence[HashCosts]] = tuple
        self.verified = VerifiedCredentials()
        self.guesses = Guesses(clock, settings.guesses, settings.guess_delay, count)
        # The guesses of operators who test a login.
        self.trial_guesses = Guesses(clock, settings.guesses, settings.guess_delay, count)
        self.queue = HashQueue(settings.hash_threads, settings.hash_wait)
        self._n = 1 << settings.hash_cost
        self._renewing: set[bytes] = set()

    def reload(self, settings: AccessSettings) -> None:
        self._dummy_hash = ScryptHash.unknown(1 << settings.hash_cost)
        self._n = 1 << settings.hash_cost
        for guesses in (self.guesses, self.trial_guesses):
            guesses.free = settings.guesses
            guesses.max_delay = settings.guess_delay
        self.queue.patience = settings.hash_wait
        self.queue.resize(settings.hash_threads)

    def close(self) -> None:
        self.queue.close()

    async def hash(self, password: bytes) -> ScryptHash:
        """Return a new hash, computed outside the loop. Clients that wait for their login take precedence, except for
        every eighth turn."""
        if self.queue.closed:
            raise RuntimeError("the node is stopping")
        n = self._n
        job = Job(os.urandom(16), NEW, "", b"", lambda: ScryptHash.create(password, n))
        self.queue.add(job)
        made = await self.queue.result(job)
        assert isinstance(made, ScryptHash)
        return made

    def check(
        self, client: ClientInfo, username: str, user: User | None, password: bytes, trial: Trial | None = None
    ) -> AuthOutcome | Awaitable[AuthOutcome]:
        """Return whether ``password`` is that of ``user``; ``None``: there is no such user.

        A wrong password, an unknown user and a user without a password all cost one hash outside the loop, with the
        same average cost: see ``HashCosts``."""
        verifier: PasswordVerifier | None = user.password if user is not None else None
        if verifier is not None and verifier.fast:
            if user is not None and verifier.verify(password):
                return let_in(user)
            verifier = None
        if verifier is None:
            user = None
            verifier = HashCosts.unknown(self.costs(), username, self._dummy_hash)
        entry = self.verified.user(username, verifier.fingerprint)
        digest = self.verified.digest(entry, password)
        guesses = self._guesses_of(trial)
        attempt = self._attempt(client, username, None if user is None else verifier.fingerprint, trial)
        delay = guesses.delay(attempt.address, attempt.name, attempt.known)
        right = self.verified.check(entry, digest) if user is not None else None
        if right and user is not None and not delay:
            return let_in(user)
        if right is False:
            # Counted now, because a client that disconnects before the answer has learned from the silence.
            guesses.wrong(*attempt)
        if self.queue.closed:
            return STOPPING
        job = self.queue.find(digest) if not delay else None
        guess = attempt if right is not False else None
        joined = job is not None
        if job is None:
            # If many clients send the same credentials at the same time, they are hashed once.
            key = os.urandom(16) if delay else digest
            job = attempt.job(key, nothing if right else _Verification(verifier, password))
            job.future.add_done_callback(lambda done: self._learn(done, entry, digest, user, guesses, guess))
            try:
                self.queue.add(job, delay)
            except HashingBusy:
                job.future.cancel()
                return BUSY
        return self._answer(client, user, password, job, attempt, guess if joined else None, trial)

    def _learn(
        self,
        done: "asyncio.Future[Result]",
        entry: bytes,
        digest: bytes,
        user: User | None,
        guesses: Guesses,
        guess: "_Attempt | None",
    ) -> None:
        """Remember a correct password and count a wrong one, whether a client still waits or not: otherwise a client
        could disconnect, ask again, and learn from a quick answer that the first password was correct."""
        if done.cancelled() or done.exception() is not None:
            return
        if user is not None and done.result():
            self.verified.add(entry, digest)
        elif guess is not None:
            guesses.wrong(*guess)

    async def _answer(
        self,
        client: ClientInfo,
        user: User | None,
        password: bytes,
        job: Job,
        attempt: "_Attempt",
        guess: "_Attempt | None",
        trial: Trial | None,
    ) -> AuthOutcome:
        """``guess``: the guess to count if the password is wrong."""
        guesses = self._guesses_of(trial)
        username = attempt.username
        fingerprint = user.password.fingerprint if user is not None and user.password is not None else b""
        try:
            right = await self.queue.result(job)
        except asyncio.CancelledError:
            if not job.future.cancelled():
                raise
            return STOPPING
        except HashingBusy:
            return BUSY
        except PackageMissing as error:
            # The client receives the same answer as for a wrong password, and the log has the reason.
            return AuthOutcome(reason_codes.BAD_USER_NAME_OR_PASSWORD, detail=str(error))
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            logger.error("password_hash_failed client_id=%s username=%s error=%s", client.client_id, username, error)
            return BROKEN
        if user is None or not right:
            if guess is not None:
                guesses.wrong(*guess)
            return WRONG
        # Users may have been reloaded in the meantime: only the current state applies.
        user = self._find(client, username)
        if user is None or user.password is None:
            return WRONG
        if user.password.fingerprint != fingerprint:
            # Another password, or the same with a hash of Taipan's own, because another client of the user has logged
            # in before.
            again = self.check(client, username, user, password, trial)
            return again if isinstance(again, AuthOutcome) else await again
        guesses.right(attempt.address, attempt.name)
        if user.renew is not None and trial is None:
            self._renew(user.renew, fingerprint, username, password, attempt.address)
        return let_in(user)

    async def verify(
        self, client: ClientInfo, username: str, verifier: PasswordVerifier, password: bytes
    ) -> AuthOutcome | None:
        """Verify a password that a source on another system has a hash of. Returns why the client is refused;
        ``None``: the password is right."""
        entry = self.verified.user(username, verifier.fingerprint)
        digest = self.verified.digest(entry, password)
        attempt = self._attempt(client, username, verifier.fingerprint)
        delay = self.guesses.delay(attempt.address, attempt.name, attempt.known)
        right = verifier.verify(password) if verifier.fast else self.verified.check(entry, digest)
        if right is False:
            # Counted now, because a client that disconnects before the answer has learned from the silence.
            self.guesses.wrong(*attempt)
        if not delay and (right or (verifier.fast and not right)):
            return None if right else WRONG
        if self.queue.closed:
            return STOPPING
        known = right or verifier.fast
        job = attempt.job(os.urandom(16), nothing if known else _Verification(verifier, password))
        if right is None:
            job.future.add_done_callback(lambda done: self._learn_outside(done, entry, digest, attempt))
        try:
            self.queue.add(job, delay)
            found = await self.queue.result(job)
        except asyncio.CancelledError:
            if not job.future.cancelled():
                raise
            return STOPPING
        except HashingBusy:
            job.future.cancel()
            return BUSY
        except PackageMissing as error:
            return AuthOutcome(reason_codes.BAD_USER_NAME_OR_PASSWORD, detail=str(error))
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            logger.error("password_hash_failed client_id=%s username=%s error=%s", client.client_id, username, error)
            return BROKEN
        if not (right if known else found):
            return WRONG
        self.guesses.right(attempt.address, attempt.name)
        return None

    def _learn_outside(self, done: "asyncio.Future[Result]", entry: bytes, digest: bytes, attempt: "_Attempt") -> None:
        """As ``_learn``, for ``verify``."""
        if done.cancelled() or done.exception() is not None:
            return
        if done.result():
            self.verified.add(entry, digest)
        else:
            self.guesses.wrong(*attempt)

    # Other methods, such as SCRAM, are slowed down by the same guesses.

    def wait(self, client: ClientInfo, username: str, trial: Trial | None = None) -> Awaitable[bool] | None:
        """Return an awaitable for the delay before a proof for this username is checked; its result is whether there
        was room. ``None``: no delay."""
        attempt = self._attempt(client, username, trial=trial)
        delay = self._guesses_of(trial).delay(attempt.address, attempt.name, attempt.known)
        if not delay or self.queue.closed:
            return None
        return self._wait(attempt.job(os.urandom(16), nothing), delay)

    async def _wait(self, job: Job, delay: float) -> bool:
        try:
            self.queue.add(job, delay)
            await self.queue.result(job)
        except HashingBusy:
            return False
        return True

    def proved(self, client: ClientInfo, username: str, right: bool, trial: Trial | None = None) -> None:
        """Note the result of such a proof."""
        attempt = self._attempt(client, username, trial=trial)
        guesses = self._guesses_of(trial)
        if right:
            guesses.right(attempt.address, attempt.name)
        else:
            guesses.wrong(*attempt)

    async def prove(self, client: ClientInfo, username: str, make: Callable[[], bytes], trial: Trial) -> bytes | None:
        """Return the result of ``make`` for a password, computed in a hash thread; ``None``: there is no room, or the
        node is stopping."""
        if self.queue.closed:
            return None
        job = self._attempt(client, username, trial=trial).job(os.urandom(16), make)
        try:
            self.queue.add(job)
            made = await self.queue.result(job)
        except HashingBusy:
            return None
        except asyncio.CancelledError:
            if not job.future.cancelled():
                raise
            return None
        assert isinstance(made, bytes)
        return made

    def _guesses_of(self, trial: Trial | None) -> Guesses:
        return self.guesses if trial is None else trial.guesses

    def _attempt(
        self, client: ClientInfo, username: str, fingerprint: bytes | None = None, trial: Trial | None = None
    ) -> "_Attempt":
        """Return this login as the throttling of guesses identifies it: by address, and by name or stored password.

        ``fingerprint``: of the stored password; None: there is no stored password to compare with."""
        name = name_key(username.encode("utf-8", "surrogatepass") if fingerprint is None else fingerprint)
        if fingerprint is None:
            username = username[:_MAX_NAME]  # an unknown name: it is logged, and waits for a long time
        if trial is not None:
            # All test logins share one address, whatever address a test specifies.
            return _Attempt(_TRIALS, name, False, username)
        address = address_group(client.peer_host)
        return _Attempt(address, name, self.guesses.known(address, name) or self._was_here(client), username)

    def _renew(
        self, renew: Callable[[ScryptHash], None], fingerprint: bytes, username: str, password: bytes, address: str
    ) -> None:
        """Replace an old hash by one of Taipan's own, a moment later; if there is no time, at the next login. The data
        about the old hash is kept for the new one."""
        if fingerprint in self._renewing or self.queue.closed or len(self._renewing) >= _RENEWALS:
            return
        self._renewing.add(fingerprint)
        task = asyncio.ensure_future(self.hash(password))

        def finished(done: "asyncio.Future[ScryptHash]") -> None:
            self._renewing.discard(fingerprint)
            if done.cancelled():
                return
            error = done.exception()
            if error is not None:
                logger.warning("stored_hash_not_renewed error=%s", error)
                return
            made = done.result()
            renew(made)
            entry = self.verified.user(username, made.fingerprint)
            self.verified.add(entry, self.verified.digest(entry, password))
            self.guesses.right(address, name_key(made.fingerprint))

        task.add_done_callback(finished)


class _Attempt(NamedTuple):
    """An attempt in the form for guesses: address and name. ``known``: the user was right from this address before."""

    address: str
    name: bytes
    known: bool
    username: str

    def job(self, key: bytes, run: Callable[[], Result]) -> Job:
        return Job(key, KNOWN if self.known else OTHER, self.address, self.name, run)


class _Verification:
    """A password and the hash to verify it against, to be run in a thread."""

    __slots__ = ("_password", "_verifier")

    def __init__(self, verifier: PasswordVerifier, password: bytes) -> None:
        self._verifier = verifier
        self._password = password

    def __call__(self) -> bool:
        return self._verifier.verify(self._password)


def let_in(user: User) -> AuthOutcome:
    """Return the outcome for a user whose secret was correct."""
    if user.by_name:
        return AuthOutcome(is_superuser=user.is_superuser, proved_by=user.source)
    return AuthOutcome(proves_client_id=True)
