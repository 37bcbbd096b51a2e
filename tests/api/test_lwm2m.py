"""/lwm2m_channels and /lookup_cmd: LwM2M devices, on one node and on two."""

import json
from typing import Any

import pytest

from taipan.broker.gateway import kind_of
from tests.gateways.lwm2m_device import Device
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.fake_cluster import fake_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

QUICK = {"ack_timeout": 0.5, "max_retransmit": 1}  # a command without an answer ends soon
LISTENERS = [{"type": "tcp"}, {"type": "lwm2m", "name": "devices", "gateway": QUICK}]
N1, N2 = "n1@host", "n2@host"


async def register(node: ManagedNode, endpoint: str) -> Device:
    [listener] = [each for each in node.server.listeners if each.type == "lwm2m"]
    device = await Device.open(listener.bind, endpoint)
    assert (await device.register(b"</1/0>,</3/0>,</9999/0>")).dotted == "2.01"
    return device


async def command(node: ManagedNode, endpoint: str, kind: str, path: str) -> None:
    payload = json.dumps({"reqID": 1, "msgType": kind, "data": {"path": path}})
    body = {"clientid": "c", "topic": f"lwm2m/{endpoint}/dn/x", "payload": payload}
    assert (await node.api.post("/mqtt/publish", body)).code == 0


async def answer(api: Any, kind: str, path: str = "/3/0/9", where: str = "/lookup_cmd/pump-7") -> Any:
    return (await api.get(f"{where}?path={path}&msgType={kind}")).data


async def test_devices_and_their_answers() -> None:
    assert kind_of("lwm2m") is not None
    async with managed_node(listeners=LISTENERS) as node:
        assert (await node.api.get("/lwm2m_channels")).data == []
        device = await register(node, "pump-7")
        row = {
            "imei": "pump-7", "lifetime": 300, "ip_address": "127.0.0.1", "port": device.port, "version": "1.0",
            "objectList": {"/1/0": "LwM2M Server", "/3/0": "Device", "/9999/0": "/9999/0"},
        }  # fmt: skip
        reply = await node.api.get("/lwm2m_channels")
        assert reply.data == [row] and "meta" not in reply.json
        assert (await node.api.get(f"/nodes/{node.name}/lwm2m_channels")).data == [row]
        assert await answer(node.api, "read") == []
        device.answers = False
        await command(node, "pump-7", "read", "3/0/9")
        await device.asked()
        waiting = {"imei": "pump-7", "msgType": "read", "path": "/3/0/9"}
        assert await answer(node.api, "read") == waiting | {"code": "6.01", "codeMsg": "reply_not_received"}
        device.answers = True
        device.resources = {"/3/0/9": (0, b"87"), "/3/0": (40, b"</3/0>;dim=3,</3/0/9>;pmin=1,</3/0/4>,</3/0/99>")}
        await command(node, "pump-7", "discover", "/3/0")
        await until(lambda: not device.requests.empty())
        await command(node, "pump-7", "read", "/3/0/9")

        async def answered() -> Any:
            found = await answer(node.api, "read")
            return found if found["code"] == "2.05" else None

        found = None
        while found is None:
            found = await answered()
        assert found["content"] == [{"path": "/3/0/9", "value": 87}] and "reason" not in found
        found = await answer(node.api, "discover", "/3/0", f"/nodes/{node.name}/lookup_cmd/pump-7")
        assert found["content"] == [
            {"path": "/3/0", "name": "Device"},
            {"path": "/3/0/9", "name": "Battery Level", "operations": "R", "dataType": "Integer"},
            {"path": "/3/0/4", "name": "Reboot", "operations": "E"},
            {"path": "/3/0/99", "name": "Device"},
        ]
        for query in ("", "?path=/3", "?msgType=read"):
            assert_refused(await node.api.get(f"/lookup_cmd/pump-7{query}"), 400, 107)
        second = await register(node, "pump-8")
        page = await node.api.get("/lwm2m_channels", _limit=1, _page=2)
        assert [each["imei"] for each in page.data] == ["pump-8"] and page.meta["count"] == 2
        assert_refused(await node.api.get("/nodes/none/lwm2m_channels"), 404, 102)
        device.close()
        second.close()


async def test_devices_of_two_nodes() -> None:
    async with fake_nodes(2, listeners=LISTENERS) as nodes:
        devices = [await register(node, f"pump-{number}") for number, node in enumerate(nodes.nodes, 7)]
        reply = await nodes.api.get("/lwm2m_channels")
        assert [each["imei"] for each in reply.data] == ["pump-7", "pump-8"]
        assert [each["imei"] for each in (await nodes.api.get(f"/nodes/{N2}/lwm2m_channels")).data] == ["pump-8"]
        devices[1].resources["/3/0/9"] = 0, b"88"
        await command(nodes.nodes[1], "pump-8", "read", "/3/0/9")
        await devices[1].asked()
        found: Any = {}
        while found.get("code") != "2.05":
            found = await answer(nodes.api, "read", where="/lookup_cmd/pump-8")
        assert found["content"] == [{"path": "/3/0/9", "value": 88}]
        assert await answer(nodes.api, "read", where=f"/nodes/{N1}/lookup_cmd/pump-8") == []
        assert (await answer(nodes.api, "read", where=f"/nodes/{N2}/lookup_cmd/pump-8"))["code"] == "2.05"
        nodes.hub.silent.add(N2)
        reply = await nodes.api.get("/lwm2m_channels", _limit=10)
        assert [each["imei"] for each in reply.data] == ["pump-7"] and reply.meta["missing_nodes"] == [N2]
        for device in devices:
            device.close()
