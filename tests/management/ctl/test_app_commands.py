"""mgmt."""

import re

import pytest

from tests.support.api import APP_ID, ApiClient, managed_node
from tests.support.ctl import ctl, ctl_json, done, refused

pytestmark = pytest.mark.asyncio


async def test_mgmt() -> None:
    async with managed_node() as node:
        (line,) = await done(node, "mgmt", "insert", "exporter", "An exporter")
        assert re.fullmatch(r"AppSecret: [0-9A-Za-z]{43}", line)
        api = ApiClient(node.management.url, app=("exporter", line.removeprefix("AppSecret: ")))
        assert (await api.get("/brokers")).code == 0
        shown = "app_id: exporter, secret: ******, name: An exporter, desc: , status: true, expired: -, scopes: all"
        assert await done(node, "mgmt", "lookup", "exporter") == [shown]
        assert (await done(node, "mgmt", "list"))[1:] == [shown]
        assert [row["app_id"] for row in await ctl_json(node, "mgmt", "list")] == [APP_ID, "exporter"]
        assert await refused(node, "mgmt", "insert", "exporter", "x") == "application exporter: exists already"
        assert await done(node, "mgmt", "update", "exporter", "false") == ["update successfully."]
        assert (await api.get("/brokers")).status == 401
        assert await done(node, "mgmt", "delete", "exporter") == ["ok"]
        for words in (("lookup", "exporter"), ("delete", "exporter"), ("update", "exporter", "true")):
            assert await refused(node, "mgmt", *words) == f"application {words[1]}: not found"
        assert (await ctl(node, "mgmt", "update", "exporter", "maybe")).status == 1
        configured = await ctl(node, "mgmt", "delete", APP_ID)
        assert configured.status == 1 and "[[management.apps]]" in configured.out
        assert set(await ctl_json(node, "mgmt", "insert", "another", "x")) == {"secret"}
        await api.close()


async def test_scopes() -> None:
    async with managed_node() as node:
        (line,) = await done(node, "mgmt", "insert", "reader", "Monitoring", "--scopes", "read")
        api = ApiClient(node.management.url, app=("reader", line.removeprefix("AppSecret: ")))
        assert (await api.get("/brokers")).code == 0
        assert (await api.post("/banned", {"who": "x", "as": "clientid"})).status == 403
        assert await done(node, "mgmt", "scopes", "reader", "read,publish") == ["ok"]
        assert (await node.api.get("/apps/reader")).data["scopes"] == ["read", "publish"]
        assert (await done(node, "mgmt", "lookup", "reader"))[0].endswith("scopes: read,publish")
        for text in ("", "write", "read,", "all,,"):
            assert (await ctl(node, "mgmt", "scopes", "reader", text)).status == 1
        assert (await node.api.get("/apps/reader")).data["scopes"] == ["read", "publish"]
        assert await done(node, "mgmt", "scopes", "reader", "all") == ["ok"]
        assert (await api.post("/banned", {"who": "x", "as": "clientid"})).code == 0
        assert await refused(node, "mgmt", "scopes", "nobody", "read") == "application nobody: not found"
        await api.close()
