"""Wrong secrets: whoever gives them waits, and nobody else does."""

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from taipan.management.http import credentials
from taipan.management.http.credentials import FREE_FAILURES, MAX_WAIT
from tests.support.api import APP_ID, SECRET, ManagedNode, managed_node
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ManagedNode]:
    async with managed_node() as node:
        yield node


@pytest.fixture
def answers_that_take_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what happens before they come, however slow the machine is."""
    monkeypatch.setattr(credentials, "MAX_WAIT", 600.0)


def basic(app_id: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{app_id}:{secret}".encode()).decode()


async def guess(node: ManagedNode, app_id: str = APP_ID, secret: str = "guess") -> int:
    return (await node.api.ask("GET", "/brokers", headers={"Authorization": basic(app_id, secret)})).status


async def throw(node: ManagedNode, guesses: int, app_id: str = APP_ID) -> None:
    """So many guesses whose answers nobody waits for."""
    host, port = node.management.url.removeprefix("http://").split(":")
    before = wrong(node)
    for number in range(guesses):
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\nAuthorization: {basic(app_id, str(number))}\r\n\r\n"
        writer.write(head.encode())
        await asyncio.wait_for(heard(node, before + number + 1), patience(40))
        writer.close()


async def heard(node: ManagedNode, guesses: int) -> None:
    while wrong(node) < guesses:
        await asyncio.sleep(0)


def wrong(node: ManagedNode) -> int:
    return node.server.metrics.refusals.snapshot().get("api_credentials", 0)


@pytest.mark.usefixtures("answers_that_take_minutes")
async def test_right_ones_come_in_at_once_after_a_thousand_wrong_ones(node: ManagedNode) -> None:
    await throw(node, 1000)
    waiting = asyncio.ensure_future(guess(node))
    await heard(node, 1001)
    assert (await node.api.get("/brokers")).code == 0
    assert not waiting.done() and wrong(node) == 1001
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.usefixtures("answers_that_take_minutes")
async def test_right_ones_come_in_at_once_while_wrong_ones_wait_beside_them(node: ManagedNode) -> None:
    await throw(node, 100)
    waiting = [asyncio.ensure_future(guess(node)) for _ in range(20)]
    await heard(node, 120)
    assert (await node.api.get("/brokers")).code == 0
    assert not any(each.done() for each in waiting)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_first_few_are_answered_at_once_and_then_ever_more_slowly(
    node: ManagedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taipan.management.http.connection import HttpConnection

    waits: list[float] = []

    async def wait(_: HttpConnection, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(HttpConnection, "wait", wait)
    for _ in range(FREE_FAILURES - 1):
        assert await guess(node) == 401
    assert waits == []
    for _ in range(4):
        assert await guess(node) == 401
    assert waits == [1.0, 2.0, 4.0, MAX_WAIT]
    await node.pass_time(601)
    assert await guess(node) == 401
    assert len(waits) == 4


@pytest.mark.parametrize("app_ids", [[APP_ID], [f"nobody-{number}" for number in range(FREE_FAILURES)]])
async def test_it_really_waits(node: ManagedNode, app_ids: list[str]) -> None:
    """By the AppID that is tried, and by the address that tries others."""
    for number in range(FREE_FAILURES - 1):
        await guess(node, app_ids[number % len(app_ids)])
    begun = time.perf_counter()
    reply = await node.api.ask("GET", "/brokers", headers={"Authorization": basic(app_ids[-1], "x")})
    assert (reply.status, reply.code, reply.headers["Connection"]) == (401, 103, "close")
    assert time.perf_counter() - begun > 0.9


@pytest.mark.usefixtures("answers_that_take_minutes")
async def test_who_leaves_while_it_waits_leaves_nothing_behind(node: ManagedNode) -> None:
    def held() -> list[asyncio.Task[object]]:
        return [
            task for task in asyncio.all_tasks() if "hold" in repr(task.get_coro()) or "_handle_request" in repr(task)
        ]

    await throw(node, 60)
    await until(lambda: not held())


async def test_no_credentials_are_no_guess(node: ManagedNode) -> None:
    app, node.api.app = node.api.app, None
    for _ in range(3 * FREE_FAILURES):
        assert (await node.api.get("/brokers")).code == 104
    assert wrong(node) == 0
    node.api.app = app


async def test_the_log_names_who(node: ManagedNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "taipan.management.http.credentials"):
        await throw(node, 100)
    assert len(caplog.messages) == FREE_FAILURES + 1
    assert caplog.messages[-1] == f"api_credentials_wrong address=127.0.0.1 app_id={APP_ID} failures=100"
    assert SECRET not in caplog.text
