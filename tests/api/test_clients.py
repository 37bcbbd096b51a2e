"""/clients: every field against what was really sent, every filter, and every order."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Will
from taipan.broker.persistence.group_commit import GroupCommit
from tests.support.api import ManagedNode, assert_refused, managed_node, segment
from tests.support.killed import as_killed
from tests.support.peer import Closed, Peer
from tests.support.users import PASSWORD, users
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio


def _words(text: str) -> list[str]:
    return text.split()


SPECIFIED = _words(
    "node clientid username proto_name proto_ver ip_address port is_bridge connected_at disconnected_at connected zone "
    "keepalive clean_start expiry_interval created_at subscriptions_cnt max_subscriptions inflight max_inflight "
    "mqueue_len max_mqueue mqueue_dropped awaiting_rel max_awaiting_rel recv_oct recv_cnt recv_pkt recv_msg send_oct "
    "send_cnt send_pkt send_msg mailbox_len heap_size reductions mountpoint"
)
OF_44 = _words(
    "recv_msg.qos0 recv_msg.qos1 recv_msg.qos2 recv_msg.dropped send_msg.qos0 send_msg.qos1 send_msg.qos2 "
    "send_msg.dropped send_msg.dropped.expired send_msg.dropped.queue_full send_msg.dropped.too_large"
)


async def record(node: ManagedNode, client_id: str) -> dict[str, Any]:
    (found,) = (await node.api.get("/clients/" + segment(client_id))).data
    assert isinstance(found, dict)
    return found


def text(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


# ------------------------------------------------------------------------ fields


@asynccontextmanager
async def busy_client() -> AsyncIterator[tuple[ManagedNode, Peer, dict[str, Any]]]:
    """A 5.0 client for which no figure of its record is what a stub would say."""
    zone = {
        "max_inflight": 5, "max_queued_messages": 3, "max_subscriptions": 7, "max_awaiting_rel": 9,
        "mountpoint": "of/%u/", "session_expiry_interval": 3600,
    }  # fmt: skip
    async with managed_node(zone=zone, access={"users": users("ann")}) as node:
        peer = await node.client(
            "busy", 5, clean_start=False, keep_alive=77, username="ann", password=PASSWORD,
            properties={c.RECEIVE_MAXIMUM: 2, c.SESSION_EXPIRY_INTERVAL: 900, c.MAXIMUM_PACKET_SIZE: 300},
        )  # fmt: skip
        await peer.subscribe("in/#", "other/+", qos=2)
        writer = await node.client("writer", 5, username="ann", password=PASSWORD)
        for number in range(6):
            await writer.publish(f"in/{number}", b"x", 1, expect=None)  # 2 in flight, 3 queued, 1 dropped
        await writer.publish("in/0", b"x" * 400)  # too large for it
        await writer.publish("other/0", b"x")
        await peer.publish("to/0", b"y")
        await peer.publish("to/1", b"y", 1)
        packet_id = peer.next_packet_id()
        await peer.send(Publish("to/2", b"y", 2, False, False, packet_id, {}))
        await peer.answer(Ack, type=c.PUBREC)
        yield node, peer, await record(node, "busy")
        await writer.close()
        await peer.close()


EXPECTED: dict[str, Any] = {
    "clientid": "busy",
    "username": "ann",
    "proto_name": "MQTT",
    "proto_ver": 5,
    "ip_address": "127.0.0.1",
    "is_bridge": False,
    "connected": True,
    "zone": "external",
    "keepalive": 77,
    "clean_start": False,
    "expiry_interval": 900,
    "subscriptions_cnt": 2,
    "max_subscriptions": 7,
    "inflight": 2,
    "max_inflight": 2,
    "mqueue_len": 3,
    "max_mqueue": 3,
    "mqueue_dropped": 1,
    "awaiting_rel": 1,
    "max_awaiting_rel": 9,
    "recv_pkt": 7,  # CONNECT, SUBSCRIBE, 3 PUBLISH, PINGREQ
    "recv_msg": 3,
    "recv_msg.qos0": 1,
    "recv_msg.qos1": 1,
    "recv_msg.qos2": 1,
    "recv_msg.dropped": 0,
    "send_pkt": 8,  # CONNACK, SUBACK, 3 PUBLISH, PINGRESP, PUBACK, PUBREC
    "send_msg": 3,
    "send_msg.qos0": 1,
    "send_msg.qos1": 2,
    "send_msg.qos2": 0,
    "send_msg.dropped": 2,
    "send_msg.dropped.expired": 0,
    "send_msg.dropped.queue_full": 1,
    "send_msg.dropped.too_large": 1,
    "mailbox_len": 0,
    "mountpoint": "of/ann/",
}
EXPECTED["recv_pkt"] = 6
EXPECTED["reductions"] = EXPECTED["recv_pkt"] + EXPECTED["send_pkt"]


@pytest.mark.parametrize("field", SPECIFIED + OF_44)
async def test_every_field(field: str) -> None:
    async with busy_client() as (node, peer, found):
        now = node.clock.now()
        if field in EXPECTED:
            assert found[field] == EXPECTED[field]
        elif field == "node":
            assert found[field] == node.name
        elif field == "port":
            assert isinstance(peer.stream.writer, asyncio.StreamWriter)  # type: ignore[union-attr]
            assert found[field] == peer.stream.writer.get_extra_info("sockname")[1]  # type: ignore[union-attr]
        elif field in ("connected_at", "created_at"):
            assert text(now - 5) <= found[field] <= text(now)
        elif field == "disconnected_at":
            assert field not in found
            await peer.drop()
            found = await record(node, "busy")
            assert text(now - 5) <= found[field] <= text(node.clock.now())
        elif field == "heap_size":
            assert found[field] > 5 * 200  # five messages at the least
        elif field in ("recv_oct", "recv_cnt", "send_oct", "send_cnt"):
            before = found[field]
            await peer.ping()
            after = (await record(node, "busy"))[field]
            assert after - before == (2 if field.endswith("oct") else 1) and before > 1
        else:
            raise AssertionError(f"{field} is not looked at")


async def test_the_record_has_no_other_fields() -> None:
    async with managed_node() as node:
        await node.client("c", 4)
        await node.leave_session("off")
        assert set(await record(node, "c")) == set(SPECIFIED + OF_44) - {"disconnected_at", "mountpoint"}
        assert set(await record(node, "off")) == set(SPECIFIED + OF_44) - {"mountpoint"}


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_client_of_every_version(version: int) -> None:
    async with managed_node() as node:
        await node.client("c", version, keep_alive=30)
        found = await record(node, "c")
        assert (found["proto_name"], found["proto_ver"]) == ("MQTT", version)
        assert found["username"] == "undefined"
        assert (found["clean_start"], found["expiry_interval"]) == (True, 0)
        assert (found["max_inflight"], found["max_awaiting_rel"], found["max_mqueue"]) == (32, 65_535, 1000)


async def test_websocket_bridge_and_nobodys_limits() -> None:
    zone = {"max_inflight": 0, "max_queued_messages": 0, "max_subscriptions": 0, "max_awaiting_rel": 0}
    async with managed_node(zone=zone) as node:
        await node.client("ws", 4, transport="ws")
        assert (await record(node, "ws"))["ip_address"] == "127.0.0.1"
        await node.client("bridge", 4, is_bridge=True)
        found = await record(node, "bridge")
        assert found["is_bridge"] is True
        limits = ("max_inflight", "max_mqueue", "max_subscriptions", "max_awaiting_rel")
        assert [found[each] for each in limits] == [0, 0, 0, 0]


async def test_figures_stay_when_the_connection_is_gone() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4, clean_start=False, username="ann")
        await peer.subscribe("t", qos=1)
        await peer.publish("t", b"1", 1)
        await peer.expect_publish("t")
        await peer.publish("elsewhere")
        before = await record(node, "c")
        await peer.drop()
        after = await record(node, "c")
        assert after["connected"] is False
        for field in (*SPECIFIED, *OF_44):
            if field not in ("connected", "disconnected_at", "heap_size", "mountpoint"):
                assert after[field] == before[field], field
        # What is dropped now is counted too.
        for qos in (0, 1):
            await (await node.client(f"writer-{qos}", 4)).publish("t", b"2", qos)
        offline_record = await record(node, "c")
        assert (offline_record["send_msg.dropped"], offline_record["mqueue_len"]) == (1, 1)


async def test_created_at_stays_and_disconnected_at_vanishes_when_it_comes_back() -> None:
    async with managed_node() as node:
        await node.leave_session("c")
        created = (await record(node, "c"))["created_at"]
        await node.pass_time(100)
        await node.client("c", 4, clean_start=False)
        found = await record(node, "c")
        assert found["created_at"] == created < found["connected_at"]
        assert found["connected"] is True and "disconnected_at" not in found
        assert found["recv_pkt"] == 1


async def test_what_a_client_may_not_publish_counts_as_dropped() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        await peer.publish("$SYS/mine", b"", 1)
        found = await record(node, "c")
        assert (found["recv_msg"], found["recv_msg.qos1"], found["recv_msg.dropped"]) == (1, 1, 1)


# --------------------------------------------------------------------- look-ups


@pytest.mark.parametrize("client_id", ["plain", "c/4 ü%", "a+b", "?x=1&y#z", "日本", "username"])
async def test_any_identifier_can_be_looked_up_and_kicked(client_id: str) -> None:
    async with managed_node() as node:
        await node.client(client_id, 4)
        for path in ("/clients/", f"/nodes/{node.name}/clients/"):
            (found,) = (await node.api.get(path + segment(client_id))).data
            assert found["clientid"] == client_id
        assert (await node.api.delete("/clients/" + segment(client_id))).json == {"code": 0}
        assert (await node.api.get("/clients/" + segment(client_id))).json == {"data": [], "code": 0}


@pytest.mark.parametrize("path", ["/clients", "/nodes/{node}/clients"])
async def test_listing_page_by_page(path: str) -> None:
    async with managed_node() as node:
        path = path.format(node=node.name)
        for number in range(5):
            await node.client(f"c{number}", 4)
        seen = []
        for page in (1, 2, 3):
            reply = await node.api.get(path, _page=page, _limit=2)
            seen += [each["clientid"] for each in reply.data]
            assert reply.meta == {"page": page, "limit": 2, "count": 5, "hasnext": page < 3}
        assert seen == [f"c{number}" for number in range(5)]
        reply = await node.api.get(path)
        assert len(reply.data) == 5 and reply.meta == {"page": 1, "limit": 10000, "count": 5, "hasnext": False}
        for page, rows in ((0, 2), (-3, 2), (99, 0), (10**17, 0)):
            reply = await node.api.get(path, _page=page, _limit=2)
            assert len(reply.data) == rows and reply.meta["page"] == (page if page >= 0 else 1)
        assert (await node.api.get(path, _limit=0)).meta["hasnext"] is True
        assert (await node.api.get(path, _limit=100_000)).meta["limit"] == 10_000
        for key, value in (
            ("_page", "abc"), ("_limit", "-5"), ("_limit", "x"), ("_limit", "1e3"), ("_limit", "10.5"),
            ("_page", "1e0"), ("_limit", "0x5"), ("_limit", "1_0"), ("_limit", ""),
        ):  # fmt: skip
            reply = await node.api.get(path, **{key: value})
            assert (reply.status, reply.code) == (400, 108) and key in reply.json["message"]


@pytest.mark.parametrize("path", ["/clients/username/", "/nodes/{node}/clients/username/"])
async def test_by_username(path: str) -> None:
    async with managed_node() as node:
        path = path.format(node=node.name)
        await node.client("a", 4, username="u/4 é")
        await node.leave_session("b", username="u/4 é")
        await node.client("c", 4, username="other")
        await node.client("d", 4)
        reply = await node.api.get(path + segment("u/4 é"))
        assert {each["clientid"] for each in reply.data} == {"a", "b"} and "meta" not in reply.json
        for nobody in ("zzz", "undefined"):
            assert (await node.api.get(path + nobody)).json == {"data": [], "code": 0}
        reply = await node.api.get(path + segment("u/4 é"), _limit=1)
        assert len(reply.data) == 1 and reply.meta["hasnext"] is True


@pytest.mark.parametrize("path", ["/nodes/x@y/clients", "/nodes/x@y/clients/c", "/nodes/x@y/clients/username/c"])
async def test_another_node(path: str) -> None:
    async with managed_node() as node:
        reply = await node.api.get(path)
        assert (reply.status, reply.code) == (404, 102)


# ---------------------------------------------------------------------- filters


@asynccontextmanager
async def several_clients() -> AsyncIterator[tuple[ManagedNode, float]]:
    """a: 3.1, anonymous, of the zone "inner". b: 3.1.1, ann. c: 5.0, bob, an hour later, dropped one of its queue, of
    which two are left. off: 3.1.1, ann, a session of an hour ago whose client came back and left."""
    listeners = [{"type": "tcp"}, {"type": "ws", "zone": "inner"}]
    async with managed_node(zone={"max_queued_messages": 2}, listeners=listeners) as node:
        start = node.clock.now()
        await node.client("a", 3, "ws")
        await node.client("b.*", 4, username="ann")
        await node.leave_session("off", username="ann")
        await node.pass_time(3600)
        await node.leave_session("off", username="ann")
        c_peer = await node.client("c", 5, clean_start=False, username="bob", properties={c.RECEIVE_MAXIMUM: 1})
        await c_peer.subscribe("t", qos=1)
        writer = await node.client("writer", 4)
        for _ in range(4):
            await writer.publish("t", b"", 1)
        await writer.disconnect()
        yield node, start


FILTERS: list[tuple[str, Any, str]] = [
    ("clientid", "b.*", "b.*"),
    ("clientid", "b", ""),
    ("clientid", "", ""),
    ("username", "ann", "b.* off"),
    ("username", "Ann", ""),
    ("username", "undefined", ""),
    ("zone", "inner", "a"),
    ("zone", "nope", ""),
    ("ip_address", "127.0.0.1", "a b.* off c"),
    ("ip_address", "::ffff:127.0.0.1", "a b.* off c"),
    ("ip_address", "1.2.3.4", ""),
    ("conn_state", "connected", "a b.* c"),
    ("conn_state", "disconnected", "off"),
    ("conn_state", "idle", ""),
    ("clean_start", "true", "a b.*"),
    ("clean_start", "false", "off c"),
    ("proto_name", "MQTT", "a b.* off c"),
    ("proto_name", "CoAP", ""),
    ("proto_ver", 3, "a"),
    ("proto_ver", 4, "b.* off"),
    ("proto_ver", 5, "c"),
    ("proto_ver", 6, ""),
    ("_like_clientid", "f", "off"),
    ("_like_clientid", ".*", "b.*"),
    ("_like_clientid", "", "a b.* off c"),
    ("_like_username", "n", "b.* off"),
    ("_like_username", "", "a b.* off c"),
    ("_gte_created_at", 1800, "c"),
    ("_gte_created_at", 0, "a b.* off c"),
    ("_lte_created_at", 1800, "a b.* off"),
    ("_lte_created_at", -1800, ""),
    ("_gte_connected_at", 1800, "off c"),
    ("_lte_connected_at", 1800, "a b.*"),
    ("_gte_mqueue_len", 2, "c"),
    ("_gte_mqueue_len", 3, ""),
    ("_lte_mqueue_len", 1, "a b.* off"),
    ("_gte_mqueue_dropped", 1, "c"),
    ("_lte_mqueue_dropped", 0, "a b.* off"),
]


def ids(entry: tuple[Any, ...]) -> str:
    return f"{entry[0]}-{entry[1]}"


@pytest.mark.parametrize(("key", "value", "wanted"), FILTERS, ids=[ids(each) for each in FILTERS])
async def test_filter(key: str, value: Any, wanted: str) -> None:
    async with several_clients() as (node, start):
        values = [value]
        if key.endswith("ed_at"):
            moment = int(start + value)
            values = [moment, moment * 1000]  # seconds and milliseconds
        for path in ("/clients", f"/nodes/{node.name}/clients"):
            for each in values:
                reply = await node.api.get(path, **{key: each})
                assert [row["clientid"] for row in reply.data] == wanted.split()
                assert reply.meta == {"page": 1, "limit": 10000, "count": -1, "hasnext": False}


COMBINED: list[tuple[dict[str, Any], str]] = [
    ({"username": "ann", "conn_state": "connected"}, "b.*"),
    ({"username": "ann", "proto_ver": 4, "clean_start": "false"}, "off"),
    ({"_like_username": "n", "_like_clientid": "o"}, "off"),
    ({"username": "bob", "_like_username": "ann"}, "c"),  # what is asked for exactly wins
    ({"clientid": "c", "_like_clientid": "off"}, "c"),
    ({"clientid": "c", "username": "ann"}, ""),
    ({"_gte_mqueue_len": 1, "_lte_mqueue_len": 2}, "c"),
    ({"ip_address": "127.0.0.1", "proto_name": "MQTT", "zone": "external", "conn_state": "disconnected"}, "off"),
]


@pytest.mark.parametrize(("given", "wanted"), COMBINED, ids=["+".join(each[0]) for each in COMBINED])
async def test_filters_combined(given: dict[str, Any], wanted: str) -> None:
    async with several_clients() as (node, _):
        reply = await node.api.get("/clients", **given)
        assert [row["clientid"] for row in reply.data] == wanted.split() and reply.meta["count"] == -1
        reply = await node.api.get("/clients", _limit=0, **given)
        assert reply.data == [] and reply.meta["hasnext"] is bool(wanted)


async def test_a_filter_with_pages_and_unknown_ones() -> None:
    async with several_clients() as (node, _):
        reply = await node.api.get("/clients", username="ann", _limit=1)
        assert len(reply.data) == 1 and reply.meta["hasnext"] is True
        reply = await node.api.get("/clients", username="ann", _limit=1, _page=2)
        assert [each["clientid"] for each in reply.data] == ["off"] and reply.meta["hasnext"] is False
        assert (await node.api.get("/clients", nosuch=1)).meta["count"] == 4


@pytest.mark.interpreted
async def test_idle_is_who_waits_for_its_connack(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = asyncio.Event()

    async def slowly(commit: GroupCommit, seq: int) -> bool:
        await stored.wait()
        return True

    async with managed_node(durability={"level": "disk"}) as node:
        with monkeypatch.context() as patch:
            patch.setattr(GroupCommit, "wait_until_durable", slowly)
            connecting = asyncio.ensure_future(node.client("c", 4, clean_start=False))
            while not (rows := (await node.api.get("/clients", conn_state="idle")).data):
                pass
            assert (rows[0]["clientid"], rows[0]["connected"]) == ("c", False) and "disconnected_at" not in rows[0]
            for other in ("connected", "disconnected"):
                assert (await node.api.get("/clients", conn_state=other)).data == []
            stored.set()
            await connecting
        assert (await node.api.get("/clients", conn_state="idle")).data == []
        assert (await node.api.get("/clients", conn_state="connected")).data != []


BAD = [
    ("ip_address", "nowhere"), ("conn_state", "sleepy"), ("clean_start", "maybe"), ("proto_name", "AMQP"),
    ("proto_ver", "x"), ("_gte_created_at", "2020-01-01 00:00:00"), ("_lte_created_at", "x"),
    ("_gte_connected_at", "x"), ("_lte_connected_at", "1.5"), ("_gte_mqueue_len", "x"), ("_lte_mqueue_dropped", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD, ids=[each[0] for each in BAD])
async def test_a_filter_with_a_wrong_value(key: str, value: str) -> None:
    async with managed_node() as node:
        reply = await node.api.get("/clients", **{key: value})
        assert (reply.status, reply.code) == (400, 108) and key in reply.json["message"]


# ------------------------------------------------------------------------- kick


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_kick(version: int, level: str) -> None:
    async with managed_node(durability={"level": level}) as node:
        watcher = await node.client("watcher", 4)
        await watcher.subscribe("gone", qos=1)
        properties = {c.SESSION_EXPIRY_INTERVAL: 900} if version == 5 else {}
        peer = await node.client(
            "c", version, clean_start=False, properties=properties, will=Will("gone", b"kicked", 1)
        )
        await peer.subscribe("t", qos=1)
        assert (await node.api.delete("/clients/c")).json == {"code": 0}
        await peer.expect_disconnect(0x98)
        await watcher.expect_publish("gone", b"kicked")
        assert (await node.api.get("/clients/c")).data == []
        assert (await node.api.get("/subscriptions/c")).data == []
        await node.client("c", version, clean_start=False, session_present=False, properties=properties)


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_kick_of_an_offline_session(level: str) -> None:
    async with managed_node(durability={"level": level}) as node:
        watcher = await node.client("watcher", 4)
        await watcher.subscribe("gone")
        will = Will("gone", b"late", 0, False, {c.WILL_DELAY_INTERVAL: 500})
        peer = await node.client("off", 5, clean_start=False, will=will, properties={c.SESSION_EXPIRY_INTERVAL: 900})
        await peer.drop()
        assert (await record(node, "off"))["connected"] is False
        assert (await node.api.delete(f"/nodes/{node.name}/clients/off")).json == {"code": 0}
        await watcher.expect_publish("gone", b"late")
        assert (await node.api.get("/clients/off")).data == []


async def test_a_kick_is_on_disk_when_it_is_answered(tmp_path: Any) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with managed_node(durability={"level": "disk"}, node={"data_dir": str(data)}) as node:
        await node.leave_session("off", "t")
        await node.leave_session("stays", "t")
        assert (await node.api.delete("/clients/off")).code == 0
        as_killed(data, copy)
    async with managed_node(durability={"level": "disk"}, node={"data_dir": str(copy)}) as node:
        assert [each["clientid"] for each in (await node.api.get("/clients")).data] == ["stays"]


async def test_a_session_of_the_last_process_is_listed(tmp_path: Any) -> None:
    for _ in range(2):
        async with managed_node(durability={"level": "disk"}, node={"data_dir": str(tmp_path)}) as node:
            if not (await node.api.get("/clients")).data:
                await node.leave_session("off", "t", username="ann", keep_alive=20)
                continue
            found = await record(node, "off")
            assert (found["connected"], found["username"], found["subscriptions_cnt"]) == (False, "ann", 1)
            assert (found["keepalive"], found["expiry_interval"], found["recv_pkt"]) == (20, 7200, 0)


async def test_a_kick_that_cannot_be_stored_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(commit: GroupCommit, seq: int) -> bool:
        return False

    async with managed_node(durability={"level": "disk"}) as node:
        await node.leave_session("off")
        with monkeypatch.context() as patch:
            patch.setattr(GroupCommit, "wait_until_durable", never)
            reply = await node.api.delete("/clients/off")
        assert (reply.status, reply.code) == (500, 101)


NEEDS_CLIENT = [
    ("DELETE", ""), ("GET", "/acl_cache"), ("DELETE", "/acl_cache"), ("PUT", "/keepalive"), ("POST", "/ratelimit"),
    ("DELETE", "/ratelimit"), ("POST", "/quota"), ("DELETE", "/quota"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), NEEDS_CLIENT, ids=["".join(each) for each in NEEDS_CLIENT])
async def test_of_an_unknown_client(method: str, path: str) -> None:
    async with managed_node() as node:
        body = {"interval": 5} if method == "PUT" else {} if method == "POST" else None
        reply = await node.api.ask(method, "/clients/zzz" + path, body)
        assert (reply.status, reply.code) == (404, 112) and "zzz" in reply.json["message"]


# -------------------------------------------------------------------- ACL cache


async def test_acl_cache() -> None:
    async with managed_node() as node:
        await node.leave_session("off", "t")
        peer = await node.client("c", 4)
        assert (await node.api.get("/clients/c/acl_cache")).data == []
        await peer.subscribe("a/#")
        await peer.publish("p/1")
        entries = (await node.api.get("/clients/c/acl_cache")).data
        now = node.clock.now() * 1000
        for each in entries:
            assert now - 5000 <= each.pop("updated_time") <= now
        assert entries == [
            {"access": "subscribe", "topic": "a/#", "result": "allow"},
            {"access": "publish", "topic": "p/1", "result": "allow"},
        ]
        assert (await node.api.get("/clients/off/acl_cache")).data == []
        assert (await node.api.delete("/clients/off/acl_cache")).code == 0
        assert (await node.api.delete("/clients/c/acl_cache")).json == {"code": 0}
        assert (await node.api.get("/clients/c/acl_cache")).data == []


async def test_acl_cache_of_a_denied_topic_expires() -> None:
    rules = [{"allow": False, "action": "publish", "topics": ["secret"]}]
    async with managed_node(access={"rules": rules, "no_match": "allow"}) as node:
        peer = await node.client("c", 4)
        await peer.publish("secret")
        (entry,) = (await node.api.get("/clients/c/acl_cache")).data
        assert (entry["access"], entry["topic"], entry["result"]) == ("publish", "secret", "deny")
        await node.pass_time(61)
        assert (await node.api.get("/clients/c/acl_cache")).data == []


@pytest.mark.parametrize("path", ["/clients/c/acl_cache", "/acl-cache", "/nodes/{node}/acl-cache"])
async def test_a_cleaned_cache_is_asked_again(path: str) -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        metrics = node.server.metrics
        for _ in range(3):
            await peer.publish("t")
        assert metrics.client_check_acl == 1
        assert (await node.api.delete(path.format(node=node.name))).json == {"code": 0}
        assert (await node.api.get("/clients/c/acl_cache")).data == []
        await peer.publish("t")
        assert metrics.client_check_acl == 2


# ------------------------------------------------------------ keep alive, limits


@pytest.mark.parametrize("interval", [5, "5"])
async def test_keepalive(interval: Any) -> None:
    async with managed_node() as node:
        peer = await node.client("c", 5, keep_alive=1000)
        assert (await node.api.put("/clients/c/keepalive", {"interval": interval})).json == {"code": 0}
        assert (await record(node, "c"))["keepalive"] == 5
        await node.pass_time(7)
        await peer.ping()
        await node.pass_time(8)
        await peer.expect_disconnect(0x8D)


async def test_keepalive_from_the_query_and_0() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4, keep_alive=5)
        assert (await node.api.put("/clients/c/keepalive?interval=0")).json == {"code": 0}
        await node.pass_time(10_000)
        await peer.ping()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, 107),
        ({"interval": -1}, 108),
        ({"interval": 65_536}, 108),
        ({"interval": "x"}, 108),
        ({"interval": None}, 108),
    ],
)
async def test_keepalive_refused(body: Any, code: int) -> None:
    async with managed_node() as node:
        await node.client("c", 4)
        reply = await node.api.put("/clients/c/keepalive", body)
        assert (reply.status, reply.code) == (400, code) and "interval" in reply.json["message"]


@pytest.mark.parametrize(("method", "path"), NEEDS_CLIENT[3:], ids=["".join(each) for each in NEEDS_CLIENT[3:]])
async def test_an_offline_session_has_no_connection_to_change(method: str, path: str) -> None:
    async with managed_node() as node:
        await node.leave_session("off")
        body = {"interval": 5} if method == "PUT" else {} if method == "POST" else None
        reply = await node.api.ask(method, "/clients/off" + path, body)
        assert (reply.status, reply.code) == (404, 112)


@pytest.mark.parametrize(
    ("key", "rate"),
    [("conn_messages_in", "2,10s"), ("conn_bytes_in", "20B,10s")],
    ids=["conn_messages_in", "conn_bytes_in"],
)
async def test_ratelimit(key: str, rate: str) -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        assert (await node.api.post("/clients/c/ratelimit", {key: rate})).json == {"code": 0}
        for _ in range(4):
            await peer.send(bytes.fromhex("3008000474657374") + b"xx")
        while not (found := await record(node, "c"))["mailbox_len"]:
            pass
        assert found["recv_msg"] <= 2
        # Lifted, it is heard at once.
        assert (await node.api.delete("/clients/c/ratelimit")).json == {"code": 0}
        await peer.ping()
        assert (await record(node, "c"))["recv_msg"] == 4


async def test_ratelimit_falls_back_to_the_zone() -> None:
    async with managed_node(zone={"message_rate": [7, 2]}) as node:
        await node.client("c", 4)
        await node.api.post("/clients/c/ratelimit", {"conn_messages_in": "1,1s", "conn_bytes_in": "1KB,1m"})
        connection = node.server.context.channels["c"].connection
        assert connection.limits == ((1, 1), (1024, 60))  # type: ignore[attr-defined]
        await node.api.post("/clients/c/ratelimit", {"conn_bytes_in": "2MB,500ms"})
        assert connection.limits == ((1, 1), (2 * 1024 * 1024, 0.5))  # type: ignore[attr-defined]
        await node.api.post("/clients/c/ratelimit", {})
        assert connection.limits == ((1, 1), (2 * 1024 * 1024, 0.5))  # type: ignore[attr-defined]
        await node.api.delete("/clients/c/ratelimit")
        assert connection.limits == ((7, 2), None)  # type: ignore[attr-defined]


BAD_RATES = [
    ("ratelimit", "conn_messages_in", "100"),
    ("ratelimit", "conn_messages_in", "100KB,1s"),
    ("ratelimit", "conn_messages_in", "0,1s"),
    ("ratelimit", "conn_bytes_in", "100KB,0s"),
    ("ratelimit", "conn_bytes_in", "-1,1s"),
    ("ratelimit", "conn_bytes_in", 5),
    ("quota", "conn_messages_routing", "many,1s"),
    ("quota", "conn_messages_routing", "5,1"),
]


@pytest.mark.parametrize(("what", "key", "value"), BAD_RATES, ids=[f"{each[1]}-{each[2]}" for each in BAD_RATES])
async def test_a_rate_that_is_none(what: str, key: str, value: Any) -> None:
    async with managed_node() as node:
        await node.client("c", 4)
        reply = await node.api.post(f"/clients/c/{what}", {key: value})
        assert (reply.status, reply.code) == (400, 108) and key in reply.json["message"]


async def test_quota() -> None:
    async with managed_node() as node:
        reader = await node.client("reader", 4)
        await reader.subscribe("t")
        peer = await node.client("c", 5)
        await peer.publish("t", b"0", 1)
        assert (await node.api.post("/clients/c/quota", {"conn_messages_routing": "3,10s"})).json == {"code": 0}
        # Two each, for itself and its reader: the second is begun while there is something left.
        await peer.publish("t", b"1", 1)
        await peer.publish("t", b"2", 1)
        assert await peer.publish("t", b"3", 1, expect=0x97) == 0x97
        assert await peer.publish("t", b"3", 2, expect=0x97) == 0x97
        await peer.publish("t", b"3")
        assert (await record(node, "c"))["recv_msg.dropped"] == 3
        await node.pass_time(11)
        await peer.publish("t", b"4", 1)
        assert (await node.api.delete("/clients/c/quota")).json == {"code": 0}
        for number in range(5, 9):
            await peer.publish("t", b"%d" % number, 1)
        for number in (0, 1, 2, 4, 5, 6, 7, 8):
            await reader.expect_publish("t", b"%d" % number)
        await reader.nothing()


async def test_kicking_is_refused_by_nobody_twice() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        replies = await asyncio.gather(node.api.delete("/clients/c"), node.api.delete("/clients/c"))
        assert sorted(each.status for each in replies) == [200, 404]
        with pytest.raises(Closed):
            await peer.receive()


# ------------------------------------------------------------------------ order

ORDERS: list[tuple[str, str]] = [
    ("clientid", "a b.* c off"),
    ("-clientid", "off c b.* a"),
    ("-mqueue_len", "c a b.* off"),
    ("-mqueue_dropped", "c a b.* off"),
    ("-recv_msg", "a b.* c off"),
    ("-send_msg", "c a b.* off"),
    ("username", "a b.* off c"),
    ("proto_ver", "a b.* off c"),
    ("connected", "off a b.* c"),
    ("-inflight", "c a b.* off"),
    ("-disconnected_at", "off a b.* c"),
    ("-zone", "a b.* c off"),
]


@pytest.mark.parametrize(("sort", "wanted"), ORDERS, ids=[each[0] for each in ORDERS])
async def test_order(sort: str, wanted: str) -> None:
    async with several_clients() as (node, _):
        for path in ("/clients", f"/nodes/{node.name}/clients"):
            reply = await node.api.get(path, _sort=sort)
            assert [row["clientid"] for row in reply.data] == wanted.split()
            assert reply.meta == {"page": 1, "limit": 10000, "count": 4, "hasnext": False}


async def test_every_field_has_an_order_and_an_order_has_pages_and_filters() -> None:
    async with several_clients() as (node, _):
        refused = await node.api.get("/clients", _sort="nosuch")
        assert_refused(refused, 400, 108, "_sort")
        record = (await node.api.get("/clients", _sort="clientid")).data[0]
        named = refused.json["message"].split("one of ")[1].split(", with")[0].split(", ")
        assert set(named) - set(record) == {"disconnected_at"}
        for field in named:
            for sort in (field, "-" + field):
                rows = (await node.api.get("/clients", _sort=sort)).data
                assert len(rows) == 4
                values = [row.get(field, "") for row in rows]
                if field not in ("disconnected_at", "username"):
                    assert values == sorted(values, reverse=sort.startswith("-")), sort
        first = await node.api.get("/clients", _sort="-clientid", _limit=2)
        assert [row["clientid"] for row in first.data] == ["off", "c"] and first.meta["hasnext"] is True
        second = await node.api.get("/clients", _sort="-clientid", _limit=2, _page=2)
        assert [row["clientid"] for row in second.data] == ["b.*", "a"] and second.meta["hasnext"] is False
        found = await node.api.get("/clients", _sort="-clientid", username="ann", _limit=1)
        assert [row["clientid"] for row in found.data] == ["off"]
        assert found.meta == {"page": 1, "limit": 1, "count": -1, "hasnext": True}
        found = await node.api.get("/clients", _sort="clientid", _like_clientid="f")
        assert [row["clientid"] for row in found.data] == ["off"]
        assert_refused(await node.api.get("/clients", _sort="clientid", _page=2), 400, 108, "_page")
        assert_refused(await node.api.get("/clients", _sort="clientid", ip_address="x"), 400, 108, "ip_address")
