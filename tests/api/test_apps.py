"""/apps: applications, whose secrets are shown once."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from taipan.management.api.index import all_routes
from taipan.management.http.app import SAY_EVERY
from tests.support.api import APP_ID, SECRET, ApiClient, ManagedNode, assert_refused, managed_node
from tests.support.live import live

pytestmark = pytest.mark.asyncio

APP = {"app_id": "app2", "name": "n2", "secret": "s2", "desc": "d", "status": True}


async def lets_in(node: ManagedNode, app_id: str, secret: str) -> bool:
    client = ApiClient(node.management.url, app=(app_id, secret))
    status = (await client.get("/brokers")).status
    await client.close()
    return status == 200


async def test_add_and_list() -> None:
    async with managed_node() as node:
        assert (await node.api.post("/apps", APP)).data == {"secret": "s2"}
        assert await lets_in(node, "app2", "s2")
        listed = (await node.api.get("/apps")).data
        assert [each["app_id"] for each in listed] == [APP_ID, "app2"]
        record = {"app_id": "app2", "name": "n2", "desc": "d", "status": True, "expired": "undefined"}
        used = {"scopes": ["all"], "last_used_at": listed[1]["last_used_at"], "last_used_from": "127.0.0.1"}
        assert listed[1] == {**record, **used} and used["last_used_at"] > 1_600_000_000_000
        assert (await node.api.get("/apps/app2")).data == {**record, **used, "secret": "******"}
        assert (await node.api.get(f"/apps/{APP_ID}")).data["secret"] == "******"
        assert (await node.api.get("/apps/nobody")).data == {}
        assert_refused(await node.api.post("/apps", APP), 400, 113, "app2")
        assert_refused(await node.api.post("/apps", {**APP, "app_id": APP_ID}), 400, 113)


async def test_a_secret_is_made_where_none_is_given() -> None:
    async with managed_node() as node:
        secrets = [(await node.api.post("/apps", {"app_id": name, "name": name})).data["secret"] for name in ("a", "b")]
        assert len(set(secrets)) == 2 and all(len(each) >= 43 for each in secrets)
        assert await lets_in(node, "a", secrets[0]) and not await lets_in(node, "a", secrets[1])


@pytest.mark.parametrize("secret", ["public", "emqxsecret"])
async def test_a_secret_that_everybody_knows_is_refused(secret: str) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/apps", {**APP, "secret": secret}), 400, 108, "published default")
        assert not await lets_in(node, "app2", secret)
        assert (await node.api.get("/apps/app2")).data == {}


async def test_update() -> None:
    async with managed_node() as node:
        await node.api.post("/apps", APP)
        assert (await node.api.put("/apps/app2", {"name": "other", "status": False})).json == {"code": 0}
        record = (await node.api.get("/apps/app2")).data
        assert (record["name"], record["desc"], record["status"]) == ("other", "d", False)
        assert not await lets_in(node, "app2", "s2")
        end = int(node.clock.now()) + 100
        await node.api.put("/apps/app2", {"status": True, "expired": end})
        assert (await node.api.get("/apps/app2")).data["expired"] == end
        assert await lets_in(node, "app2", "s2")
        node.clock.shift += 200
        assert not await lets_in(node, "app2", "s2")
        await node.api.put("/apps/app2", {"expired": "undefined"})
        assert await lets_in(node, "app2", "s2")
        assert_refused(await node.api.put("/apps/nobody", {"name": "x"}), 404, 102)


async def test_delete() -> None:
    async with managed_node() as node:
        await node.api.post("/apps", APP)
        for _ in range(2):
            assert (await node.api.delete("/apps/app2")).json == {"code": 0}
        assert not await lets_in(node, "app2", "s2")


@pytest.mark.parametrize("method, body", [("PUT", {"name": "x"}), ("DELETE", None)])
async def test_those_of_the_configuration_stay(method: str, body: Any) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.ask(method, f"/apps/{APP_ID}", body), 400, 108, "management.apps")
        assert await lets_in(node, APP_ID, SECRET)


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"app_id": None}, 108),
        ({"app_id": "_a"}, 108),
        ({"app_id": "a b"}, 108),
        ({"app_id": "a" * 257}, 108),
        ({"secret": 5}, 108),
        ({"status": "on"}, 108),
        ({"expired": "never"}, 108),
        ({"expired": -1}, 108),
        ({"name": 1}, 108),
    ],
)
async def test_bad_applications(changes: dict[str, Any], code: int) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/apps", {**APP, **changes}), 400, code)
        assert len((await node.api.get("/apps")).data) == 1


@pytest.mark.parametrize("missing", ["app_id", "name"])
async def test_missing_keys(missing: str) -> None:
    async with managed_node() as node:
        given = {key: value for key, value in APP.items() if key != missing}
        assert_refused(await node.api.post("/apps", given), 400, 107, missing)


async def test_applications_outlive_the_node(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        await node.api.post("/apps", APP)
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"app2" in stored and b"s2" not in stored.replace(b"s2.", b"")
    async with managed_node(**config) as node:
        assert await lets_in(node, "app2", "s2")


async def test_a_published_default_secret_in_the_configuration_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """It stays valid: the node starts, and says which setting it is."""
    apps = [{"id": "one", "secret": "long and random"}, {"id": "admin", "secret": "public"}]
    async with managed_node({"apps": apps}) as node:
        admin = ApiClient(node.management.url, app=("admin", "public"))
        assert (await admin.get("/brokers")).status == 200
        await admin.close()
    assert "default_secret app_id=admin setting=management.apps.1.secret" in caplog.text
    assert "app_id=one" not in caplog.text


# -------------------------------------------------------------------- scopes

LONG = "a long secret"
PUBLISH = {("POST", "/mqtt/publish"), ("POST", "/mqtt/publish_batch")}


async def with_scopes(node: ManagedNode, *scopes: str) -> ApiClient:
    name = "-".join(scopes)
    body = {"app_id": name, "name": name, "secret": LONG, "scopes": scopes}
    assert (await node.api.post("/apps", body)).code == 0
    return ApiClient(node.management.url, app=(name, LONG))


@pytest.mark.parametrize("scopes", [("read",), ("publish",), ("read", "publish"), ("all",), ("read", "all")])
async def test_scopes_at_every_endpoint(scopes: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taipan.management")
    async with managed_node(dashboard={"on_management": True}) as node:
        client = await with_scopes(node, *scopes)
        refused = 0
        for endpoint in all_routes():
            if endpoint.path == "/live" or (endpoint.path.startswith("/apps") and endpoint.method != "GET"):
                continue  # a stream; and x1 could be this application
            path = re.sub(r"\{(\w+)\}", lambda found: node.name if found[1] == "node" else "x1", endpoint.path)
            reply = await client.ask(endpoint.method, path, {} if endpoint.body else None)
            reads = (endpoint.method == "GET" and endpoint.role in ("", "viewer")) or endpoint.path == "/access/explain"
            place = (endpoint.method, endpoint.path)
            may = (
                "all" in scopes
                or ("read" in scopes and reads)
                or ("publish" in scopes and place in PUBLISH)
                or place == ("POST", "/auth")
                or endpoint.path.startswith("/auth/openid")  # public, as /auth is
            )
            assert (reply.status != 403) is may, (*place, reply.text[:200])
            if reply.status == 403:
                refused += 1
                assert reply.code == 108 and f"has the scope {','.join(sorted(scopes))}" in reply.json["message"]
        assert node.server.metrics.refusals.snapshot().get("api_scope", 0) == refused
        assert refused == 0 if "all" in scopes else refused > 60
        lines = [each.getMessage() for each in caplog.records if "api_request_refused" in each.getMessage()]
        assert len(lines) == refused
        await client.close()


async def test_refusals_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taipan.management")
    async with managed_node() as node:
        client = await with_scopes(node, "read")
        for lines in (1, 2):
            for number in range(20):
                assert_refused(await client.delete(f"/clients/c{number}"), 403, 108, "requires all")
            assert sum("api_request_refused" in each.getMessage() for each in caplog.records) == lines
            await node.pass_time(SAY_EVERY)
        assert node.server.metrics.refusals.snapshot()["api_scope"] == 40
        await client.close()


async def test_applications_are_for_those_who_may_do_all() -> None:
    async with managed_node() as node:
        client = await with_scopes(node, "read", "publish")
        for method, path, body in (
            ("POST", "/apps", APP),
            ("PUT", "/apps/read-publish", {"scopes": ["all"]}),
            ("DELETE", f"/apps/{APP_ID}", None),
        ):
            assert_refused(await client.ask(method, path, body), 403, 108, "requires all")
        await client.close()


async def test_prometheus_needs_to_read() -> None:
    async with managed_node() as node:
        for scope, status in (("read", 200), ("publish", 403)):
            client = await with_scopes(node, scope)
            client.prefix = ""
            assert (await client.get("/metrics")).status == status
            await client.close()


async def test_other_scopes_apply_at_once_and_end_streams() -> None:
    async with managed_node() as node:
        client = await with_scopes(node, "read")
        async with live(node, ("read", LONG), figures=1) as events:
            assert (await node.api.put("/apps/read", {"scopes": ["publish"]})).code == 0
            assert_refused(await client.get("/clients"), 403, 108, "requires read")
            assert (await client.post("/mqtt/publish", {"topic": "t", "payload": "x", "clientid": "c"})).code == 0
            await node.pass_time(2)
            async with asyncio.timeout(40):
                await events.response.content.read()
        await client.close()


async def test_scopes_of_the_configuration() -> None:
    apps = [{"id": APP_ID, "secret": SECRET}, {"id": "reader", "secret": LONG, "scopes": ["read"]}]
    async with managed_node({"apps": apps}) as node:
        reader = ApiClient(node.management.url, app=("reader", LONG))
        assert (await reader.get("/clients")).status == 200
        assert_refused(await reader.delete("/clients/c"), 403, 108, "requires all")
        assert (await reader.get("/apps/reader")).data["scopes"] == ["read"]
        await reader.close()


@pytest.mark.parametrize("scopes", [[], ["write"], "read", ["read", "read", "all", "all"], [1]])
async def test_scopes_that_are_none(scopes: Any) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/apps", {**APP, "scopes": scopes}), 400, 108, "scopes")


async def test_an_export_keeps_scopes() -> None:
    async with managed_node() as node, managed_node() as other:
        await (await with_scopes(node, "read")).close()
        name = (await node.api.post("/data/export")).data["filename"]
        document = (await node.api.get(f"/data/file/{name}")).json
        (app,) = document["apps"]
        assert app["scopes"] == ["read"]
        plain = {key: value for key, value in app.items() if key != "scopes"}
        for given, status, expected in (
            ({**app, "scopes": ["write"]}, 400, None),
            (app, 200, ["read"]),
            (plain, 200, ["read"]),  # as EMQX or an earlier version writes it: it must not extend rights
        ):
            reply = await other.api.post("/data/import", {**document, "apps": [given]})
            assert reply.status == status, reply.text
            assert (await other.api.get("/apps/read")).data.get("scopes") == expected
        new = {**document, "apps": [{**plain, "id": "new"}]}
        assert (await other.api.post("/data/import", new)).status == 200
        assert (await other.api.get("/apps/new")).data["scopes"] == ["all"]


async def test_the_last_use_survives_a_restart(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        client = await with_scopes(node, "read")
        assert (await node.api.get("/apps/read")).data["last_used_at"] is None
        await client.get("/brokers")
        first = (await node.api.get("/apps/read")).data["last_used_at"]
        await node.pass_time(30)
        assert (await node.api.get("/apps/read")).data["last_used_at"] == first
        await node.pass_time(61)
        await client.get("/brokers")
        last = (await node.api.get("/apps/read")).data["last_used_at"]
        assert last >= first + 90_000
        wrong_secret = ApiClient(node.management.url, app=("read", "wrong"))
        await node.pass_time(61)
        await wrong_secret.get("/brokers")
        assert (await node.api.get("/apps/read")).data["last_used_at"] == last
        await wrong_secret.close()
        await client.close()
    async with managed_node(**config) as node:
        assert (await node.api.get("/apps/read")).data["last_used_at"] == last
        assert (await node.api.delete("/apps/read")).code == 0
        assert node.management.operations.apps.uses_here().keys() == {APP_ID}
