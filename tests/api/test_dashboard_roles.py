"""Roles: what a viewer may is looked up in the table of routes itself, endpoint by endpoint."""

import logging
import re
from typing import Any

import pytest

from taipan.management.api.index import all_routes
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.live import Events

from .test_dashboard_login import HEADER, PASSWORD, Dashboard

pytestmark = pytest.mark.asyncio

OWN = {("POST", "/auth"), ("DELETE", "/auth"), ("PUT", "/change_pwd/{name}")}
"""What is no GET, and a viewer may all the same: about the own login."""
LOOKS = {("POST", "/access/explain")}
SECRETS = {
    "/data/file/{filename}",
    "/auth_user",
    "/auth_user/{login}",
    "/auth_user_requests/{key}",
    "/audit",
    "/nodes/{node}/log",
}
"""What a GET tells of these opens something, or helps to guess what does; who changed what is not for viewers."""


def path_of(path: str, node: ManagedNode) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: node.name if found[1] == "node" else "x1", path)


async def test_who_may_is_as_listed_here() -> None:
    changes = {(each.method, each.path) for each in all_routes() if each.viewers and each.method != "GET"}
    assert changes - LOOKS == OWN
    assert {each.path for each in all_routes() if each.method == "GET" and not each.viewers} == SECRETS


async def with_users(node: ManagedNode) -> Dashboard:
    for name, role in (("root", "administrator"), ("eve", "viewer")):
        await node.management.operations.dashboard_users.add(name, PASSWORD, "", role)
    return Dashboard(node)


@pytest.mark.parametrize("way", ["session", "basic"])
async def test_a_viewer_at_every_endpoint(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taipan.management")
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        eve = await dashboard.logged_in("eve") if way == "session" else dashboard.basic("eve")
        refused = 0
        for endpoint in all_routes():
            if (endpoint.method, endpoint.path) in OWN or endpoint.path == "/live":
                continue
            reply = await eve.ask(endpoint.method, path_of(endpoint.path, node), {} if endpoint.body else None)
            place = (endpoint.method, endpoint.path, reply.text[:200])
            assert (reply.status == 403) is not endpoint.viewers, place
            if reply.status == 403:
                refused += 1
                assert reply.code == 108 and "eve is a viewer" in reply.json["message"], place
        assert node.server.metrics.refusals.snapshot()["dashboard_role"] == refused > 60
        lines = [each.getMessage() for each in caplog.records if "dashboard_request_refused" in each.getMessage()]
        assert len(lines) == refused and "username=eve role=viewer address=127.0.0.1" in lines[0]
        await dashboard.close()


async def test_an_administrator_is_refused_nowhere_for_the_role() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        root = dashboard.basic("root")
        for endpoint in all_routes():
            if endpoint.path != "/live" and (endpoint.method, endpoint.path) not in OWN:
                reply = await root.ask(endpoint.method, path_of(endpoint.path, node), {} if endpoint.body else None)
                assert reply.status != 403, endpoint.path
        await dashboard.close()


async def test_a_viewer_changes_its_own_password_and_nobody_else_s() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        eve = await dashboard.logged_in("eve")
        change = {"old_pwd": PASSWORD, "new_pwd": "pass-word-9"}
        assert_refused(await eve.put("/change_pwd/root", change), 403, 108, "may change only its own password")
        assert (await eve.put("/change_pwd/eve", change)).code == 0
        assert_refused(await eve.get("/brokers"), 401, 104)
        assert (await eve.log_in("eve", "pass-word-9")).code == 0
        assert (await eve.delete("/auth")).code == 0
        await dashboard.close()


async def test_a_viewer_looks_live() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        eve = await dashboard.logged_in("eve")
        assert eve._session is not None
        async with eve._session.get(dashboard.url + "/api/v4/live", headers=HEADER) as page:
            assert page.status == 200 and (await Events(page).next("hello"))["node"] == node.name
        await dashboard.close()


async def test_no_secret_of_an_application_reaches_the_browser() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        for name in ("root", "eve"):
            browser = await dashboard.logged_in(name)
            for path in ("/apps", "/apps/tester"):
                assert "a secret" not in (await browser.get(path)).text
            assert (await browser.get("/apps/tester")).data["secret"] == "******"
        await dashboard.close()


async def test_changes_of_a_dashboard_user_are_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taipan.management")
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        root = await dashboard.logged_in()
        assert (await root.post("/banned", {"as": "clientid", "who": "x"})).code == 0
        assert (await root.delete("/auth")).code == 0
        said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("dashboard_")]
        wanted = [
            "dashboard_login username=root role=administrator address=127.0.0.1",
            "dashboard_change username=root address=127.0.0.1 method=POST path=/api/v4/banned status=200",
            "dashboard_session_ended username=root address=127.0.0.1 reason=logged_out",
        ]
        assert [each for each in said if each in wanted] == wanted
        figures = (await node.api.get("/emqx_prometheus", type="prometheus")).text
        for line in ("sessions 0", "logins_total 1", "changes_total 1"):
            assert f"taipan_dashboard_{line}\n" in figures
        await dashboard.close()


FORMS: list[Any] = [
    "",
    [],
    {},
    None,
    0,
    "x",
    [[]],
    {"username": [], "password": {}},
    {"username": None, "password": None},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_forms_that_are_none(form: Any) -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        root = await dashboard.logged_in()
        for method, path in (("POST", "/auth"), ("POST", "/users"), ("PUT", "/change_pwd/eve")):
            reply = await root.ask(method, path, form)
            assert reply.status == 400 and reply.code in (107, 108), (path, reply.text)
        reply = await root.put("/users/eve", form)
        assert reply.status in (200, 400)
        assert [each["role"] for each in (await root.get("/users")).data][1:] == ["administrator", "viewer"]
        assert (await dashboard.browser().log_in("eve")).code == 0
        await dashboard.close()
