"""/listeners: records, the bound on HTTP connections, restart."""

import asyncio
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.channel import closing
from tests.support.api import ManagedNode, managed_node
from tests.support.certificates import Certificates
from tests.support.ctl import ctl
from tests.support.patience import patience
from tests.support.peer import Closed, Peer

pytestmark = pytest.mark.asyncio


async def records(node: ManagedNode) -> dict[str, dict[str, Any]]:
    rows = (await node.api.get(f"/nodes/{node.name}/listeners")).data
    return {row["identifier"]: row for row in rows}


@pytest.mark.parametrize("path", ["/listeners", "/nodes/taipan@127.0.0.1/listeners"])
async def test_both_forms(path: str) -> None:
    async with managed_node() as node:
        data = (await node.api.get(path)).data
        if path == "/listeners":
            assert data[0]["node"] == node.name
            data = data[0]["listeners"]
        assert [row["identifier"] for row in data] == ["mqtt:tcp:tcp-0", "mqtt:ws:ws-1", "http:management"]


async def test_unknown_node() -> None:
    async with managed_node() as node:
        for path in ("/nodes/no@where/listeners", "/nodes/no@where/metrics", "/nodes/no@where/stats"):
            reply = await node.api.get(path)
            assert (reply.status, reply.code) == (404, 102)


FIELDS = ["acceptors", "listen_on", "protocol", "current_conns", "max_conns", "shutdown_count"]


@pytest.mark.parametrize("field", FIELDS)
async def test_field_of_mqtt(field: str) -> None:
    listeners: list[dict[str, Any]] = [
        {"type": "tcp", "name": "one", "max_connections": 7},
        {"type": "ws", "name": "two"},
    ]
    async with managed_node(listeners=listeners) as node:
        await node.client("c1")
        await node.client("c2", transport="ws")
        rows = await records(node)
        port = {kind: node.address(kind).port for kind in ("tcp", "ws")}
        expected: dict[str, Any] = {
            "acceptors": (1, 1),
            "listen_on": (f"127.0.0.1:{port['tcp']}", f"127.0.0.1:{port['ws']}"),
            "protocol": ("mqtt:tcp", f"mqtt:ws:{port['ws']}"),
            "current_conns": (1, 1),
            "max_conns": (7, 1_024_000),
            "shutdown_count": ([], []),
        }
        assert (rows["mqtt:tcp:one"][field], rows["mqtt:ws:two"][field]) == expected[field]


async def test_a_unix_socket(tmp_path: Path) -> None:
    """Its record; its clients, whom the number of their user finds; the sentence where no rule with an address is
    asked; and that it can be stopped and restarted."""
    path = str(tmp_path / "mqtt.sock")
    listeners: list[dict[str, Any]] = [{"type": "unix", "name": "local", "bind": path}, {"type": "tcp"}]
    async with managed_node(listeners=listeners) as node:
        peer, me = await node.client("c1", transport="unix"), f"uid-{os.getuid()}"
        await node.client("c2")
        row = (await records(node))["mqtt:unix:local"]
        assert (row["protocol"], row["listen_on"], row["current_conns"]) == ("mqtt:unix", path, 1)
        found = (await node.api.get(f"/clients?ip_address={me}")).data
        assert [(each["clientid"], each["ip_address"], each["port"]) for each in found] == [("c1", me, os.getpid())]
        assert (await node.api.get("/clients?ip_address=uid-x")).status == 400
        said = await ctl(node, "listeners")
        assert path in said.out
        assert (await node.api.put("/listeners/mqtt:unix:local/stop")).code == 0
        with pytest.raises(OSError):
            await asyncio.open_unix_connection(path)
        await peer.ping()
        assert (await node.api.put("/listeners/mqtt:unix:local/restart")).code == 0
        await node.client("c3", transport="unix")
        asked = await node.api.get("/access/explain?clientid=c1&action=publish&topic=a")
        assert asked.data["client"]["address"] == me
        query = "/access/explain?username=ann&action=publish&topic=a&listener=mqtt:unix:local&address="
        assert (await node.api.get(query + me)).data["client"]["address"] == me
        assert (await node.api.get(query + "uid-x")).status == 400
        assert (await node.api.post("/trace", {"name": "t", "type": "ip_address", "ip_address": me})).code == 0
        await node.client("c4", transport="unix")
        assert "[client.connected] c4@" in (await node.api.get("/trace/t/log", bytes=100_000)).data


@pytest.mark.parametrize("field", FIELDS)
async def test_field_of_http(field: str) -> None:
    async with managed_node({"max_connections": 9}) as node:
        row = (await records(node))["http:management"]
        expected: dict[str, Any] = {
            "acceptors": 1,
            "listen_on": node.management.url.removeprefix("http://"),
            "protocol": "http:management",
            "current_conns": 1,
            "max_conns": 9,
            "shutdown_count": [],
        }
        assert row[field] == expected[field]


async def closed(peer: Peer) -> None:
    """The broker ends it; the connection is over when both sides have closed."""
    try:
        while True:
            await peer.receive()
    except Closed:
        await peer.close()


async def end_normal(node: ManagedNode) -> None:
    await (await node.client("c1")).disconnect()


async def end_kicked(node: ManagedNode) -> None:
    peer = await node.client("c1")
    closing.kick(node.server.context.channels["c1"])
    await closed(peer)


async def end_discarded(node: ManagedNode) -> None:
    peer = await node.client("c1")
    await node.client("c1")
    await closed(peer)


async def end_takeovered(node: ManagedNode) -> None:
    peer = await node.client("c1", expiry=100)
    await node.client("c1", expiry=100)
    await closed(peer)


ENDS = {"normal": end_normal, "kicked": end_kicked, "discarded": end_discarded, "takeovered": end_takeovered}


@pytest.mark.parametrize("form", ["array", "object"])
@pytest.mark.parametrize("reason", ENDS)
async def test_shutdown_count(reason: str, form: str) -> None:
    async with managed_node({"shutdown_count": form}) as node:
        assert (await records(node))["mqtt:tcp:tcp-0"]["shutdown_count"] == []
        await ENDS[reason](node)
        async with asyncio.timeout(patience(40)):
            while not node.server.listeners[0].shutdown_count:
                await asyncio.sleep(0.01)
        counted = (await records(node))["mqtt:tcp:tcp-0"]["shutdown_count"]
        assert counted == ([{reason: 1}] if form == "array" else {reason: 1})


async def test_http_connections_beyond_the_maximum_put_out_those_without_credentials() -> None:
    async with managed_node({"max_connections": 2}) as node:
        port = int(node.management.url.rpartition(":")[2])
        assert (await records(node))["http:management"]["current_conns"] == 1  # the test's own, kept alive
        silent = await asyncio.open_connection("127.0.0.1", port)
        assert (await records(node))["http:management"]["current_conns"] == 2
        late = await asyncio.open_connection("127.0.0.1", port)
        assert await read_to_the_end(silent[0]) == b""
        (listener,) = node.management.operations.listeners.http_listeners
        assert (listener.refused["max_connections"], listener.current_connections) == (1, 2)
        late[1].write(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await read_to_the_end(late[0])).startswith(b"HTTP/1.1 200")
        for _, writer in (silent, late):
            writer.close()
        async with asyncio.timeout(patience(40)):
            while listener.current_connections > 1:
                await asyncio.sleep(0.01)


async def test_http_connections_with_credentials_stay_whoever_comes() -> None:
    async with managed_node({"max_connections": 1}) as node:
        assert len(await records(node)) == 3
        port = int(node.management.url.rpartition(":")[2])
        for number in range(1, 4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await read_to_the_end(reader) == b""
            writer.close()
            (listener,) = node.management.operations.listeners.http_listeners
            assert (listener.refused["max_connections"], listener.accepted) == (number, 1)
        assert len(await records(node)) == 3


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), patience(40))
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("prefix", ["", "/nodes/taipan@127.0.0.1"])
async def test_restart(prefix: str) -> None:
    async with managed_node() as node:
        peer = await node.client("before")
        reply = await node.api.put(f"{prefix}/listeners/mqtt%3Atcp%3Atcp-0/restart")
        assert (reply.status, reply.json) == (200, {"code": 0})
        await peer.ping()
        await (await node.client("after")).ping()


REFUSALS = {
    "unknown": ("/listeners/mqtt:tcp:nothing/restart", 404, 102),
    "http": ("/listeners/http:management/restart", 400, 108),
    "https": ("/listeners/https:management/restart", 400, 108),
    "unknown-node": ("/nodes/no@where/listeners/mqtt:tcp:tcp-0/restart", 404, 102),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_restart_refusal(case: str) -> None:
    path, status, code = REFUSALS[case]
    async with managed_node() as node:
        reply = await node.api.put(path)
        assert (reply.status, reply.code) == (status, code)


@pytest.mark.parametrize("prefix", ["", "/nodes/taipan@127.0.0.1"])
async def test_stop(prefix: str) -> None:
    async with managed_node() as node:
        peer, name = await node.client("c1"), "mqtt:tcp:tcp-0"
        assert "running" not in (await records(node))[name]
        address = node.address("tcp")
        assert (await node.api.put(f"{prefix}/listeners/{name}/stop")).code == 0
        assert (await records(node))[name]["running"] is False
        with pytest.raises(OSError):
            await asyncio.open_connection(address.host, address.port)
        await peer.ping()  # who is connected stays
        again = await node.api.put(f"{prefix}/listeners/{name}/stop")
        assert (again.status, again.code) == (400, 108)
        assert (await node.api.put(f"{prefix}/listeners/{name}/restart")).code == 0
        await node.client("c2")
        refused = await node.api.put(f"{prefix}/listeners/http:management/stop")
        assert (refused.status, refused.code) == (400, 108)


async def test_certificates(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    tls = {"certfile": certfile, "keyfile": keyfile}
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "ssl", "name": "safe", "tls": tls}]) as node:
        ((row,),) = [each["certificates"] for each in (await node.api.get("/certificates")).data]
        now = node.server.clock.wall() * 1000
        assert (row["setting"], row["file"], row["fault"]) == ("listeners.1.tls.certfile", certfile, None)
        assert row["begins_at"] <= now < row["ends_at"]


async def test_restart_reads_the_certificates_before_it_closes_anything(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    tls = {"certfile": certfile, "keyfile": keyfile}
    async with managed_node(listeners=[{"type": "ssl", "name": "safe", "tls": tls}]) as node:
        good = Path(certfile).read_bytes()
        Path(certfile).write_text("nonsense")
        reply = await node.api.put("/listeners/mqtt:ssl:safe/restart")
        assert (reply.status, reply.code) == (500, 101) and "certfile" in reply.json["message"]
        assert node.server.listeners[0].running
        Path(certfile).write_bytes(good)
        assert (await node.api.put("/listeners/mqtt:ssl:safe/restart")).code == 0
        assert node.server.listeners[0].running


async def test_https(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    async with managed_node({"tls": {"certfile": certfile, "keyfile": keyfile}}) as node:
        assert node.management.url.startswith("https://")
        trust = ssl.create_default_context(cafile=certificates.ca)
        port = int(node.management.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trust, family=socket.AF_INET)
        writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        row = node.management.operations.listeners.records()[-1]
        assert (row.protocol, row.identifier) == ("https:management", "https:management")
        assert row.current_conns == 1
        writer.close()
        await writer.wait_closed()
