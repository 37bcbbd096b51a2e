"""AccessControl: who gets in, what it may do, and what a reload changes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.broker.access.acl_cache import AclCache
from taipan.broker.access.auth_result import AuthOutcome
from taipan.broker.access.control import AccessControl
from taipan.broker.access.decision import Decision
from taipan.broker.access.foreign_hashes import PackageMissing
from taipan.broker.access.guesses import name_key
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.scram import ScramVerifier
from taipan.broker.access.source import Source
from taipan.broker.access.users import User
from taipan.broker.config import AccessSettings, RuleSettings, UserSettings, ZoneSettings
from taipan.broker.session.client_info import CERTIFICATE, ClientInfo
from tests.support.access import authenticate, authorized
from tests.support.clock import Clock
from tests.support.patience import patience
from tests.support.scram_client import ScramClient

SECRET = str(ScryptHash.create(b"secret", n=16))
ALICE = UserSettings(username="alice", password_hash=SECRET)
ROOT = UserSettings(username="root", password_hash=SECRET, is_superuser=True)
SCRAM = UserSettings(username="sam", scram=str(ScramVerifier.create("secret")))

Make = Callable[..., AccessControl]


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    made: list[AccessControl] = []

    def build(clock: Clock | None = None, **settings: Any) -> AccessControl:
        made.append(AccessControl(AccessSettings(**settings), clock or Clock()))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for control in made:
        control.close()


def client(
    username: str | None = None, loopback: bool = True, allow_anonymous: bool | None = None, **zone: Any
) -> ClientInfo:
    settings = ZoneSettings(allow_anonymous=allow_anonymous, **zone)
    return ClientInfo("n@h", settings, client_id="c1", username=username, loopback=loopback)


def at_once(answer: AuthOutcome | Awaitable[AuthOutcome]) -> AuthOutcome:
    assert isinstance(answer, AuthOutcome)
    return answer


async def later(answer: AuthOutcome | Awaitable[AuthOutcome]) -> AuthOutcome:
    assert not isinstance(answer, AuthOutcome)
    return await answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "allow_anonymous, loopback, code",
    [(None, True, 0), (None, False, 0x87), (True, False, 0), (False, True, 0x87)],
)
@pytest.mark.parametrize("users", [[], [ALICE]])
async def test_anonymous(make: Make, allow_anonymous: bool | None, loopback: bool, code: int, users: list[Any]) -> None:
    for username in (None, ""):
        outcome = at_once(authenticate(make(users=users), client(username, loopback, allow_anonymous), None))
        assert outcome.reason_code == code
        assert outcome.anonymous is (code == 0)
        assert outcome.setting == ("allow_anonymous" if code else "-")
        assert not outcome.is_superuser


@pytest.mark.asyncio
async def test_without_users_a_user_name_means_nothing(make: Make) -> None:
    control = make()
    assert at_once(authenticate(control, client("bob"), b"x")).anonymous
    assert at_once(authenticate(control, client(None), b"x")).anonymous
    refused = at_once(authenticate(control, client("bob", loopback=False), b"x"))
    assert (refused.reason_code, refused.setting) == (0x86, "allow_anonymous")


@pytest.mark.asyncio
async def test_right_password_is_hashed_once(make: Make) -> None:
    control = make(users=[ALICE, ROOT])
    outcome = await later(authenticate(control, client("alice", loopback=False), b"secret"))
    assert (outcome.reason_code, outcome.anonymous, outcome.is_superuser) == (0, False, False)
    assert at_once(authenticate(control, client("alice"), b"secret")).reason_code == 0
    assert (await later(authenticate(control, client("root"), b"secret"))).is_superuser
    assert at_once(authenticate(control, client("root"), b"secret")).is_superuser


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "username, password", [("alice", b"wrong"), ("bob", b"secret"), ("sam", b"secret"), (None, b"x")]
)
async def test_wrong_password_and_unknown_user_cost_a_hash_each(make: Make, username: str, password: bytes) -> None:
    control = make(users=[ALICE, SCRAM])
    for _ in range(2):  # and are not remembered
        outcome = await later(authenticate(control, client(username, allow_anonymous=True), password))
        assert (outcome.reason_code, outcome.setting) == (0x86, "access.users")
        assert not outcome.anonymous


@pytest.mark.asyncio
async def test_user_name_without_password(make: Make) -> None:
    control = make(users=[ALICE])
    assert at_once(authenticate(control, client("alice"), None)).reason_code == 0x86
    assert at_once(authenticate(control, client("bob"), None)).reason_code == 0x86


@pytest.mark.asyncio
async def test_certified_user_name_needs_no_password(make: Make) -> None:
    control = make(users=[ROOT])
    outcome = at_once(authenticate(control, client("device-7", loopback=False), None, proved_by=CERTIFICATE))
    assert (outcome.reason_code, outcome.anonymous, outcome.is_superuser) == (0, False, False)
    assert at_once(authenticate(control, client("root"), None, proved_by=CERTIFICATE)).is_superuser
    assert at_once(authenticate(control, client(None, loopback=False), None, proved_by=CERTIFICATE)).reason_code == 0x87


class Gate:
    """A password that verifies when the test says so, and counts how often it was asked."""

    fast = False
    outdated = False

    def __init__(self) -> None:
        self.fingerprint = b"gate"
        self.open = threading.Event()
        self.asked = 0
        self.error: Exception | None = None

    def verify(self, password: bytes) -> bool:
        self.asked += 1
        if not self.open.wait(5):
            raise AssertionError("nobody opened the gate")
        if self.error is not None:
            raise self.error
        return password == b"secret"


class Gated:
    """A source of one user, ``gated``."""

    name = "gated"
    has_users = True
    has_scram = False

    def __init__(self) -> None:
        self.gate = Gate()
        self.known = True

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        return User("gated", self.gate) if username == "gated" and self.known else None


@pytest_asyncio.fixture
async def gated(make: Make) -> AsyncIterator[tuple[AccessControl, Gated]]:
    control = make(hash_threads=1)
    source = Gated()
    control.authentication.users.append(source)
    yield control, source
    source.gate.open.set()


@pytest.mark.asyncio
async def test_a_storm_of_the_same_credentials_is_hashed_once(gated: tuple[AccessControl, Gated]) -> None:
    control, source = gated
    waiting = [asyncio.ensure_future(later(authenticate(control, client("gated"), b"secret"))) for _ in range(200)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the one who came first leaves
    source.gate.open.set()
    outcomes = await asyncio.gather(*waiting[1:])
    assert {outcome.reason_code for outcome in outcomes} == {0}
    assert source.gate.asked == 1


@pytest.mark.asyncio
async def test_too_many_passwords_are_told_busy(gated: tuple[AccessControl, Gated]) -> None:
    """How many are too many is reckoned from the time that a hash takes."""
    control, source = gated
    queue = control.authentication.passwords.queue
    queue.seconds, queue.patience = 0.5, 10.0
    assert queue.limit == 20
    # Two are with the thread: the one that it hashes and the next.
    waiting = [authenticate(control, client("gated"), b"%d" % number) for number in range(23)]
    busy = at_once(waiting.pop())
    assert (busy.reason_code, busy.setting) == (0x89, "access.hash_wait")
    source.gate.open.set()
    outcomes = await asyncio.gather(*(later(answer) for answer in waiting))
    assert {outcome.reason_code for outcome in outcomes} == {0x86}
    assert queue.seconds < 0.5
    control.authentication.passwords.guesses.free = 0
    assert (await later(authenticate(control, client("gated"), b"secret"))).reason_code == 0


@pytest.mark.asyncio
async def test_a_guess_counts_though_nobody_waits_for_what_came_of_it(gated: tuple[AccessControl, Gated]) -> None:
    """Else: guess, leave, guess the same again: an answer at once says that it is right, silence that it is not."""
    control, source = gated
    guesses = control.authentication.passwords.guesses
    guesses.free = 1
    answer = asyncio.ensure_future(later(authenticate(control, client("gated"), b"guess")))
    await asyncio.sleep(0)
    while not source.gate.asked:
        await asyncio.sleep(0.001)
    answer.cancel()
    await asyncio.sleep(0)
    source.gate.open.set()
    async with asyncio.timeout(patience(40)):
        while control.authentication.passwords.queue._jobs:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert guesses.delay("", name_key(b"gate"), False) > 0


@pytest.mark.asyncio
async def test_a_user_who_is_gone_when_the_hash_is_done(gated: tuple[AccessControl, Gated]) -> None:
    control, source = gated
    answer = asyncio.ensure_future(later(authenticate(control, client("gated"), b"secret")))
    await asyncio.sleep(0)
    source.known = False
    source.gate.open.set()
    assert (await answer).reason_code == 0x86


@pytest.mark.asyncio
async def test_a_hash_that_is_another_when_the_old_one_was_right(gated: tuple[AccessControl, Gated]) -> None:
    """Another client of the user has had it renewed: nobody's password was wrong."""
    control, source = gated
    answer = asyncio.ensure_future(later(authenticate(control, client("gated"), b"secret")))
    await asyncio.sleep(0)
    old, source.gate = source.gate, Gate()
    source.gate.fingerprint = b"renewed"
    source.gate.open.set()
    old.open.set()
    assert (await answer).reason_code == 0


@pytest.mark.asyncio
async def test_a_hash_that_fails(gated: tuple[AccessControl, Gated], caplog: pytest.LogCaptureFixture) -> None:
    control, source = gated
    source.gate.error = MemoryError("no more")
    source.gate.open.set()
    assert (await later(authenticate(control, client("gated"), b"secret"))).reason_code == 0x88
    assert "password_hash_failed" in caplog.text


@pytest.mark.asyncio
async def test_a_hash_whose_package_is_missing(gated: tuple[AccessControl, Gated]) -> None:
    """Refused like a wrong password, and no guess: when the package is there nobody waits for what was tried before."""
    control, source = gated
    source.gate.error = PackageMissing("install it")
    source.gate.open.set()
    for _ in range(20):
        outcome = await later(authenticate(control, client("gated"), b"secret"))
        assert (outcome.reason_code, outcome.detail, outcome.setting) == (0x86, "install it", "-")
    assert control.authentication.passwords.guesses.delay("", name_key(b"gate"), False) == 0
    source.gate.error = None
    assert (await later(authenticate(control, client("gated"), b"secret"))).reason_code == 0


@pytest.mark.asyncio
async def test_closing_answers_who_waits(gated: tuple[AccessControl, Gated]) -> None:
    control, source = gated
    first, second = (
        asyncio.ensure_future(later(authenticate(control, client("gated"), password))) for password in (b"1", b"2")
    )
    while not source.gate.asked:  # until the thread has taken the first, and the second waits
        await asyncio.sleep(0)
    control.close()
    source.gate.open.set()
    assert (await second).reason_code == 0x88
    assert (await first).reason_code == 0x86
    assert at_once(authenticate(control, client("gated"), b"3")).reason_code == 0x88


@pytest.mark.asyncio
async def test_first_source_that_knows_the_user_decides(make: Make) -> None:
    control = make(users=[UserSettings(username="gated", password_hash=SECRET)])
    source = Gated()
    source.gate.open.set()
    control.authentication.users.append(source)
    assert (await later(authenticate(control, client("gated"), b"secret"))).reason_code == 0
    assert source.gate.asked == 0


@pytest.mark.asyncio
async def test_reload_swaps_users(make: Make) -> None:
    control = make(users=[ALICE])
    assert (await later(authenticate(control, client("alice"), b"secret"))).reason_code == 0
    changed = UserSettings(username="alice", password_hash=str(ScryptHash.create(b"new", n=16)))
    control.reload(AccessSettings(users=[changed], hash_threads=1))
    assert (await later(authenticate(control, client("alice"), b"secret"))).reason_code == 0x86
    assert (await later(authenticate(control, client("alice"), b"new"))).reason_code == 0
    with pytest.raises(ValueError):
        control.reload(AccessSettings(users=[UserSettings(username="x", password_hash="x")]))
    assert at_once(authenticate(control, client("alice"), b"new")).reason_code == 0


@pytest.mark.asyncio
async def test_enhanced(make: Make) -> None:
    """Only what is there: the channel answers 0x8C to other methods."""
    control = make(users=[ALICE])
    assert control.authentication.enhanced_method("SCRAM-SHA-256") is None
    control.reload(AccessSettings(users=[ALICE, SCRAM]))
    assert control.authentication.enhanced_method("SCRAM-SHA-1") is None
    method = control.authentication.enhanced_method("SCRAM-SHA-256")
    assert method is not None
    exchange = method.start(client())
    speaker = ScramClient("sam", "secret")
    step = exchange.step(speaker.final(exchange.step(speaker.first()).data))
    assert (step.status, step.username) == ("success", "sam")


@pytest.mark.asyncio
@pytest.mark.parametrize("no_match, expected", [("allow", True), ("deny", False)])
@pytest.mark.parametrize("cache", [True, False])
async def test_no_match(make: Make, no_match: str, expected: bool, cache: bool) -> None:
    control = make(no_match=no_match, cache=cache)
    for _ in range(2):
        assert authorized(control, client(), "publish", "a") is expected
        assert authorized(control, client(), "subscribe", "a/#") is expected


@pytest.mark.asyncio
async def test_superusers_and_zones_without_rules_pass(make: Make) -> None:
    control = make(no_match="deny")
    root = client("root")
    root.is_superuser = True
    assert authorized(control, root, "publish", "a") is True
    assert authorized(control, client(enable_acl=False), "publish", "a") is True


@pytest.mark.asyncio
async def test_decisions_are_kept_and_made_void(make: Make) -> None:
    clock = Clock()
    rules = [RuleSettings(allow=False, topics=["a"])]
    control = make(clock, rules=rules, cache_ttl=60.0, cache_max_size=2)
    somebody = client()
    assert authorized(control, somebody, "publish", "a") is False
    cache: AclCache = somebody.acl_cache
    assert cache.hits == 0
    assert authorized(control, somebody, "publish", "a") is False
    assert authorized(control, somebody, "publish", "a", clock.now()) is False
    assert cache.hits == 2
    assert [entry["result"] for entry in cache.entries(clock.now())] == ["deny"]
    clock.advance(60.0)
    assert authorized(control, somebody, "publish", "a") is False
    assert cache.hits == 2
    control.reload(msgspec.structs.replace(control.settings, rules=[], cache_max_size=1))
    assert authorized(control, somebody, "publish", "a") is True
    assert authorized(control, somebody, "publish", "b") is True
    assert len(cache) == 1


class Topics(Source):
    """A source with an opinion on one topic."""

    has_rules = True

    def authorizer(self) -> Any:
        return self

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        return Decision(False, "topics.b") if topic == "b" else None


@pytest.mark.asyncio
async def test_chain_of_rules(make: Make) -> None:
    order: Any = ("configuration", "stored")
    settings = AccessSettings(rules=[RuleSettings(allow=True, topics=["a"])], authorizers=order)
    control = AccessControl(settings, Clock(), made=[Topics("stored")])  # type: ignore[arg-type]
    authorize = control.authorization.authorize
    assert authorize(client(), "publish", "a") == Decision(True, "access.rules.0")
    assert authorize(client(), "publish", "b") == Decision(False, "topics.b")
    assert authorize(client(), "publish", "c") == Decision(True, "access.no_match", ignored=True)
    control.reload(AccessSettings(rules=[RuleSettings(allow=True, topics=["b"])], authorizers=order))
    assert authorize(client(), "publish", "b") == Decision(True, "access.rules.0")
    control.reload(AccessSettings(rules=[RuleSettings(allow=True, topics=["b"])]))  # stored ones first
    assert authorize(client(), "publish", "b") == Decision(False, "topics.b")
    control.close()


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.asyncio
async def test_a_denial_says_which_rule_it_was(make: Make, cache: bool) -> None:
    """Remembered with the decision: also the second time, and after others."""
    control = make(
        rules=[RuleSettings(allow=True, topics=["a"]), RuleSettings(allow=False, topics=["b/#"])],
        no_match="deny",
        cache=cache,
    )
    somebody = client()
    for _ in range(2):
        for action, topic, setting in (
            ("publish", "b/c", "access.rules.1"),
            ("publish", "c", "access.no_match"),
            ("subscribe", "b/c", "access.rules.1"),
            ("subscribe", "c", "access.no_match"),
        ):
            decision = control.authorization.authorize(somebody, action, topic)
            assert decision is not None and (decision.allowed, decision.setting) == (False, setting)
            assert authorized(control, somebody, "publish", "a") is True


class Renewing(Gated):
    """Knows one user, whose hash is an old one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.open.set()
        self.renewed: asyncio.Future[ScryptHash] = asyncio.get_running_loop().create_future()

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        return User("gated", self.gate, renew=self.renewed.set_result)


@pytest.mark.asyncio
async def test_an_old_hash_is_renewed_once(make: Make) -> None:
    control = make(hash_cost=10)
    source = Renewing()
    control.authentication.users.append(source)
    answers = [asyncio.ensure_future(later(authenticate(control, client("gated"), b"secret"))) for _ in range(20)]
    assert {(await answer).reason_code for answer in answers} == {0}
    made = await asyncio.wait_for(source.renewed, patience(40))
    assert made.n == 1024 and made.verify(b"secret")
    # Whoever came in with the old one need not be hashed again.
    control.authentication.users[-1] = Known("gated", made)
    assert at_once(authenticate(control, client("gated"), b"secret")).reason_code == 0
    assert control.authentication.passwords.guesses.known("", name_key(made.fingerprint))


class Known:
    """A source of one user."""

    name = "known"
    has_users = True
    has_scram = False

    def __init__(self, username: str, password: ScryptHash) -> None:
        self._user = User(username, password)

    def lookup(self, client: ClientInfo, username: str) -> User | None:
        return self._user if username == self._user.username else None


@pytest.mark.asyncio
async def test_a_wrong_password_renews_nothing(make: Make) -> None:
    control = make(hash_cost=10)
    source = Renewing()
    control.authentication.users.append(source)
    assert (await later(authenticate(control, client("gated"), b"wrong"))).reason_code == 0x86
    assert not control.authentication.passwords._renewing and not source.renewed.done()


@pytest.mark.asyncio
async def test_a_client_known_by_its_identifier_is_not_anonymous(make: Make) -> None:
    control = make(hash_cost=10)
    control.authentication.users.append(Renewing())
    assert at_once(authenticate(control, client(None, allow_anonymous=True), None)).reason_code == 0x86
    outcome = await later(authenticate(control, client(None), b"secret"))
    assert outcome.reason_code == 0 and not outcome.anonymous


@pytest.mark.asyncio
async def test_new_hashes_cost_what_is_set_and_wait_for_logins(make: Make) -> None:
    control = make(hash_cost=10, hash_threads=1)
    first = control.authentication.passwords.hash(b"a")
    assert (await first).n == 1024
    control.reload(msgspec.structs.replace(control.settings, hash_cost=11))
    assert (await control.authentication.passwords.hash(b"a")).n == 2048
    many = asyncio.gather(*(control.authentication.passwords.hash(b"a") for _ in range(100)))
    await asyncio.sleep(0)
    source = Gated()
    source.gate.open.set()
    control.authentication.users.append(source)
    assert (await later(authenticate(control, client("gated"), b"secret"))).reason_code == 0
    assert not many.done()
    await many


@pytest.mark.asyncio
async def test_forgetting_decisions_keeps_verified_credentials(make: Make) -> None:
    control = make(users=[ALICE], rules=[RuleSettings(allow=False, topics=["b"])])
    alice = client("alice")
    assert (await later(authenticate(control, alice, b"secret"))).reason_code == 0
    control.authorization.sources.insert(0, Topics("topics"))
    assert authorized(control, alice, "publish", "a") is True
    control.authorization.sources.insert(0, Nothing("nothing"))
    assert authorized(control, alice, "publish", "a") is True
    control.authorization.forget_decisions()
    assert authorized(control, alice, "publish", "a") is False
    assert at_once(authenticate(control, alice, b"secret")).reason_code == 0


class Nothing(Topics):
    """Denies everything."""

    def decide(self, client: ClientInfo, action: str, topic: str) -> Decision | None:
        return Decision(False, "nothing")
