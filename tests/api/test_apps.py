"""/apps: applications, whose secrets are shown once."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import APP_ID, SECRET, ApiClient, ManagedNode, assert_refused, managed_node

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
        assert listed[1] == record
        assert (await node.api.get("/apps/app2")).data == {**record, "secret": "******"}
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
