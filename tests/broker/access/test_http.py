"""HttpSource: what is sent, what answers mean, what a failure is; and its place in the chain."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.broker.access.auth_result import AuthOutcome
from taipan.broker.access.control import AccessControl
from taipan.broker.access.decision import Decision
from taipan.broker.access.http.declaration import HttpAccessSettings
from taipan.broker.access.http.settings import tls_context
from taipan.broker.access.http.source import HttpSource
from taipan.broker.access.outside import ALLOW, DENY, IGNORE
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.placeholders import check_placeholders
from taipan.broker.access.source import SourceContext
from taipan.broker.config import AccessSettings, ZoneSettings
from taipan.broker.session.client_info import CERTIFICATE, ClientInfo
from taipan.broker.setting_rules import check_url
from tests.support.access import authenticate, authorized
from tests.support.auth_service import AuthService, auth_service
from tests.support.clock import Clock
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def service() -> AsyncIterator[AuthService]:
    async with auth_service() as service:
        yield service


class Source(HttpSource):
    """Remembers the reasons of its failures."""

    def __init__(self, **settings: Any) -> None:
        self.reasons: list[str] = []
        self.clock = Clock()
        context = SourceContext(self.clock, self.reasons.append, AccessSettings())  # type: ignore[arg-type]
        super().__init__(msgspec.convert(settings, HttpAccessSettings), context)


def client(username: str | None = "ann", proto_name: str = "MQTT", **zone: Any) -> ClientInfo:
    settings = ZoneSettings(**zone)
    made = ClientInfo("n@h", settings, peer_host="10.0.0.7", sock_port=1883, loopback=True, proto_name=proto_name)
    made.client_id, made.username = "c1", username
    made.proved_by = "users"
    made.cn, made.dn, made.mountpoint = "the cn", "CN=the cn", "m/"
    return made


@pytest.mark.parametrize("how", ["post form", "post json", "get"])
async def test_every_placeholder(service: AuthService, how: str) -> None:
    names = {letter: f"%{letter}" for letter in "ucaPrpCdm"}
    method, _, body = how.partition(" ")
    settings = {"body": body} if body else {}
    url = service.url("/auth?fixed=1") if method == "get" else service.url("/auth")
    source = Source(
        auth_url=url, auth_method=method, auth_params={**names, "two": "%u/%c", "none": "50%"}, headers={"X-Key": "k"},
        **settings,
    )  # fmt: skip
    outcome = await source.authenticate(client("a&%c"), b"p w=%u")
    assert outcome is not None and outcome.reason_code == 0
    (question,) = service.questions("/auth")
    if method == "get":
        assert question.pop("fixed") == "1"
    assert question == {
        "u": "a&%c", "c": "c1", "a": "10.0.0.7", "P": "p w=%u", "r": "mqtt", "p": "1883", "C": "the cn",
        "d": "CN=the cn", "m": "m/", "two": "a&%c/c1", "none": "50%",
    }  # fmt: skip
    assert service.headers[0]["X-Key"] == "k"
    await source.stop()


async def test_the_protocol_of_a_gateway(service: AuthService) -> None:
    source = Source(auth_url=service.url("/auth"), auth_params={"protocol": "%r"})
    device = client(proto_name="MQTT-SN")
    await source.authenticate(device, b"p")
    assert service.questions("/auth") == [{"protocol": "mqtt-sn"}]
    await source.stop()


@pytest.mark.parametrize("action, number", [("subscribe", "1"), ("publish", "2")])
async def test_permission(service: AuthService, action: str, number: str) -> None:
    source = Source(acl_url=service.url("/acl"))
    verdict = await source.authorize(client(), action, "a/+ ü")
    assert verdict.allowed is True
    assert service.questions() == [
        {"access": number, "username": "ann", "clientid": "c1", "ipaddr": "10.0.0.7", "topic": "a/+ ü",
         "mountpoint": "m/"}
    ]  # fmt: skip
    await source.stop()


@pytest.mark.parametrize("on_failure", ["deny", "ignore"])
@pytest.mark.parametrize(
    "reply, decision, failure",
    [
        (200, ALLOW, ""),
        ("ok", ALLOW, ""),
        ("ignore", IGNORE, ""),
        ("ignore\n", IGNORE, ""),
        ("x" * 200_000, ALLOW, ""),
        (401, DENY, ""),
        (403, DENY, ""),
        (404, DENY, ""),
        (204, None, "status_204"),
        (302, None, "status_302"),
        (500, None, "status_500"),
        (503, None, "status_503"),
        ("hang up", None, "broken"),
    ],
)
async def test_answers(
    service: AuthService, reply: int | str, decision: str | None, failure: str, on_failure: str
) -> None:
    service.replies["/acl"] = reply
    source = Source(acl_url=service.url("/acl"), on_failure=on_failure)
    verdict = await source.authorize(client(), "publish", "t")
    assert verdict.decision == (decision or {"deny": DENY, "ignore": IGNORE}[on_failure])
    assert verdict.failure == (f"http_{failure}" if failure else "")
    assert source.reasons == ([f"access_http_{failure}"] if failure else [])
    assert (source.status.asked, source.status.failed) == (1, len(source.reasons))
    await source.stop()


async def test_time_out_and_no_connection(service: AuthService, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(acl_url=service.url("/acl"), timeout=1.0)
    service.gate.clear()
    verdict = await source.authorize(client(), "publish", "t")
    assert (verdict.decision, verdict.failure, verdict.setting) == (DENY, "http_timeout", "access.http.timeout")
    await service.stop()
    for _ in range(3):
        verdict = await source.authorize(client(), "publish", "t")
        assert (verdict.failure, verdict.setting) == ("http_no_connection", "access.http.acl_url")
    assert len(caplog.records) == 1  # told at once, then every ten seconds with a number
    source.clock.advance(10)
    await source.authorize(client(), "publish", "t")
    assert "count=4" in caplog.text
    await source.stop()


async def test_connections_are_used_again_and_bounded(service: AuthService) -> None:
    service.replies["/acl"] = 403
    source = Source(acl_url=service.url("/acl"), pool_size=3)
    for _ in range(2):
        service.gate.clear()
        asked = [asyncio.ensure_future(source.authorize(client(), "publish", f"t/{n}")) for n in range(20)]
        async with asyncio.timeout(patience(40)):
            while service.at_once < 3:
                await asyncio.sleep(0.001)
        service.gate.set()
        assert all(verdict.allowed is False for verdict in await asyncio.gather(*asked))
    assert service.most_at_once == 3 and len(service.connections) == 3
    await source.stop()


async def test_a_connection_that_the_service_closed_is_no_failure(service: AuthService) -> None:
    source = Source(acl_url=service.url("/acl"))
    assert (await source.authorize(client(), "publish", "t")).allowed
    port = service.port
    await service.stop()
    await service.start(port)
    assert (await source.authorize(client(), "publish", "t")).allowed
    assert source.status.failed == 0
    await source.stop()


async def test_too_many_wait(service: AuthService) -> None:
    source = Source(acl_url=service.url("/acl"), pool_size=1)
    service.gate.clear()
    asked = [asyncio.ensure_future(source.authorize(client(), "publish", "t")) for _ in range(256)]
    await asyncio.sleep(0)
    verdict = await source.authorize(client(), "publish", "t")
    assert (verdict.failure, verdict.setting) == ("http_busy", "access.http.pool_size")
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    service.gate.set()
    assert (await source.authorize(client(), "publish", "t")).allowed
    await source.stop()


async def test_retired_while_busy(service: AuthService) -> None:
    source = Source(acl_url=service.url("/acl"))
    service.gate.clear()
    asked = asyncio.ensure_future(source.authorize(client(), "publish", "t"))
    while not service.asked:
        await asyncio.sleep(0)
    source.retire()
    busy = [source.busy]
    service.gate.set()
    assert (await asked).allowed
    await source.stop()
    assert [*busy, source.busy] == [True, False]
    assert (await source.authorize(client(), "publish", "t")).failure == "http_stopping"


@pytest.mark.parametrize(
    "reply, username, password, code", [(401, "ann", b"x", 0x86), (401, None, None, 0x87), (500, "ann", b"x", 0x88)]
)
async def test_refused_connect(
    service: AuthService, reply: int, username: str | None, password: bytes | None, code: int
) -> None:
    service.replies["/auth"] = reply
    source = Source(auth_url=service.url("/auth"))
    outcome = await source.authenticate(client(username), password)
    assert outcome is not None and (outcome.reason_code, outcome.setting) == (code, "access.http.auth_url")
    await source.stop()


@pytest.mark.parametrize("reply, superuser", [(200, True), ("ignore", False), (403, False), (500, False)])
@pytest.mark.parametrize("on_failure", ["deny", "ignore"])
async def test_superuser(service: AuthService, reply: int | str, superuser: bool, on_failure: str) -> None:
    service.replies["/super"] = reply
    source = Source(auth_url=service.url("/auth"), superuser_url=service.url("/super"), on_failure=on_failure)
    outcome = await source.authenticate(client(), b"x")
    assert outcome is not None and (outcome.reason_code, outcome.is_superuser) == (0, superuser)
    await source.stop()


@pytest.mark.parametrize("url", ["", "http://h", "https://h:1/p?q=1", "http://[::1]:80/"])
async def test_urls(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize("url", ["h", "ftp://h", "http://", "http://h:99999/", "//h"])
async def test_no_urls(url: str) -> None:
    with pytest.raises(ValueError):
        check_url(url)


async def test_placeholders() -> None:
    check_placeholders("uc", "%u-%c 100%")
    with pytest.raises(ValueError, match="%P is not one of %u, %c"):
        check_placeholders("uc", "%P")


async def test_tls() -> None:
    settings = HttpAccessSettings(acl_url="https://h")
    assert tls_context(settings) is True
    context = tls_context(msgspec.structs.replace(settings, tls_verify=False))
    assert isinstance(context, ssl.SSLContext) and context.verify_mode == ssl.CERT_NONE
    with pytest.raises(ValueError, match=r"nowhere\.pem"):
        tls_context(msgspec.structs.replace(settings, cafile="nowhere.pem"))


# --- in the chain ----------------------------------------------------------------------------------------------------

ALICE = {"username": "alice", "password_hash": str(ScryptHash.create(b"secret", n=16))}
ROOT = {"username": "root", "password_hash": str(ScryptHash.create(b"toor", n=16)), "is_superuser": True}


@pytest_asyncio.fixture
async def controls() -> AsyncIterator[list[AccessControl]]:
    made: list[AccessControl] = []
    yield made
    for control in made:
        await control.stop()


def chain(made: list[AccessControl], **settings: Any) -> AccessControl:
    made.append(AccessControl(msgspec.convert(settings, AccessSettings), Clock()))  # type: ignore[arg-type]
    return made[-1]


async def outcome_of(answer: AuthOutcome | Awaitable[AuthOutcome]) -> AuthOutcome:
    return answer if isinstance(answer, AuthOutcome) else await answer


async def test_our_own_users_first(service: AuthService, controls: list[AccessControl]) -> None:
    control = chain(controls, users=[ALICE], http=service.settings())
    assert (await outcome_of(authenticate(control, client("alice"), b"wrong"))).reason_code == 0x86
    assert (await outcome_of(authenticate(control, client("alice"), b"secret"))).reason_code == 0
    assert service.asked == []
    assert (await outcome_of(authenticate(control, client("bob"), b"x"))).reason_code == 0
    assert len(service.asked) == 1


async def test_http_first(service: AuthService, controls: list[AccessControl]) -> None:
    service.replies["/auth"] = lambda asked: "ignore" if asked["username"] == "alice" else 401
    order = ["http", "configuration"]
    control = chain(controls, users=[ALICE], http=service.settings(), authenticators=order)
    assert (await outcome_of(authenticate(control, client("alice"), b"secret"))).reason_code == 0
    assert (await outcome_of(authenticate(control, client("alice"), b"wrong"))).reason_code == 0x86
    assert (await outcome_of(authenticate(control, client("bob"), b"x"))).detail == "denied"


@pytest.mark.parametrize("users", [[], [ALICE]])
async def test_a_name_that_nobody_knows(
    service: AuthService, controls: list[AccessControl], users: list[dict[str, str]]
) -> None:
    """Unlike without any source, ``allow_anonymous`` does not let it in."""
    service.replies["/auth"] = "ignore"
    control = chain(controls, users=users, http=service.settings())
    assert (await outcome_of(authenticate(control, client("bob", allow_anonymous=True), b"x"))).reason_code == 0x86
    assert (await outcome_of(authenticate(control, client(None, allow_anonymous=True), None))).anonymous


async def test_left_out(service: AuthService, controls: list[AccessControl]) -> None:
    settings = service.settings(superuser_url=service.url("/super"))
    control = chain(controls, http=settings, authenticators=["configuration"], authorizers=["configuration"])
    assert (await outcome_of(authenticate(control, client("bob"), b"x"))).anonymous
    assert not (await outcome_of(authenticate(control, client("bob"), None, proved_by=CERTIFICATE))).is_superuser
    assert authorized(control, client(), "publish", "t") is True
    assert not control.authorization.asks and service.asked == []


async def test_certified(service: AuthService, controls: list[AccessControl]) -> None:
    """A certificate is enough; who is a superuser may be asked for."""
    service.replies["/super"] = lambda asked: 200 if asked["username"] == "boss" else 403
    control = chain(controls, users=[ROOT], http=service.settings(superuser_url=service.url("/super")))
    for username, superuser in (("root", True), ("boss", True), ("ann", False)):
        outcome = await outcome_of(authenticate(control, client(username), None, proved_by=CERTIFICATE))
        assert (outcome.reason_code, outcome.is_superuser) == (0, superuser)
    assert service.questions("/auth") == [] and len(service.questions("/super")) == 2


async def test_answers_are_remembered_as_long_as_others(service: AuthService, controls: list[AccessControl]) -> None:
    control = chain(controls, http=service.settings())
    somebody = client()
    assert authorized(control, somebody, "publish", "t") is None
    (answer,) = await control.authorization.ask(somebody, "publish", ["t"])
    assert answer.allowed and answer.lasting and not answer.ignored
    assert authorized(control, somebody, "publish", "t") is True
    assert authorized(control, somebody, "subscribe", "t") is None
    control.authorization._clock.advance(60)  # type: ignore[attr-defined]
    assert authorized(control, somebody, "publish", "t") is None
    await control.authorization.ask(somebody, "publish", ["t"])
    control.authorization.forget_decisions()
    assert authorized(control, somebody, "publish", "t") is None


async def test_nobody_has_a_rule(service: AuthService, controls: list[AccessControl]) -> None:
    service.replies["/acl"] = "ignore"
    control = chain(controls, http=service.settings(), no_match="deny")
    somebody = client()
    assert authorized(control, somebody, "publish", "t") is None
    (answer,) = await control.authorization.ask(somebody, "publish", ["t"])
    assert (answer.allowed, answer.setting, answer.ignored) == (False, "access.no_match", True)
    decision = control.authorization.authorize(somebody, "publish", "t")
    assert decision == Decision(False, "access.no_match", ignored=True, cached=True)


async def test_an_answer_from_before_a_change_is_not_remembered(
    service: AuthService, controls: list[AccessControl]
) -> None:
    control = chain(controls, http=service.settings())
    somebody = client()
    authorized(control, somebody, "publish", "t")
    service.gate.clear()
    asked = asyncio.ensure_future(control.authorization.ask(somebody, "publish", ["t"]))
    while not service.asked:
        await asyncio.sleep(0)
    control.authorization.forget_decisions()
    service.gate.set()
    assert (await asked)[0].allowed
    assert authorized(control, somebody, "publish", "t") is None


@pytest.mark.parametrize(
    "params, proved, identified",
    [({"u": "%u", "c": "%c"}, True, True), ({"c": "%c", "p": "%P"}, False, True), ({"who": "x-%u"}, True, False)],
)
async def test_what_the_service_is_not_told_it_has_not_judged(
    service: AuthService, params: dict[str, str], proved: bool, identified: bool
) -> None:
    source = Source(
        auth_url=service.url("/auth"), auth_params=params,
        superuser_url=service.url("/super"), superuser_params={"u": "%u"},
        acl_url=service.url("/acl"), acl_params={"u": "%u"},
    )  # fmt: skip
    who = client("boss")
    who.proved_by = ""
    outcome = await source.authenticate(who, b"p")
    assert outcome is not None and not outcome.reason_code
    assert (outcome.proved_by == "http", outcome.proves_client_id) == (proved, identified)
    await source.authorize(who, "publish", "t")
    for path in ("/super", "/acl"):
        (question,) = service.questions(path)
        assert question["u"] == ("boss" if proved else "")
    await source.stop()
