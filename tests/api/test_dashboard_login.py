"""Logins at the dashboard: cookie and header, Basic, expiry, log-out, other passwords and roles, guesses, roles."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from tests.support.api import SECRET, ApiClient, ManagedNode, Reply, assert_refused, managed_node
from tests.support.live import Events

pytestmark = pytest.mark.asyncio

HEADER = {"X-Taipan-Dashboard": "1"}
PASSWORD = "pass-word-1"


class Browser(ApiClient):
    """A page of the dashboard: keeps the cookie, sends the header."""

    def __init__(self, url: str) -> None:
        super().__init__(url, app=None)
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def ask(self, method: str, path: str, *args: Any, headers: Any = None, **more: Any) -> Reply:
        return await super().ask(method, path, *args, headers=HEADER if headers is None else headers, **more)

    async def log_in(self, name: str = "root", password: str = PASSWORD) -> Reply:
        return await self.post("/auth", {"username": name, "password": password})


class Dashboard:
    """A node with users ``root``, an administrator, and ``eve``, a viewer."""

    def __init__(self, node: ManagedNode) -> None:
        self.node = node
        self.url = node.management.dashboard_url
        self._clients: list[ApiClient] = []

    def browser(self) -> Browser:
        browser = Browser(self.url)
        self._clients.append(browser)
        return browser

    def basic(self, name: str, password: str = PASSWORD) -> ApiClient:
        client = ApiClient(self.url, app=(name, password))
        self._clients.append(client)
        return client

    async def logged_in(self, name: str = "root") -> Browser:
        browser = self.browser()
        assert (await browser.log_in(name)).code == 0
        return browser

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest_asyncio.fixture
async def dashboard() -> AsyncIterator[Dashboard]:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        users = node.management.operations.dashboard_users
        await users.add("root", PASSWORD, "administrator")
        await users.add("eve", PASSWORD, "viewer")
        opened = Dashboard(node)
        yield opened
        await opened.close()


async def test_the_first_start_makes_an_administrator_and_tells_once(capsys: pytest.CaptureFixture[str]) -> None:
    async with managed_node(dashboard={}) as node:
        said = capsys.readouterr().out
        [(url, password)] = re.findall(r"The dashboard: (\S+) user admin password (\S+) \(shown this once\)", said)
        assert url == node.management.dashboard_url
        browser = Browser(url)
        assert (await browser.log_in("admin", password)).data["role"] == "administrator"
        assert (await browser.get("/users")).data == [
            {"username": "admin", "tags": "administrator", "role": "administrator"}
        ]
        await browser.close()


async def test_a_session_is_a_cookie_that_counts_with_the_header_only(dashboard: Dashboard) -> None:
    browser = dashboard.browser()
    assert_refused(await browser.get("/auth"), 401, 104, "log in")
    reply = await browser.log_in()
    assert (reply.data["username"], reply.data["role"]) == ("root", "administrator")
    cookie = reply.headers["Set-Cookie"]
    assert re.fullmatch(r"taipan_session_\d+=[\w-]{43}; HttpOnly; Path=/; SameSite=Strict", cookie)
    assert (await browser.get("/auth")).data == reply.data
    assert (await browser.get("/brokers")).code == 0
    assert_refused(await browser.ask("GET", "/brokers", headers={}), 401, 104, "X-Taipan-Dashboard")


async def test_wrong_ones_are_refused_in_emqx_s_words_and_ask_no_browser_for_a_password(dashboard: Dashboard) -> None:
    browser = dashboard.browser()
    for name, password in (("root", "wrong"), ("nobody", PASSWORD), ("", ""), ("root", ""), ("tester", SECRET)):
        reply = await browser.log_in(name, password)
        assert_refused(reply, 401, 103, "Username/Password error")
        assert "WWW-Authenticate" not in reply.headers and "Set-Cookie" not in reply.headers
    refusals = dashboard.node.server.metrics.refusals.snapshot()
    assert refusals["dashboard_login"] == 5


async def test_basic_of_a_dashboard_user_is_good_at_the_dashboard_and_that_of_an_application_is_not(
    dashboard: Dashboard,
) -> None:
    assert (await dashboard.basic("root").get("/auth")).data["expires_at"] is None
    assert (await dashboard.basic("eve").get("/brokers")).code == 0
    assert_refused(await dashboard.basic("tester", SECRET).get("/brokers"), 401, 103)
    management = ApiClient(dashboard.node.management.url, app=("root", PASSWORD))
    assert_refused(await management.get("/brokers"), 401, 103)
    await management.close()


async def test_a_session_ends_at_its_time(dashboard: Dashboard) -> None:
    browser = await dashboard.logged_in()
    await dashboard.node.pass_time(28_799)
    assert (await browser.get("/brokers")).code == 0
    await dashboard.node.pass_time(2)
    assert_refused(await browser.get("/brokers"), 401, 104, "ended")
    assert len(dashboard.node.management.operations.dashboard_sessions) == 0


async def test_the_log_out_ends_this_session_alone(dashboard: Dashboard) -> None:
    one, other = await dashboard.logged_in(), await dashboard.logged_in()
    assert one._session is not None
    cookies = dict(one._session.cookie_jar.filter_cookies(URL(one.url)).items())
    assert (await one.delete("/auth")).code == 0
    assert_refused(await one.get("/brokers"), 401, 104)
    # Nor does the old token open anything.
    kept = "; ".join(f"{name}={each.value}" for name, each in cookies.items())
    assert_refused(await one.ask("GET", "/brokers", headers={**HEADER, "Cookie": kept}), 401, 104, "ended")
    assert (await other.get("/brokers")).code == 0


CHANGES = {
    "password": ("PUT", "/users/eve", {"password": "another-1"}),
    "role": ("PUT", "/users/eve", {"role": "administrator"}),
    "tags that name a role": ("PUT", "/users/eve", {"tags": "administrator"}),
    "removed": ("DELETE", "/users/eve", None),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_user_s_sessions_end(dashboard: Dashboard, change: str) -> None:
    root, eve = await dashboard.logged_in(), await dashboard.logged_in("eve")
    method, path, body = CHANGES[change]
    assert (await root.ask(method, path, body)).code == 0
    assert_refused(await eve.get("/brokers"), 401, 104, "ended")
    assert (await root.get("/brokers")).code == 0


async def test_other_tags_end_no_session(dashboard: Dashboard) -> None:
    root, eve = await dashboard.logged_in(), await dashboard.logged_in("eve")
    assert (await root.put("/users/eve", {"tags": "night shift"})).code == 0
    assert (await eve.get("/users")).data[2] == {"username": "eve", "tags": "night shift", "role": "viewer"}


async def test_there_are_not_more_sessions_than_the_setting_says() -> None:
    async with managed_node(dashboard={"max_sessions": 3}, access={"hash_cost": 10}) as node:
        await node.management.operations.dashboard_users.add("root", PASSWORD, "administrator")
        await node.management.operations.dashboard_users.add("eve", PASSWORD)
        dashboard = Dashboard(node)
        root = await dashboard.logged_in()
        eves = [await dashboard.logged_in("eve") for _ in range(5)]
        assert len(node.management.operations.dashboard_sessions) == 3
        assert (await root.get("/brokers")).code == 0
        assert [(await eve.get("/brokers")).status for eve in eves] == [401, 401, 401, 200, 200]
        await dashboard.close()


async def test_guesses_are_bounded_and_keep_nobody_out(dashboard: Dashboard, caplog: pytest.LogCaptureFixture) -> None:
    """From one address many at once; root was right from there before."""
    caplog.set_level(logging.WARNING, "taipan.management")
    root = await dashboard.logged_in()
    guessers = [dashboard.basic("root", f"guess{number}") for number in range(200)]
    asked = [asyncio.ensure_future(each.get("/brokers")) for each in guessers]
    replies = [asyncio.ensure_future(dashboard.browser().log_in("eve", "wrong")) for _ in range(5)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert all(each.result().status in (401, 500) for each in done)
    assert (await root.get("/brokers")).code == 0
    for each in (*asked, *replies):
        each.cancel()
    await asyncio.gather(*asked, *replies, return_exceptions=True)
    assert len(dashboard.node.management.operations.dashboard_users._passwords.queue) <= 400
    assert "dashboard_login_refused" in caplog.text


@pytest.mark.parametrize("end", ["log out", "role", "removed"])
async def test_a_live_stream_ends_with_its_session(dashboard: Dashboard, end: str) -> None:
    browser = await dashboard.logged_in("eve")
    assert browser._session is not None
    async with browser._session.get(dashboard.url + "/api/v4/live", params={"every": "10000"}, headers=HEADER) as page:
        assert page.status == 200
        events = Events(page)
        await events.next("hello")
        if end == "log out":
            assert (await browser.delete("/auth")).code == 0
        else:
            root = await dashboard.logged_in()
            change = root.put("/users/eve", {"role": "administrator"}) if end == "role" else root.delete("/users/eve")
            assert (await change).code == 0
        bye = await events.next("bye")
        assert bye["reason"] == ("logged_out" if end == "log out" else "user_changed")
        assert await events.ended()
