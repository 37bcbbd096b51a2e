"""Logins at the dashboard: cookie and header, Basic, expiry, log-out, other passwords and roles, guesses, roles."""

import asyncio
import base64
import hashlib
import logging
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from taipan.management.operations.refusal import Refusal
from tests.support.api import SECRET, ApiClient, ManagedNode, Reply, assert_refused, managed_node, segment
from tests.support.certificates import Certificates
from tests.support.cluster_nodes import cluster_nodes
from tests.support.live import Events
from tests.support.patience import patience
from tests.support.waiting import until

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
        assert re.fullmatch(r"[0-9A-Za-z]{43}", password)
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


async def test_users_of_emqx_come_in_by_an_import_and_get_a_hash_of_ours(dashboard: Dashboard) -> None:
    def record(name: str, password: bytes, tags: str = "") -> dict[str, str]:
        stored = b"salt" + hashlib.md5(b"salt" + password).digest()
        return {"username": name, "password": base64.b64encode(stored).decode(), "tags": tags}

    users = [record("ops", b"emqx-pw-1", "administrator"), record("ann", b"emqx-pw-2", "night shift")]
    users.append(record("admin2", b"public", "administrator"))
    api = dashboard.node.api
    told = (await api.post("/data/import", {"version": "4.4", "users": users}, dry_run="true")).data
    assert [(each["key"], each["action"]) for each in told["records"]] == [
        ("ops", "create"), ("ann", "create"), ("admin2", "same")
    ]  # fmt: skip
    answer = (await api.post("/data/import", {"version": "4.4", "users": users})).data
    assert [each["id"] for each in answer["left_out"]] == ["admin2"]
    operations = dashboard.node.management.operations.dashboard_users
    assert operations.get("admin2") is None
    browser = dashboard.browser()
    assert (await browser.log_in("ops", "emqx-pw-1")).data["role"] == "administrator"
    assert (await browser.log_in("ann", "emqx-pw-2")).data["role"] == "viewer"

    def renewed() -> bool:
        row = operations.get("ann")
        return row is not None and row.password.startswith("scrypt$")

    await until(renewed)
    assert (await browser.get("/auth")).data["username"] == "ann"  # the session has stayed
    assert (await browser.log_in("ann", "emqx-pw-2")).code == 0
    # An export holds them all, and another node takes them.
    name = (await api.post("/data/export")).data["filename"]
    file = (await api.get(f"/data/file/{name}")).json
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as other:
        assert (await other.api.post("/data/import", file)).code == 0
        there = Dashboard(other)
        for who, password in (("ops", "emqx-pw-1"), ("ann", "emqx-pw-2"), ("root", PASSWORD)):
            assert (await there.browser().log_in(who, password)).code == 0
        assert [each["role"] for each in (await other.api.get("/users")).data if each["username"] == "ann"] == [
            "viewer"
        ]
        await there.close()


async def test_an_import_ends_sessions_and_leaves_an_administrator(dashboard: Dashboard) -> None:
    root, eve = await dashboard.logged_in(), await dashboard.logged_in("eve")
    api = dashboard.node.api
    users = (await api.get("/users")).data
    file = (await api.get(f"/data/file/{(await api.post('/data/export')).data['filename']}")).json
    assert (await api.post("/data/import", file)).code == 0
    assert (await eve.get("/brokers")).code == 0  # nothing is other
    changed = [{**each, "role": "administrator"} for each in file["users"]]
    assert (await api.post("/data/import", {**file, "users": changed})).code == 0
    assert_refused(await eve.get("/brokers"), 401, 104, "ended")
    assert (await root.get("/brokers")).code == 0
    nobody = [{**each, "role": "viewer"} for each in file["users"]]
    assert_refused(await api.post("/data/import", {**file, "users": nobody}), 400, 108, "administrator")
    assert len((await api.get("/users")).data) == len(users)


def of_emqx(name: str, password: bytes, tags: Any = "administrator") -> dict[str, Any]:
    stored = b"salt" + hashlib.md5(b"salt" + password).digest()
    return {"username": name, "password": base64.b64encode(stored).decode(), "tags": tags}


@pytest.mark.parametrize("how", ["session", "password"])
async def test_the_login_that_runs_an_import_stays_unless_it_is_asked_for(dashboard: Dashboard, how: str) -> None:
    root, eve = await dashboard.logged_in(), await dashboard.logged_in("eve")
    if how == "password":
        root = dashboard.browser()
        root.app = ("root", PASSWORD)
    file = {"version": "4.4", "users": [of_emqx("root", b"of-the-file-1"), of_emqx("eve", b"of-the-file-2", "viewer")]}
    told = (await root.post("/data/import", file, dry_run="true")).data
    (left,) = told["left_out"]
    assert (left["section"], left["id"], left["reason"]) == ("users", "root", "own_login")
    assert told["replaced_users"] == ["eve"] and {each["key"]: each["action"] for each in told["records"]} == {
        "eve": "change", "root": "same"
    }  # fmt: skip
    answer = (await root.post("/data/import", file)).data
    assert (answer["left_out"], answer["replaced_users"]) == ([left], ["eve"])
    assert (await root.get("/brokers")).code == 0
    assert_refused(await eve.get("/brokers"), 401, 104, "ended")
    assert (await dashboard.browser().log_in("root", PASSWORD)).code == 0
    # Asked for, it is replaced, and the answer says whose login that was.
    told = (await root.post("/data/import", file, dry_run="true", replace_own_login="true")).data
    assert "root" in told["replaced_users"] and "left_out" not in told
    assert (await root.post("/data/import", {**file, "replace_own_login": True})).data["replaced_users"][0] == "root"
    assert (await root.get("/brokers")).status == 401
    assert (await dashboard.browser().log_in("root", "of-the-file-1")).code == 0


@pytest.mark.parametrize(
    ("tags", "role", "text"),
    [
        ({"role": "administrator", "desc": "night shift"}, "administrator", "night shift"),
        ({"role": "viewer", "desc": "administrator"}, "viewer", "administrator"),
        ({"role": "operator", "desc": ""}, "viewer", ""),
        ({"desc": "d"}, "viewer", "d"),
        ({}, "viewer", ""),
    ],
)
async def test_role_and_description_of_emqx_enterprise_come_over(
    dashboard: Dashboard, tags: dict[str, str], role: str, text: str
) -> None:
    api = dashboard.node.api
    assert (await api.post("/data/import", {"version": "4.4", "users": [of_emqx("ops", b"emqx-pw-1", tags)]})).code == 0
    (found,) = [each for each in (await api.get("/users")).data if each["username"] == "ops"]
    assert (found["role"], found["tags"]) == (role, text)
    assert (await dashboard.browser().log_in("ops", "emqx-pw-1")).data["role"] == role


async def test_wrong_tags_are_named(dashboard: Dashboard) -> None:
    for tags, key in ((["a"], "tags"), ({"role": 1}, "tags.role"), ({"desc": []}, "tags.desc")):
        file = {"version": "4.4", "users": [of_emqx("ops", b"emqx-pw-1", tags)]}
        reply = await dashboard.node.api.post("/data/import", file)
        assert_refused(reply, 400, 108, f"users[0].{key}")


BAD_USERS: list[dict[str, Any]] = [
    *({"username": name, "password": PASSWORD} for name in ("", "a:b", "a\n", "x" * 257, 1)),
    *({"username": "a", "password": each} for each in ("short1", "onlyletters", "pässword1", "x1" * 33, "x" * 64)),
    {"username": "a", "password": PASSWORD, "role": "god"}, {"username": "a"}, {},
    {"username": "a", "password": PASSWORD, "tags": []},
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_USERS, ids=str)
async def test_users_that_cannot_be_are_refused(dashboard: Dashboard, body: dict[str, Any]) -> None:
    reply = await (await dashboard.logged_in()).post("/users", body)
    assert reply.status == 400 and reply.code in (107, 108), reply.text
    assert len((await dashboard.node.api.get("/users")).data) == 3


async def test_a_user_s_life_as_emqx_s_dashboard_leads_it(dashboard: Dashboard) -> None:
    basic = dashboard.basic("root")
    new = {"username": 'o"ps <i>é‮', "password": "pass-word-2", "tags": "administrator"}
    assert_refused(await basic.post("/users", new), 400, 108)  # a control character that turns the text around
    new["username"] = 'o"ps <i>é'
    assert (await basic.post("/users", new)).json == {"code": 0}
    assert_refused(await basic.post("/users", new), 400, 113, "Username Already Exist")
    path = segment(new["username"])
    assert (await basic.put(f"/users/{path}", {"tags": "", "role": "", "password": ""})).code == 0
    listed = {each["username"]: each for each in (await basic.get("/users")).data}
    assert listed[new["username"]] == {"username": new["username"], "tags": "", "role": "administrator"}
    change = {"old_pwd": "wrong", "new_pwd": "pass-word-3"}
    assert_refused(await basic.put(f"/change_pwd/{path}", change), 400, 114)
    assert (await basic.put(f"/change_pwd/{path}", {**change, "old_pwd": "pass-word-2"})).code == 0
    assert (await dashboard.browser().log_in(new["username"], "pass-word-3")).code == 0
    assert (await basic.delete(f"/users/{path}")).code == 0
    assert_refused(await basic.delete(f"/users/{path}"), 404, 105, "Username Not Found")
    assert_refused(await basic.put("/users/nobody", {"tags": "x"}), 404, 105)
    assert_refused(await basic.put("/change_pwd/nobody", change), 404, 105)


async def test_the_last_administrator_stays_one(dashboard: Dashboard) -> None:
    root = await dashboard.logged_in()
    assert (await root.delete("/users/admin")).code == 0
    assert_refused(await root.delete("/users/root"), 400, 106, "last administrator")
    assert_refused(await root.put("/users/root", {"role": "viewer"}), 400, 106)
    assert_refused(await root.put("/users/root", {"tags": "viewer"}), 400, 106)
    assert (await root.put("/users/eve", {"role": "administrator"})).code == 0
    assert (await root.put("/users/root", {"role": "viewer"})).code == 0


async def test_ten_thousand_guesses_are_bounded_and_the_right_one_comes_in_from_elsewhere() -> None:
    """Straight into the check, as if from many connections."""
    access = {"hash_cost": 12, "hash_wait": 5.0, "guess_delay": 0.5}
    async with managed_node(dashboard={}, access=access) as node:
        users = node.management.operations.dashboard_users
        await users.add("root", PASSWORD, "administrator")
        queue = users._passwords.queue
        asked = []
        for number in range(10_000):
            address = f"10.0.0.{number % 8}"
            asked.append(asyncio.ensure_future(users.log_in("root", f"guess{number}", address)))
            if number % 100 == 0:
                await asyncio.sleep(0)
                assert len(queue) <= 1000
        right = await asyncio.wait_for(users.log_in("root", PASSWORD, "192.0.2.1"), patience(40))
        assert right.name == "root"
        for each in asked:
            each.cancel()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, (Refusal, asyncio.CancelledError)) for each in outcomes)
        refusals = node.server.metrics.refusals.snapshot()
        assert refusals["dashboard_login_busy"] > 5000, refusals


async def test_under_the_management_port_both_kinds_of_credentials_are_good() -> None:
    async with managed_node(dashboard={"enabled": False, "on_management": True}, access={"hash_cost": 10}) as node:
        await node.management.operations.dashboard_users.add("eve", PASSWORD)
        assert node.management.dashboard_url == node.management.url + "/dashboard"
        browser = Browser(node.management.url)
        assert_refused(await browser.get("/brokers"), 401, 104)
        assert (await browser.log_in("eve")).data["role"] == "viewer"
        assert (await browser.get("/brokers")).code == 0
        assert_refused(await browser.post("/banned", {"as": "clientid", "who": "x"}), 403, 108)
        assert (await node.api.get("/brokers")).code == 0
        basic = ApiClient(node.management.url, app=("eve", PASSWORD))
        assert_refused(await basic.get("/brokers"), 401, 103)
        await basic.close()
        await browser.close()


async def test_a_page_of_another_site_logs_nobody_in(dashboard: Dashboard) -> None:
    browser = dashboard.browser()
    body = {"username": "root", "password": PASSWORD}
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
    ):
        assert_refused(await browser.ask("POST", "/auth", body, headers={**HEADER, **headers}), 400, 108)
    assert (await browser.ask("POST", "/auth", body, headers={"Sec-Fetch-Site": "same-origin"})).code == 0


async def test_over_tls_the_cookie_is_for_tls_alone(certificates: Certificates) -> None:
    tls = {
        "certfile": str(certificates.directory / "localhost.pem"),
        "keyfile": str(certificates.directory / "localhost.key"),
    }
    async with managed_node(dashboard={"tls": tls}, access={"hash_cost": 10}) as node:
        await node.management.operations.dashboard_users.add("root", PASSWORD, "administrator")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        url = node.management.dashboard_url.replace("127.0.0.1", "localhost") + "/api/v4/auth"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json={"username": "root", "password": PASSWORD}, ssl=context) as reply,
        ):
            assert reply.status == 200 and "; Secure" in reply.headers["Set-Cookie"]
        rows = (await node.api.get("/listeners")).data[0]["listeners"]
        assert "https:dashboard" in [each["protocol"] for each in rows]


async def test_users_are_the_same_on_all_nodes_and_sessions_are_not(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, managed=True) as cluster:
        one, two = (cluster.managed_node(number).management.operations for number in (0, 1))
        await one.dashboard_users.add("root", PASSWORD, "administrator")
        await until(lambda: two.dashboard_users.get("root") is not None)
        user = await two.dashboard_users.log_in("root", PASSWORD, "192.0.2.1")
        session = two.dashboard_sessions.begin(user, "192.0.2.1")
        assert one.dashboard_sessions.find(session.token, "192.0.2.1") is None and session.ended() == ""
        await one.dashboard_users.update("root", password="pass-word-2")
        await until(lambda: session.ended() == "user_changed")
        assert two.dashboard_sessions.find(session.token, "192.0.2.1") is None


async def test_a_session_does_not_survive_a_restart_and_users_do(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(dashboard={}, **config) as node:
        await node.management.operations.dashboard_users.add("root", PASSWORD, "administrator")
        dashboard = Dashboard(node)
        browser = await dashboard.logged_in()
        assert browser._session is not None
        jar = {name: each.value for name, each in browser._session.cookie_jar.filter_cookies(URL(browser.url)).items()}
        await dashboard.close()
    async with managed_node(dashboard={}, **config) as node:
        dashboard = Dashboard(node)
        port = URL(node.management.dashboard_url).port
        cookie = f"taipan_session_{port}=" + "".join(jar.values())
        again = dashboard.browser()
        assert_refused(await again.ask("GET", "/auth", headers={**HEADER, "Cookie": cookie}), 401, 104, "ended")
        assert (await again.log_in()).code == 0
        await dashboard.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_without_a_login_is_bounded_by_a_few_kib(dashboard: Dashboard, chunked: bool) -> None:
    """8 MB of each were read, and 250 halves of them took the memory of queues."""
    host, port = dashboard.node.management.dashboard_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 4000000"
    head = f"POST /api/v4/auth HTTP/1.1\r\nHost: taipan\r\nX-Taipan-Dashboard: 1\r\n{length}\r\n\r\n"
    writer.write(head.encode() + (b"2328\r\n" if chunked else b"") + b" " * 9000 + b"\r\n")
    async with asyncio.timeout(patience(40)):
        answer = await reader.readuntil(b"}")
    assert b"the body is longer than 8192 bytes" in answer
    writer.close()
    assert dashboard.node.server.before_login.bytes < 20_000
    assert (await dashboard.browser().log_in()).code == 0
