"""A provider of exhook that decides about access: what it is asked, and what happens if it answers wrongly or not."""

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.access.control import AccessControl
from taipan.broker.access.exhook.messages import CLASSES, CONTINUE, IGNORE, STOP_AND_RETURN
from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter
from taipan.broker.mqtt.reason_codes import SERVER_UNAVAILABLE
from taipan.management.configuration.config import load
from tests.broker.access.test_sources import client, control, log_in
from tests.support.certificates import Certificates
from tests.support.exhook_provider import Provider, decided
from tests.support.node import start_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

DECLARED = next(source for source in ACCESS_SOURCES if source.name == "exhook")
BOTH: dict[str, list[str]] = {"client__authenticate": [], "client__check_acl": []}


@asynccontextmanager
async def provided(**hooks: list[str]) -> AsyncIterator[Provider]:
    provider = Provider(**(hooks or BOTH))
    provider.answers = {"OnClientAuthenticate": lambda _: decided(True), "OnClientCheckAcl": lambda _: decided(True)}
    await provider.start()
    try:
        yield provider
    finally:
        await provider.stop()


@asynccontextmanager
async def asked(provider: Provider, **settings: Any) -> AsyncIterator[AccessControl]:
    access = control({"guesses": 10_000, "exhook": {"url": provider.url, **settings}}, DECLARED)
    access.start()
    try:
        yield access
    finally:
        await access.stop()


async def allowed(access: AccessControl) -> tuple[str, str]:
    """Return the result of a login, and its detail."""
    outcome = await log_in(access, client(), b"right")
    if outcome.reason_code == SERVER_UNAVAILABLE:
        return "failed", outcome.detail
    if outcome.reason_code == 0:
        return "allow", outcome.detail
    return "deny" if outcome.detail == "denied" else "next", outcome.detail


@pytest.mark.parametrize("version", [4, 5])
async def test_what_it_is_asked(version: int) -> None:
    async with provided() as provider:
        provider.answers["OnClientCheckAcl"] = lambda request: decided(request.topic != "shut/#")
        node = await start_node(access={"exhook": {"url": provider.url}}, zone={"mountpoint": "m/"})
        try:
            ann = await node.client("c1", version, username="ann", password=b"right")
            await ann.send(Subscribe(1, [TopicFilter("open", 1), TopicFilter("shut/#", 0)]))
            codes = (await ann.answer(Suback, packet_id=1)).reason_codes
            assert codes[0] == 1 and codes[1] >= 0x80
            await ann.publish("open", b"x", 1)
            await ann.expect_publish("open", b"x", 1)
        finally:
            await node.stop()
        (loaded,) = provider.of("OnProviderLoaded")
        assert loaded.meta.node == node.server.settings.node.name and loaded.broker.version
        (login,) = provider.of("OnClientAuthenticate")
        info = login.clientinfo
        assert (info.clientid, info.username, info.password, info.protocol) == ("c1", "ann", "right", "mqtt")
        assert (info.peerhost, info.mountpoint, info.node) == ("127.0.0.1", "", loaded.meta.node)
        questions = provider.of("OnClientCheckAcl")
        assert sorted((each.type, each.topic) for each in questions) == [(0, "open"), (1, "open"), (1, "shut/#")]
        assert {each.clientinfo.username for each in questions} == {"ann"}
        assert {each.clientinfo.password for each in questions} == {""}


async def test_what_it_does_not_want_is_left_to_the_next_source() -> None:
    async with provided(client__connected=[]) as provider, asked(provider) as access:
        assert (await allowed(access))[0] == "next"
        assert [name for name, _ in provider.asked] == ["OnProviderLoaded"]


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (decided(True), "allow"),
        (decided(False), "deny"),
        (decided(True, CONTINUE), "next"),
        (decided(False, CONTINUE), "deny"),
        (decided(True, IGNORE), "next"),
        (CLASSES["ValuedResponse"](type=STOP_AND_RETURN), "failed"),
        (CLASSES["ValuedResponse"](type=STOP_AND_RETURN, message=CLASSES["Message"](topic="t")), "failed"),
        (b"no message of exhook", "failed"),
    ],
)
async def test_its_answers(answer: Any, result: str) -> None:
    async with provided() as provider, asked(provider) as access:
        provider.answers["OnClientAuthenticate"] = lambda _: answer
        assert (await allowed(access))[0] == result


@pytest.mark.parametrize(("on_failure", "result"), [("deny", "failed"), ("ignore", "next")])
async def test_an_error_is_no_answer(on_failure: str, result: str) -> None:
    def fails(request: Any) -> Any:
        raise RuntimeError("of the provider")

    async with provided() as provider, asked(provider, on_failure=on_failure) as access:
        provider.answers["OnClientAuthenticate"] = fails
        found, detail = await allowed(access)
        assert found == result and (found == "next" or detail == "exhook_answered_unknown")
        provider.answers["OnClientAuthenticate"] = lambda _: decided(True)
        assert (await allowed(access))[0] == "allow"


async def test_a_provider_that_hangs_is_not_waited_for() -> None:
    async def hangs(request: Any) -> Any:
        await asyncio.sleep(30)
        return decided(True)

    async with provided() as provider, asked(provider, timeout=0.2) as access:
        provider.answers["OnClientAuthenticate"] = hangs
        assert await allowed(access) == ("failed", "exhook_timeout")
        await provider.stop()


async def test_a_provider_that_starts_again_is_told_of_the_node() -> None:
    async with provided() as provider, asked(provider) as access:
        assert (await allowed(access))[0] == "allow"
        await provider.stop()
        assert (await allowed(access))[0] == "failed"
        provider.asked.clear()
        await provider.start()
        async with asyncio.timeout(30):
            while (await allowed(access))[0] != "allow":
                await asyncio.sleep(0.05)
        assert provider.of("OnProviderLoaded")


async def test_a_provider_that_starts_again_with_another_hook_while_nothing_is_asked() -> None:
    """Nothing was asked that could have failed; what the new one wants to decide is not left to the next source."""
    async with provided(client__authenticate=[]) as provider, asked(provider) as access:
        source: Any = access.sources["exhook"]
        assert (await source.authorize(client(), "publish", "t")).decision == "ignore"
        await source._reaching
        await provider.stop()
        provider.hooks = {"client.authenticate": [], "client.check_acl": []}
        provider.answers["OnClientCheckAcl"] = lambda _: decided(False)
        await provider.start()
        async with asyncio.timeout(patience(10)):
            while (await source.authorize(client(), "publish", "t")).decision == "ignore":
                await asyncio.sleep(0.05)
        assert (await source.authorize(client(), "publish", "t")) == ("deny", "", "access.exhook.url")


@asynccontextmanager
async def two(**settings: Any) -> AsyncIterator[tuple[Provider, Provider, AccessControl]]:
    async with (
        provided() as first,
        provided() as second,
        asked(first, more=[{"url": second.url}], timeout=0.5, **settings) as access,
    ):
        yield first, second, access


@pytest.mark.parametrize(
    ("answers", "result", "asked_second"),
    [
        ((decided(True), decided(False)), "allow", False),
        ((decided(False), decided(True)), "deny", False),
        ((decided(False, CONTINUE), decided(True)), "allow", True),
        ((decided(True, CONTINUE), decided(False)), "deny", True),
        ((decided(True, IGNORE), decided(True)), "allow", True),
        ((decided(False, CONTINUE), decided(True, IGNORE)), "deny", True),
        ((decided(False, CONTINUE), decided(True, CONTINUE)), "next", True),
        ((decided(True, IGNORE), decided(True, IGNORE)), "next", True),
    ],
)
async def test_two_providers_are_asked_in_their_order(
    answers: tuple[Any, Any], result: str, asked_second: bool
) -> None:
    async with two() as (first, second, access):
        for provider, answer in zip((first, second), answers, strict=True):
            provider.answers["OnClientAuthenticate"] = lambda _, answer=answer: answer
        assert (await allowed(access))[0] == result
        assert bool(second.of("OnClientAuthenticate")) == asked_second
        if asked_second:
            passed_on = answers[0].type == CONTINUE and answers[0].bool_result
            assert second.of("OnClientAuthenticate")[0].result == passed_on


@pytest.mark.parametrize(("on_failure", "result"), [("deny", "failed"), ("ignore", "allow")])
async def test_one_of_two_providers_is_away(on_failure: str, result: str, caplog: pytest.LogCaptureFixture) -> None:
    async with two(on_failure=on_failure) as (first, second, access):
        await first.stop()
        async with asyncio.timeout(patience(20)):
            while (await allowed(access))[0] != result:
                await asyncio.sleep(0.05)
        if on_failure == "ignore":
            await second.stop()
            async with asyncio.timeout(patience(20)):
                while (await allowed(access))[0] != "next":
                    await asyncio.sleep(0.05)
            lines = [each for each in caplog.messages if each.startswith("access_source_failed source=exhook ")]
            assert "on_failure=ignore" in lines[0] and f"detail={first.url}: " in lines[0]


async def test_a_provider_that_cannot_be_reached_does_not_use_up_the_time_of_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with provided() as second:
            settings = {"url": url, "more": [{"url": second.url}], "connect_timeout": 0.5, "timeout": 4.0}
            access = control({"guesses": 10_000, "exhook": {**settings, "on_failure": "ignore"}}, DECLARED)
            try:
                found = await asyncio.gather(*(allowed(access) for _ in range(40)))
                assert {result for result, _ in found} == {"allow"}
            finally:
                await access.stop()


async def test_each_failure_is_counted_once() -> None:
    def fails(request: Any) -> Any:
        raise RuntimeError("of the provider")

    counted: list[str] = []
    async with two(on_failure="ignore") as (first, second, access):
        source: Any = access.sources["exhook"]
        source._context = dataclasses.replace(source._context, count=counted.append)
        first.answers["OnClientAuthenticate"] = fails
        assert (await allowed(access))[0] == "allow"
        second.answers["OnClientAuthenticate"] = fails
        assert (await allowed(access))[0] == "next"
    assert counted == ["access_exhook_answered_unknown"] * 3


async def test_a_further_provider_with_a_wrong_address_is_named(tmp_path: Path) -> None:
    file = tmp_path / "taipan.toml"
    for url in ("", "nowhere", "http://a:1/path"):
        file.write_text(f'[access.exhook]\nurl = "http://a:1"\nmore = [{{ url = "{url}" }}]\n')
        with pytest.raises(Exception, match=r"access\.exhook\.more\.0\.url"):
            load(str(file), environ={})


async def test_one_introduction_for_many_clients() -> None:
    async with provided() as provider, asked(provider) as access:
        found = await asyncio.gather(*(allowed(access) for _ in range(50)))
        assert {result for result, _ in found} == {"allow"}
        assert len(provider.of("OnProviderLoaded")) <= 2  # one of the attempt to connect at the start


async def test_tls(tmp_path: Path) -> None:
    authority = Certificates(tmp_path)
    certificate, key = authority.issue("localhost")
    own, own_key = authority.issue("node", file="own")
    (tmp_path / "other").mkdir()
    Certificates(tmp_path / "other")
    provider = Provider(**BOTH)
    provider.answers["OnClientAuthenticate"] = lambda _: decided(True)
    pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
    authorities = Path(str(tmp_path / "ca.pem")).read_bytes()
    await provider.start(grpc.ssl_server_credentials([pair], authorities, require_client_auth=True))
    try:
        url = f"https://localhost:{provider.port}"
        good = {"url": url, "cacertfile": str(tmp_path / "ca.pem"), "certfile": own, "keyfile": own_key}
        async with asked(provider, **good) as access:
            assert (await allowed(access))[0] == "allow"
        for bad in (
            {**good, "cacertfile": str(tmp_path / "other" / "ca.pem")},
            {**good, "certfile": "", "keyfile": ""},
        ):
            async with asked(provider, **bad, timeout=2.0) as access:
                assert (await allowed(access))[0] == "failed"
    finally:
        await provider.stop()


async def test_check_connect_sends_nothing_about_a_client() -> None:
    async with provided() as provider:
        settings = control({"exhook": {"url": provider.url}}, DECLARED).settings
        assert await tried_sources(settings) == {"exhook": ""}
        assert [name for name, _ in provider.asked] == ["OnProviderLoaded"]
        await provider.stop()
        assert (await tried_sources(settings))["exhook"].startswith("no_connection")


async def test_a_provider_that_has_no_question_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async with provided(client__connected=[]) as provider, asked(provider) as access:
        for _ in range(2):
            assert (await allowed(access))[0] == "next"
        (line,) = [each for each in caplog.messages if each.startswith("exhook_not_asked")]
        assert line.startswith("exhook_not_asked setting=access.exhook.url hooks=client.connected detail=")


async def test_a_provider_with_one_question_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    async with provided(client__check_acl=[]) as provider, asked(provider) as access:
        await allowed(access)
        assert "exhook_not_asked" not in caplog.text
