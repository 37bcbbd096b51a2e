"""/trace and /slow_subscriptions."""

import errno
import io
import os
import re
import socket
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taipan.broker.extensions import tracing
from taipan.broker.extensions.tracing import MAX_BYTES, MAX_TRACES
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio


async def log_of(node: ManagedNode, name: str) -> str:
    reply = await node.api.get(f"/trace/{name}/log", bytes=100_000)
    assert reply.meta["position"] == len(reply.data.encode())
    return str(reply.data)


async def test_a_client_is_traced_while_the_trace_runs() -> None:
    async with managed_node() as node:
        made = (await node.api.post("/trace", {"name": "t1", "type": "clientid", "clientid": "suspect"})).data
        assert made["status"] == "running" and made["clientid"] == "suspect"
        suspect = await node.client("suspect", 4)
        other = await node.client("other")
        await suspect.subscribe("a/#", qos=1)
        await suspect.publish("a/b", b"seen\nhere", 1)
        await suspect.expect_publish("a/b")
        await other.publish("a/c", b"unseen", 0)
        await suspect.expect_publish("a/c")
        log = await log_of(node, "t1")
        for event in ("client.connected", "session.subscribed", "message.publish", "message.delivered"):
            assert f"[{event}] suspect@127.0.0.1:" in log
        assert "payload=seen\\nhere" in log and "payload=unseen" not in log
        (listed,) = (await node.api.get("/trace")).data
        assert listed["log_size"] == {node.name: len(log.encode())}
        assert (await node.api.put("/trace/t1/stop")).data == {"name": "t1", "enable": False}
        assert not node.server.hooks.message_publish
        await suspect.publish("a/b", b"later", 0)
        await suspect.ping()
        assert await log_of(node, "t1") == log
        archive = await node.api.get("/trace/t1/download")
        with zipfile.ZipFile(io.BytesIO(archive.octets)) as content:
            assert content.read("t1.log").decode() == log
        assert (await node.api.delete("/trace/t1")).code == 0
        assert (await node.api.get("/trace")).data == []


async def test_the_keep_alive_is_the_one_asked_for_and_then_the_one_in_force() -> None:
    async with managed_node(zone={"server_keep_alive": 30}) as node:
        await node.api.post("/trace", {"name": "t", "type": "clientid", "clientid": "c"})
        await node.client("c", 5, keep_alive=77)
        log = await log_of(node, "t")
        assert re.search(r"\[client\.connect\] c@\S+ proto_ver=5 keepalive=77\n", log)
        assert re.search(r"\[client\.connected\] c@\S+ username=- keepalive=30\n", log)


async def test_a_long_client_identifier_is_cut() -> None:
    async with managed_node(zone={"max_client_id_length": 65_535}) as node:
        await node.api.post("/trace", {"name": "t", "type": "ip_address", "ip_address": "127.0.0.1"})
        await node.client("x" * 65_000, 5)
        log = await log_of(node, "t")
        assert f"[client.connected] {'x' * 512}... (65000 characters)@" in log
        assert max(map(len, log.splitlines())) < 1000


@pytest.mark.parametrize("condition", ["192.0.2.7", "::ffff:192.0.2.7"])
async def test_an_address_that_came_through_an_ipv6_socket(condition: str) -> None:
    async with managed_node(
        zone={"allow_anonymous": True}, listeners=[{"type": "tcp", "proxy_protocol": True}]
    ) as node:
        await node.api.post("/trace", {"name": "t", "type": "ip_address", "ip_address": condition})
        peer = Peer(node.address())
        proxy = socket.create_connection((str(peer.address.host), int(peer.address.port or 0)))
        proxy.sendall(b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4711 1883\r\n")
        proxy.setblocking(False)
        peer.address = peer.address._replace(host=None, port=None)  # type: ignore[arg-type]
        await peer.open(sock=proxy)
        await peer.connect("c")
        assert "[client.connected] c@" in await log_of(node, "t")
        (row,) = (await node.api.get("/clients", ip_address="192.0.2.7")).data
        assert row["ip_address"] == "192.0.2.7"
        await peer.close()


@pytest.mark.parametrize("kind, condition", [("topic", "a/+"), ("ip_address", "127.0.0.1")])
async def test_by_topic_and_by_address(kind: str, condition: str) -> None:
    async with managed_node() as node:
        await node.api.post("/trace", {"name": "t", "type": kind, kind: condition})
        client = await node.client("c")
        await client.publish("a/b", b"\xff\x00", 0)
        await client.publish("else", b"quiet", 0)
        await client.ping()
        log = await log_of(node, "t")
        assert "topic=a/b qos=0 retain=False payload=0xff00" in log
        assert ("payload=quiet" in log) is (kind == "ip_address")


async def test_it_ends_by_itself_and_begins_at_its_time() -> None:
    async with managed_node() as node:
        await node.api.post("/trace", {"name": "now", "type": "topic", "topic": "#"})
        later = {"name": "later", "type": "topic", "topic": "x", "start_at": "2999-01-01T00:00:00Z"}
        assert (await node.api.post("/trace", later)).data["end_at"] == "2999-01-01T00:10:00Z"
        await node.pass_time(599)
        statuses = {each["name"]: each["status"] for each in (await node.api.get("/trace")).data}
        assert statuses == {"now": "running", "later": "waiting"}
        await node.pass_time(3)
        statuses = {each["name"]: each["status"] for each in (await node.api.get("/trace")).data}
        assert statuses == {"now": "stopped", "later": "waiting"}
        assert (await node.api.delete("/trace")).code == 0


@pytest.mark.parametrize(
    "body, code",
    [
        ({"type": "topic", "topic": "t"}, 107),
        ({"name": "n", "type": "topic"}, 107),
        ({"name": "../n", "type": "topic", "topic": "t"}, 108),
        ({"name": "n", "type": "weather", "weather": "t"}, 108),
        ({"name": "n", "type": "topic", "topic": "t/#/t"}, 108),
        ({"name": "n", "type": "topic", "topic": "t", "start_at": "soon"}, 108),
        ({"name": "n", "type": "topic", "topic": "t", "end_at": "2000-01-01T00:00:00Z"}, 108),
        ({"name": "n", "type": "topic", "topic": "t", "end_at": "9999-12-31T23:59:59-23:59"}, 108),
        ({"name": "n", "type": "topic", "topic": "t", "start_at": "0001-01-01T00:00:00+23:59"}, 108),
        ({"name": "n", "type": "topic", "topic": "t", "start_at": "9999-12-31T23:59:59Z"}, 108),
        ({"name": "n", "type": "ip_address", "ip_address": "somewhere"}, 108),
        ({"name": "n", "type": "clientid", "clientid": "x" * 65_536}, 108),
        ({"name": "there", "type": "topic", "topic": "t"}, 113),
        ({"name": "n", "type": "clientid", "clientid": "c"}, 113),
    ],
)
async def test_what_cannot_be_traced(body: dict[str, Any], code: int) -> None:
    async with managed_node() as node:
        await node.api.post("/trace", {"name": "there", "type": "clientid", "clientid": "c"})
        reply = await node.api.post("/trace", body)
        assert (reply.status, reply.code) == (400, code)
        assert [each["name"] for each in (await node.api.get("/trace")).data] == ["there"]
        for path in ("/trace/none/log", "/trace/none/download", "/trace/..%2Fthere/log"):
            assert (await node.api.get(path)).status == 404
        assert (await node.api.put("/trace/none/stop")).code == 102


async def test_bounds() -> None:
    async with managed_node() as node:
        for number in range(MAX_TRACES):
            await node.api.post("/trace", {"name": f"t{number}", "type": "topic", "topic": f"t/{number}"})
        assert (await node.api.post("/trace", {"name": "more", "type": "topic", "topic": "t"})).code == 108
        node.server.tracing.path("t0").write_bytes(b"x" * (MAX_BYTES - 10))
        node.server.tracing._files["t0"].size = MAX_BYTES - 10
        client = await node.client("c")
        for _ in range(3):
            await client.publish("t/0", b"y" * 100, 0)
            await client.ping()
            node.server.tracing.flush()
        assert node.server.tracing.size("t0") < MAX_BYTES + 100
        assert node.server.tracing.path("t0").read_bytes().endswith(b"the trace is full\n")


async def test_slow_subscriptions_are_ranked() -> None:
    async with managed_node(slow_subscriptions={"enabled": True, "top": 2}) as node:
        subscriber = await node.client("slow")
        await subscriber.subscribe("t/#", qos=2)
        publisher = await node.client("p")
        for topic, wait in (("t/1", 1.0), ("t/2", 3.0), ("t/3", 2.0), ("t/4", 0.1)):
            await publisher.publish(topic, b"x", 1)
            got = await subscriber.expect_publish(topic)
            await node.pass_time(wait)
            await subscriber.puback(got.packet_id)
            await subscriber.ping()
        ranking = (await node.api.get("/slow_subscriptions")).data
        assert [each["topic"] for each in ranking] == ["t/2", "t/3"]
        assert 3000 <= ranking[0]["timespan"] < 4000 and ranking[0]["clientid"] == "slow"
        await node.pass_time(400)
        assert (await node.api.get("/slow_subscriptions")).data == []
        assert (await node.api.delete("/slow_subscriptions")).code == 0


async def test_slow_subscriptions_are_off_unless_configured() -> None:
    async with managed_node() as node:
        reply = await node.api.get("/slow_subscriptions")
        assert reply.status == 404 and "slow_subscriptions.enabled" in reply.json["message"]
        assert not node.server.hooks.delivery_completed


@pytest.mark.parametrize("fault", ["no inode", "no directory", "read-only"])
async def test_a_file_that_cannot_be_made_or_removed_is_told(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Nothing is changed then, and it works when the disk does."""
    trace = {"type": "clientid", "clientid": "c"}
    async with managed_node() as node:
        directory = node.server.tracing.path("t").parent

        def refuse(*arguments: Any, **more: Any) -> int:
            number = errno.ENOSPC if fault == "no inode" else errno.EROFS
            raise OSError(number, os.strerror(number), str(arguments[0]))

        if fault == "no directory":
            directory.write_text("in its place")
        else:
            monkeypatch.setattr(tracing, "os", SimpleNamespace(**{**vars(os), "open": refuse}))
        refused = await node.api.post("/trace", {"name": "t", **trace})
        assert_refused(refused, 500, 101, str(directory))
        assert (await node.api.get("/trace")).data == []
        monkeypatch.undo()
        if fault == "no directory":
            directory.unlink()
        assert (await node.api.post("/trace", {"name": "t", **trace})).code == 0
        await node.client("c")
        path = node.server.tracing.path("t")
        if fault == "read-only":
            unlink = Path.unlink
            monkeypatch.setattr(
                Path, "unlink", lambda self, **more: refuse(self) if self == path else unlink(self, **more)
            )
            for method, target in (("DELETE", "/trace/t"), ("DELETE", "/trace")):
                assert_refused(await node.api.ask(method, target), 500, 101, "Read-only file system")
            assert [each["name"] for each in (await node.api.get("/trace")).data] == ["t"]
            monkeypatch.undo()
        assert "[client.connected] c@" in await log_of(node, "t")
        path.unlink()
        path.symlink_to(path)
        node.ignore(lambda record: "trace_stopped" in record.getMessage())
        for target in ("/trace/t/log", "/trace/t/download"):
            assert_refused(await node.api.get(target), 500, 101, "symbolic links")
        assert (await node.api.delete("/trace/t")).code == 0
