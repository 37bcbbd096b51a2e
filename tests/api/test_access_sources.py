"""/access/sources, its command and the alarm: whether the sources that decide about access can be reached."""

import asyncio
from typing import Any

import pytest

from tests.support.api import ManagedNode, connect_code, managed_node
from tests.support.auth_service import auth_service
from tests.support.ctl import ctl_json, done
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


async def sources(node: ManagedNode) -> dict[str, Any]:
    for _ in range(5):  # the status may change between the two answers
        [of_node] = (await node.api.get("/access/sources")).data
        assert of_node["node"] == node.server.settings.node.name
        same = (await node.api.get(f"/nodes/{of_node['node']}/access/sources")).data
        if of_node["sources"] == same:
            break
    assert of_node["sources"] == same
    return {each["source"]: each for each in of_node["sources"]}


async def test_the_sources_that_are_set_up() -> None:
    async with managed_node(access={"authorizers": ["configuration"]}) as node:
        told = await sources(node)
        assert told == {
            "configuration": {"source": "configuration", "authenticates": 1, "authorizes": 1, "remote": None},
            "stored": {"source": "stored", "authenticates": 2, "authorizes": None, "remote": None},
        }
        assert await done(node, "access-sources", "list") == [
            "AccessSource(configuration, authenticates=1, authorizes=1)",
            "AccessSource(stored, authenticates=2, authorizes=-)",
        ]


async def test_a_service_that_goes_away_and_comes_back() -> None:
    async with auth_service() as service, managed_node(access={"http": service.settings()}) as node:

        async def until(status: str) -> Any:
            async with asyncio.timeout(patience(40)):
                while (told := (await sources(node))["http"]["remote"])["status"] != status:
                    await asyncio.sleep(0.02)
            return told

        told = await until("connected")
        assert (told["reason"], told["breaker"], told["latency"], told["allowed"]) == ("", "closed", None, 0)
        assert await connect_code(node, "c", username="ann", password=b"x") == 0
        assert (await until("connected"))["latency"] > 0
        port = service.port
        await service.stop()
        for number in range(5):
            assert await connect_code(node, f"d{number}", username="ann", password=b"x") == 0x88
        told = await until("down")
        assert told["breaker"] != "closed" and told["breaker_opened"] == 1 and told["failed"] == 5
        assert told["allowed"] == 1 and told["reason"].startswith("no_connection: ")
        [of_node] = (await node.api.get("/alarms/activated")).data
        [alarm] = of_node["alarms"]
        assert (alarm["name"], alarm["message"]) == ("access/http/down", "access source http is down")
        assert alarm["details"] == {"source": "http", "setting": "access.http", "fault": told["reason"]}
        _, _, line = await done(node, "access-sources", "list")
        assert line.startswith("AccessSource(http, authenticates=3, authorizes=3, status=down, breaker=")
        *_, row = await ctl_json(node, "access-sources", "list")
        assert row["remote"]["status"] == "down"
        [reason] = [
            each
            for each in (await node.api.get("/reasons", reason="server_unavailable", kind="client")).data
            if each["settings"] == ["access.http.<key>"]
        ]
        assert reason["text"].startswith("the service did not answer")
        await service.start(port)
        await until("connected")
        [of_node] = (await node.api.get("/alarms/activated")).data
        assert of_node["alarms"] == []
        assert await connect_code(node, "e", username="ann", password=b"x") == 0
