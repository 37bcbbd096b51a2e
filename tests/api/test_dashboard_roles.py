"""Roles: what each may is tried at every endpoint."""

import logging
import re
import time
from typing import Any

import msgspec
import pytest

from taipan.management.api import monitoring
from taipan.management.api.index import all_routes
from taipan.management.http.roles import ROLE_OF, role_for
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.live import Events
from tests.support.peer import Peer

from .test_dashboard_login import HEADER, PASSWORD, Dashboard

pytestmark = pytest.mark.asyncio

OWN = {("POST", "/auth"), ("DELETE", "/auth"), ("PUT", "/change_pwd/{name}")}
OPENID = {("GET", f"/auth/openid{path}") for path in ("", "/start", "/callback")}
"""What is no GET, and a viewer may all the same: about the own login."""
OPERATES = {
    ("DELETE", "/clients/{clientid}"),
    ("DELETE", "/nodes/{node}/clients/{clientid}"),
    ("POST", "/banned"),
    ("DELETE", "/banned/{as}/{who}"),
    ("POST", "/alarm_silences"),
    ("DELETE", "/alarm_silences/{id}"),
    ("POST", "/mqtt/publish"),
    ("POST", "/mqtt/publish_batch"),
}
"""What an operator may beside what a viewer may."""
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
    routes = [*all_routes(), *monitoring.root_routes.all]
    every = {(each.method, each.path): each.role for each in routes}
    assert {each for each, role in every.items() if role == ""} == {*OWN, *OPENID, ("GET", "/auth")}
    assert {each for each, role in every.items() if role == "operator"} == OPERATES
    # Whatever else changes something is an administrator's; of what a GET tells, what opens something.
    assert {method for (method, _), role in every.items() if role == "viewer"} == {"GET"}
    assert {path for (method, path), role in every.items() if method == "GET" and role == "administrator"} == SECRETS


async def test_the_table_of_roles_names_endpoints_that_exist() -> None:
    """One that is not in the table would be an administrator's, and so would one whose path has changed."""
    routes = {f"{each.method} {each.path}" for each in [*all_routes(), *monitoring.root_routes.all]}
    assert set(ROLE_OF) <= routes
    assert role_for("GET", "/of/a/later/version") == "administrator"


async def with_users(node: ManagedNode) -> Dashboard:
    users = node.management.operations.dashboard_users
    for name, role in (("root", "administrator"), ("olga", "operator"), ("eve", "viewer")):
        await users.add(name, PASSWORD, "", role)
    return Dashboard(node)


NAMES = {"administrator": "root", "operator": "olga", "viewer": "eve"}
MAY = {
    "administrator": {"", "viewer", "operator", "administrator"},
    "operator": {"", "viewer", "operator"},
    "viewer": {"", "viewer"},
}


@pytest.mark.parametrize("way", ["session", "basic"])
@pytest.mark.parametrize("role", MAY)
async def test_a_role_at_every_endpoint(role: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taipan.management")
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        name = NAMES[role]
        user = await dashboard.logged_in(name) if way == "session" else dashboard.basic(name)
        refused = 0
        for endpoint in all_routes():
            if (endpoint.method, endpoint.path) in OWN or endpoint.path == "/live":
                continue
            reply = await user.ask(endpoint.method, path_of(endpoint.path, node), {} if endpoint.body else None)
            place = (endpoint.method, endpoint.path, reply.text[:200])
            assert (reply.status == 403) is (endpoint.role not in MAY[role]), place
            if reply.status == 403:
                refused += 1
                assert reply.code == 108, place
                wanted = f"{name} has the role {role}; this request requires the role {endpoint.role}"
                assert reply.json["message"] == wanted, place
        assert node.server.metrics.refusals.snapshot().get("dashboard_role", 0) == refused
        assert (refused > 60) is (role != "administrator")
        lines = [each.getMessage() for each in caplog.records if "dashboard_request_refused" in each.getMessage()]
        assert len(lines) == refused
        assert all(f"username={name} role={role} address=127.0.0.1" in line for line in lines)
        await dashboard.close()


@pytest.mark.parametrize("way", ["session", "basic"])
async def test_a_role_of_a_later_version_may_nothing_but_its_own_login(way: str) -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        users = node.management.operations.dashboard_users
        eve = users.get("eve")
        assert eve is not None
        users.put(msgspec.structs.replace(eve, role="auditor"))
        user = await dashboard.logged_in("eve") if way == "session" else dashboard.basic("eve")
        for endpoint in all_routes():
            if (endpoint.method, endpoint.path) in OWN | OPENID or endpoint.path == "/live":
                continue
            reply = await user.ask(endpoint.method, path_of(endpoint.path, node), {} if endpoint.body else None)
            assert (reply.status == 403) is (endpoint.path != "/auth"), (endpoint.method, endpoint.path, reply.text)
        assert (await user.get("/auth")).data["role"] == "auditor"
        change = {"old_pwd": PASSWORD, "new_pwd": "pass-word-9"}
        assert_refused(await user.put("/change_pwd/root", change), 403, 108, "may change only its own password")
        assert (await user.put("/change_pwd/eve", change)).code == 0
        await dashboard.close()


async def test_an_operator_operates() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        olga = await dashboard.logged_in("olga")
        peer = Peer(node.address())
        await peer.connect("noisy")
        assert (await olga.post("/mqtt/publish", {"topic": "t", "payload": "1", "clientid": "olga"})).code == 0
        assert (await olga.delete("/clients/noisy")).code == 0
        assert (await olga.post("/banned", {"as": "clientid", "who": "noisy"})).code == 0
        assert (await olga.delete("/banned/clientid/noisy")).code == 0
        silence = await olga.post("/alarm_silences", {"alarms": "node/*", "until": int(time.time()) + 600})
        assert (await olga.delete(f"/alarm_silences/{silence.data['id']}")).code == 0
        assert_refused(
            await olga.post("/mqtt/subscribe", {"topic": "t", "clientid": "noisy"}), 403, 108, "administrator"
        )
        assert_refused(await olga.put("/users/olga", {"role": "administrator"}), 403, 108, "olga has the role operator")
        await peer.close()
        await dashboard.close()


async def test_another_role_ends_the_login_and_applies_to_the_next() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        root, olga = await dashboard.logged_in(), await dashboard.logged_in("olga")
        assert (await olga.get("/auth")).data["role"] == "operator"
        assert (await root.put("/users/olga", {"role": "viewer"})).code == 0
        assert_refused(await olga.delete("/clients/x"), 401, 104)
        assert (await olga.log_in("olga")).data["role"] == "viewer"
        assert_refused(await olga.delete("/clients/x"), 403, 108, "operator")
        assert (await root.put("/users/olga", {"role": "operator"})).code == 0
        assert [each["role"] for each in (await root.get("/users")).data][-2:] == ["operator", "viewer"]
        # The last administrator stays one.
        users = node.management.operations.dashboard_users
        for each in users.listing():
            if each.role == "administrator" and each.username != "root":
                await users.delete(each.username)
        assert_refused(await root.put("/users/root", {"role": "operator"}), 400, 106)
        await dashboard.close()


@pytest.mark.parametrize(
    ("tags", "role"), [("administrator", "administrator"), ("viewer", "viewer"), ("operator", "viewer"), ("", "viewer")]
)
async def test_tags_give_the_roles_that_they_have_in_emqx(tags: str, role: str) -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        root = await dashboard.logged_in()
        assert (await root.post("/users", {"username": "ida", "password": PASSWORD, "tags": tags})).code == 0
        assert (await root.get("/users")).data[-1] == {"username": "ida", "tags": tags, "role": role}
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
        assert [each["role"] for each in (await root.get("/users")).data][1:] == ["administrator", "operator", "viewer"]
        assert (await dashboard.browser().log_in("eve")).code == 0
        await dashboard.close()
