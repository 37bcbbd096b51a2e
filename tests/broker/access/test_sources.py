"""What every source of access holds to: the built-in ones, and one that a package adds by its entry point."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from taipan.broker import access as access_package
from taipan.broker.access import registry
from taipan.broker.access.auth_result import Authenticator, AuthOutcome, Trial
from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.access.control import AccessControl
from taipan.broker.access.decision import DecisionStep
from taipan.broker.access.declaration import AccessSource
from taipan.broker.access.guesses import Guesses
from taipan.broker.access.outside import OutsideSource
from taipan.broker.access.registry import ACCESS_SOURCES, access_settings, sources_of, written_type
from taipan.broker.access.remote import RemoteSource
from taipan.broker.access.remote_status import BREAKER_FAILURES, CONNECTED, DOWN
from taipan.broker.access.scram import ScramVerifier
from taipan.broker.access.source import Source, SourceContext
from taipan.broker.config import AccessSettings, ZoneSettings
from taipan.broker.observability.alarms import RaisedAlarms
from taipan.broker.session.client_info import ClientInfo
from tests.support.access_package import importable, install_keypad
from tests.support.clock import Clock
from tests.support.patience import patience

from .sources import Setup

PACKAGES = ["keypad"]
DATABASES = [source.name for source in ACCESS_SOURCES if source.extra]
"""Their contract needs a server: ``tests/systems/test_access_sources.py``."""
NAMES = [*(source.name for source in ACCESS_SOURCES if not source.extra), *PACKAGES]
REMOTE = [*(source.name for source in ACCESS_SOURCES if source.remote and not source.extra), *PACKAGES]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", REMOTE if metafunc.function in REMOTE_TESTS else NAMES)


class Case(NamedTuple):
    """One source, set up alone."""

    access: AccessControl
    setup: Setup
    alarms: RaisedAlarms

    @property
    def right(self) -> bytes:
        return self.setup.right

    @property
    def wrong(self) -> bytes:
        return self.setup.wrong


@pytest.fixture(scope="module")
def keypad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessSource]:
    with importable(install_keypad(tmp_path_factory.mktemp("keypad"))):
        from taipan_keypad import KEYPAD

        yield KEYPAD


@pytest.fixture
def declared(request: pytest.FixtureRequest, name: str) -> AccessSource:
    if name in PACKAGES:
        found: AccessSource = request.getfixturevalue(name)
        return found
    return next(source for source in ACCESS_SOURCES if source.name == name)


def control(
    settings: dict[str, Any],
    declared: AccessSource,
    made: list[Source] | None = None,
    alarms: RaisedAlarms | None = None,
) -> AccessControl:
    sources = ACCESS_SOURCES if declared in ACCESS_SOURCES else (*ACCESS_SOURCES, declared)
    kind = access_settings(written_type(AccessSettings), sources)
    table = {"authenticators": [declared.name], "authorizers": [declared.name], "no_match": "deny", **settings}
    clock: Any = Clock()
    return AccessControl(msgspec.convert(table, kind), clock, made=made or (), alarms=alarms)  # type: ignore[arg-type]


def setup_of(name: str) -> AbstractAsyncContextManager[Setup]:
    """A source without such a module has no contract."""
    made: AbstractAsyncContextManager[Setup] = import_module(f"tests.broker.access.sources.{name}").set_up()
    return made


@asynccontextmanager
async def set_up(name: str, declared: AccessSource) -> AsyncIterator[Case]:
    async with setup_of(name) as setup:
        alarms = RaisedAlarms("n@h", lambda message: None, Clock())  # type: ignore[arg-type]
        access = control(setup.settings, declared, setup.made, alarms)
        access.start()
        try:
            yield Case(access, setup, alarms)
        finally:
            await access.stop()


def client(username: str = "ann") -> ClientInfo:
    return ClientInfo("n@h", ZoneSettings(allow_anonymous=False), client_id="c", username=username)


async def log_in(access: AccessControl, who: ClientInfo, password: bytes, trial: Trial | None = None) -> AuthOutcome:
    asked = access.authentication.authenticate(who, password, trial=trial)
    outcome = asked if isinstance(asked, AuthOutcome) else await asked
    who.proved_by, who.is_superuser = outcome.proved_by, outcome.is_superuser
    return outcome


def test_a_declaration(name: str, declared: AccessSource) -> None:
    assert declared.name == name and re.fullmatch(r"[a-z][a-z0-9_]*", name)
    keys = set() if declared.settings is None else set(declared.settings.__struct_fields__)
    assert set(declared.rules) <= keys and declared.shown <= keys | {"cafile"}
    for reason in declared.reasons:
        assert reason.text and all(setting.startswith(f"access.{name}") for setting in reason.settings)
    if declared.settings is not None:
        config = declared.settings.__struct_config__
        assert config.frozen and config.forbid_unknown_fields
        assert name not in written_type(AccessSettings).__struct_fields__


@pytest.mark.asyncio
async def test_it_is_made_by_its_settings(name: str, declared: AccessSource) -> None:
    async with set_up(name, declared) as case:
        source = case.access.sources[name]
        assert isinstance(source, Source) and source.name == name
        authenticator, authorizer = source.authenticator(), source.authorizer()
        assert authenticator is not None and authorizer is not None
        assert authenticator.name == authorizer.name == name
        assert isinstance(authenticator, Authenticator) != hasattr(authenticator, "lookup")
        assert isinstance(authorizer, OutsideSource) != hasattr(authorizer, "decide")
        assert source.without_outcome and source.without_decision


@pytest.mark.asyncio
async def test_logins(name: str, declared: AccessSource) -> None:
    async with set_up(name, declared) as case:
        access = case.access
        right = await log_in(access, client(), case.right)
        assert (right.reason_code, right.proved_by, right.anonymous) == (0, name, False)
        wrong = await log_in(access, client(), case.wrong)
        assert (
            wrong.reason_code == 0x86 and wrong.detail and wrong.setting.startswith("access.") and not wrong.proved_by
        )
        unknown = await log_in(access, client("bob"), b"right")
        assert unknown.reason_code == 0x86 and not unknown.proved_by


@pytest.mark.asyncio
async def test_a_login_that_is_tried_names_it(name: str, declared: AccessSource) -> None:
    async with set_up(name, declared) as case:
        for password, code in ((case.right, 0), (case.wrong, 0x86)):
            trial = Trial(Guesses(Clock(), 0, 0.0, lambda reason: None))  # type: ignore[arg-type]
            assert (await log_in(case.access, client(), password, trial)).reason_code == code
            assert trial.decided_by == name and name in [step.source for step in trial.steps]


async def decision(access: AccessControl, who: ClientInfo, topic: str) -> Any:
    found = access.authorization.authorize(who, "publish", topic)
    return (await access.authorization.ask(who, "publish", [topic]))[0] if found is None else found


@pytest.mark.asyncio
async def test_permissions(name: str, declared: AccessSource) -> None:
    async with set_up(name, declared) as case:
        who = client()
        await log_in(case.access, who, case.right)
        allowed = await decision(case.access, who, "open")
        assert allowed.allowed and allowed.setting != "-" and not allowed.ignored
        denied = await decision(case.access, who, "shut")
        assert not denied.allowed and denied.ignored != case.setup.denies
        assert denied.setting != "-" or denied.ignored
        other = await decision(case.access, who, "other")
        assert not other.allowed and other.ignored != case.setup.denies_rest
        assert (await decision(case.access, who, "open")).cached


@pytest.mark.asyncio
async def test_no_filter_reaches_further_than_the_rules(name: str, declared: AccessSource) -> None:
    """A subscription is denied if it would read a topic that is, and allowed only if it reads none but those that
    are."""
    async with set_up(name, declared) as case:
        if not case.setup.reads_filters:
            return
        who = client()
        await log_in(case.access, who, case.right)
        authorization = case.access.authorization
        for topic_filter in ("shut", "#", "+", "$share/g/#", "$queue/+"):
            (told,) = await authorization.ask(who, "subscribe", [topic_filter])
            assert not told.allowed and not told.ignored, topic_filter
        for topic_filter in ("open/#", "+/x"):
            (told,) = await authorization.ask(who, "subscribe", [topic_filter])
            assert told.ignored, topic_filter
        (told,) = await authorization.ask(who, "subscribe", ["$share/g/open"])
        assert told.allowed and not told.ignored


@pytest.mark.asyncio
async def test_an_explanation_names_it(name: str, declared: AccessSource) -> None:
    async with set_up(name, declared) as case:
        who = client()
        await log_in(case.access, who, case.right)
        steps: list[DecisionStep] = []
        authorization = case.access.authorization
        topic = "shut" if case.setup.denies else "open"
        explained = authorization.explain(who, "publish", topic, steps)
        if explained is None:
            assert steps[-1].source == name and not steps[-1].asked
            outside = authorization.outside(name)
            assert outside.title and authorization.unasked_setting == outside.setting
            verdicts = await authorization.ask_outside(who, "publish", topic)
            steps.clear()
            explained = authorization.explain(who, "publish", topic, steps, verdicts)
        assert explained is not None and explained.allowed == (not case.setup.denies)
        assert steps[-1].source == name and steps[-1].decision is not None


@pytest.mark.asyncio
async def test_a_reload(name: str, declared: AccessSource) -> None:
    """A source with a table stays as long as that does."""
    async with set_up(name, declared) as case:
        access = case.access
        before = access.sources[name]
        access.reload(access.settings)
        assert (access.sources[name] is before) == case.setup.lasts
        assert (await log_in(access, client(), case.right)).reason_code == 0
        if declared.settings is not None:
            access.reload(msgspec.structs.replace(access.settings, **{name: None}))
            assert name not in access.sources
            assert (await log_in(access, client(), case.right)).proved_by == ""


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience(40)):
        while not ready():
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_remote_source_that_is_away(name: str, declared: AccessSource) -> None:
    """Its alarm, its status and its breaker; the other side comes back, and clients come in again."""
    assert declared.remote
    async with set_up(name, declared) as case:
        assert case.setup.away is not None and case.setup.back is not None
        source: Any = case.access.sources[name]
        assert isinstance(source, RemoteSource)
        status, alarms = source.status, case.alarms
        await until(lambda: status.word == CONNECTED)
        assert (await log_in(case.access, client(), case.right)).reason_code == 0
        assert (await log_in(case.access, client(), case.wrong)).reason_code == 0x86
        assert status.decisions["allow"] == status.decisions["deny"] == 1
        assert status.latency is not None and not alarms.active
        await case.setup.away()
        for _ in range(BREAKER_FAILURES):
            assert not status.breaker_blocks
            refused = await log_in(case.access, client(), case.right)
            assert refused.reason_code == 0x88 and refused.detail.startswith(f"{name}_")
        assert status.word == DOWN and status.breaker_blocks and status.breaker_opened == 1
        refused = await log_in(case.access, client(), case.right)
        assert (refused.reason_code, refused.detail) == (0x88, f"{name}_down")
        denied = await decision(case.access, client(), "open")
        assert not denied.allowed and not denied.lasting
        assert status.failed == status.asked - 2
        (alarm,) = alarms.active.values()
        details = {"source": name, "setting": f"access.{name}", "fault": status.reason}
        assert (alarm.name, alarm.details) == (f"access/{name}/down", details) and status.reason
        await case.setup.back()
        await until(lambda: not alarms.active)
        assert status.word == CONNECTED and not status.breaker_blocks and not status.reason
        assert (await log_in(case.access, client(), case.right)).reason_code == 0


@pytest.mark.asyncio
async def test_a_remote_source_that_is_away_at_the_start(name: str, declared: AccessSource) -> None:
    """There is an alarm before a client comes; questions are asked all the same. A reload without it ends the alarm."""
    async with setup_of(name) as setup:
        assert setup.away is not None and setup.back is not None
        await setup.away()
        alarms = RaisedAlarms("n@h", lambda message: None, Clock())  # type: ignore[arg-type]
        access = control(setup.settings, declared, setup.made, alarms)
        try:
            access.start()
            await until(lambda: f"access/{name}/down" in alarms.active)
            source: Any = access.sources[name]
            assert source.status.word == DOWN and not source.status.breaker_blocks and source.status.asked == 0
            access.reload(msgspec.structs.replace(access.settings, **{name: None}))
            assert not alarms.active
            access.reload(msgspec.convert(
                {"authenticators": [name], "authorizers": [name], **setup.settings}, type(access.settings)
            ))  # fmt: skip
            await until(lambda: f"access/{name}/down" in alarms.active)
            await setup.back()
            # gRPC connects by itself, up to a second later.
            async with asyncio.timeout(patience(20.0)):
                while (await log_in(access, client(), setup.right)).reason_code != 0:
                    await asyncio.sleep(0.1)
            assert not alarms.active
        finally:
            await access.stop()


@pytest.mark.asyncio
async def test_a_connection_is_tried(name: str, declared: AccessSource) -> None:
    """By ``taipan check --connect``: without a node."""
    async with setup_of(name) as setup:
        assert setup.away is not None and setup.back is not None
        access = control(setup.settings, declared).settings
        assert await tried_sources(access) == {name: ""}
        await setup.away()
        told = await tried_sources(access)
        assert list(told) == [name] and told[name].startswith("no_connection: ")


REMOTE_TESTS = (
    test_a_remote_source_that_is_away,
    test_a_remote_source_that_is_away_at_the_start,
    test_a_connection_is_tried,
)


def test_the_order_of_the_defaults() -> None:
    """Stored rules come before those of the configuration; sources without a place come last."""
    settings: Any = AccessSettings()
    assert settings.authenticators[:4] == ("configuration", "stored", "jwt", "http")
    assert settings.authorizers[:4] == ("stored", "configuration", "jwt", "http")
    assert sorted(settings.authorizers) == sorted(settings.authenticators)
    assert sources_of(settings) == ACCESS_SOURCES


def test_a_folder_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package beside the others is found, and nothing else names it."""
    package = tmp_path / "gate"
    package.mkdir()
    (package / "__init__.py").write_text("", "utf-8")
    (package / "declaration.py").write_text(
        "from taipan.broker.access.declaration import AccessSource, RemoteSettings\n"
        "SOURCE = AccessSource(name='gate', settings=RemoteSettings, create=print)\n",
        "utf-8",
    )
    (tmp_path / "notes").mkdir()  # no package
    monkeypatch.setattr(access_package, "__path__", [*access_package.__path__, str(tmp_path)])
    try:
        sources = registry._built_in()
    finally:
        for name in ("gate.declaration", "gate"):
            sys.modules.pop(f"{access_package.__name__}.{name}", None)
    assert sources[:-1] == ACCESS_SOURCES and sources[-1].name == "gate"
    settings: Any = access_settings(written_type(AccessSettings), sources)()
    assert settings.authenticators[-1] == settings.authorizers[-1] == "gate" and settings.gate is None


class DoorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    key: str = "right"
    fault: str = ""


class Door(Source):
    """Knows everybody by the key; raises where ``fault`` says."""

    def __init__(self, settings: DoorSettings, context: SourceContext, name: str = "door") -> None:
        super().__init__(name)
        self.settings = settings
        self.life: list[str] = []

    def _do(self, what: str) -> None:
        self.life.append(what)
        if self.settings.fault == what:
            raise RuntimeError(f"{what} is broken")

    def start(self) -> None:
        self._do("start")

    def retire(self) -> None:
        self._do("retire")

    def authenticator(self) -> "Door":
        self._do("authenticator")
        return self

    def authorizer(self) -> None:
        self._do("authorizer")

    def scram_verifiers(self) -> list[ScramVerifier]:
        self._do("scram_verifiers")
        return []

    @property
    def knows_superusers(self) -> bool:
        self._do("knows_superusers")
        return False

    def authenticate(self, client: ClientInfo, password: bytes | None) -> AuthOutcome | None:
        if password != self.settings.key.encode():
            return AuthOutcome(0x86, detail="wrong_key", setting="access.door.key")
        return AuthOutcome(proved_by=self.name)


def door(create: Any) -> AccessSource:
    return AccessSource(name="door", settings=DoorSettings, create=create)


@pytest.mark.parametrize(
    "create, words",
    [
        (
            lambda settings, context: Door(settings, context, "gate"),
            "the source has another name than its declaration: gate",
        ),
        (lambda settings, context: None, "create of the declaration returned no source"),
        (lambda settings, context: 1, "create of the declaration returned int, not a Source"),
        (lambda settings, context: {}["key"], r"create of the declaration failed: KeyError: 'key'"),
    ],
)
@pytest.mark.asyncio
async def test_a_declaration_that_makes_another_source(create: Any, words: str) -> None:
    """It would never be asked, and clients with a wrong key would come in as anonymous ones."""
    with pytest.raises(ValueError, match=f"^access.door: {words}$"):
        control({"door": {}}, door(create))
    access = control({}, door(create))  # without the table, it is not made
    assert "door" not in access.sources
    with pytest.raises(ValueError, match=f"^access.door: {words}$"):
        access.reload(msgspec.structs.replace(access.settings, door=DoorSettings()))
    assert "door" not in access.sources
    await access.stop()


@pytest.mark.parametrize("fault", ["start", "authenticator", "authorizer", "scram_verifiers", "knows_superusers"])
@pytest.mark.asyncio
async def test_a_reload_that_fails_changes_nothing(fault: str) -> None:
    made: list[Door] = []

    def create(settings: DoorSettings, context: SourceContext) -> Door:
        made.append(Door(settings, context))
        return made[-1]

    access = control({"door": {}}, door(create))
    access.start()
    before, settings = access.sources, access.settings
    changed = msgspec.structs.replace(settings, no_match="allow", door=DoorSettings(key="new", fault=fault))
    with pytest.raises(RuntimeError, match=f"^{fault} is broken$"):
        access.reload(changed)
    assert access.sources is before and access.settings is settings and "retire" not in made[0].life
    assert access.authentication.settings is access.authorization.settings is settings
    for password, code in ((b"right", 0), (b"new", 0x86)):
        assert (await log_in(access, client(), password)).reason_code == code
    access.reload(msgspec.structs.replace(changed, door=DoorSettings(key="new")))
    assert made[0].life[-1] == "retire" and (await log_in(access, client(), b"new")).reason_code == 0
    await access.stop()
