"""The web hook plugin: events of clients, sessions and messages as requests of EMQX 4's form, over real sockets."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from taipan.ruleengine.config import EngineSettings, WebHookSettings
from taipan.ruleengine.webhook.events import base62
from taipan.ruleengine.webhook.plugin import WebHookPlugin
from tests.support.http_sink import HttpSink, status
from tests.support.node import Node, NodeProcess, free_port, start_node
from tests.support.peer import Address, Peer
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

EVENTS = [
    "client.connect", "client.connack", "client.connected", "client.disconnected", "client.subscribe",
    "client.unsubscribe", "session.subscribed", "session.unsubscribed", "session.terminated", "message.publish",
    "message.delivered", "message.acked",
]  # fmt: skip


@asynccontextmanager
async def hooked(sink: HttpSink, *events: str | dict[str, str], **settings: Any) -> AsyncIterator[Node]:
    import msgspec

    rules = [{"event": each} if isinstance(each, str) else each for each in events]
    engine = settings.pop("engine", {})
    config = msgspec.convert({"url": f"{sink.url}/hook", "rules": rules, **settings}, WebHookSettings)
    node = await start_node()
    plugin = WebHookPlugin(node.server, config, EngineSettings(refused_networks=(), **engine))
    plugin.start()
    try:
        yield node
    finally:
        await node.server.disconnect_clients()
        await plugin.close()
        await node.stop()


def bodies(sink: HttpSink) -> list[dict[str, Any]]:
    return [json.loads(each) for each in sink.bodies]


async def received(sink: HttpSink, count: int) -> list[dict[str, Any]]:
    await until(lambda: len(sink.requests) >= count)
    return bodies(sink)


@pytest.mark.parametrize("version", [4, 5])
async def test_every_event_to_the_letter(version: int) -> None:
    sink = await HttpSink().start()
    async with hooked(sink, *EVENTS) as node:
        peer = await node.client("porch", version, keep_alive=60)
        await peer.subscribe("a/+", qos=1)
        await peer.publish("a/1", b"21.5", 1)
        got = await peer.expect_publish("a/1", b"21.5", 1)
        await peer.puback(got.packet_id)
        await peer.unsubscribe("a/+")
        await peer.disconnect()
        found = await received(sink, 12)
    await sink.stop()
    method, path, headers, _ = sink.requests[0]
    assert (method, path, headers["content-type"]) == ("POST", "/hook", "application/json")
    node_name = node.server.settings.node.name
    for each in found:
        for name in ("connected_at", "disconnected_at", "ts"):
            if name in each:
                assert abs(each.pop(name) / 1000 - node.clock.now()) < 60
        assert each.pop("node") == node_name
    client = {"clientid": "porch", "username": None}
    connection = {**client, "ipaddress": "127.0.0.1", "keepalive": 60, "proto_ver": version}
    message = {
        "from_client_id": "porch", "from_username": None, "topic": "a/1", "qos": 1, "retain": False, "payload": "21.5"
    }  # fmt: skip
    opts = {"qos": 1, "nl": 0, "rap": 0, "rh": 0}
    assert sorted(found, key=lambda each: str(each["action"])) == [
        {"action": "client_connack", **connection, "conn_ack": "success"},
        {"action": "client_connect", **connection},
        {"action": "client_connected", **connection},
        {"action": "client_disconnected", **client, "reason": "normal"},
        {"action": "client_subscribe", **client, "topic": "a/+", "opts": opts},
        {"action": "client_unsubscribe", **client, "topic": "a/+", "opts": {}},
        {"action": "message_acked", **client, **message},
        {"action": "message_delivered", **client, **message},
        {"action": "message_publish", **message},
        {"action": "session_subscribed", **client, "topic": "a/+", "opts": opts},
        {"action": "session_terminated", **client, "reason": "normal"},
        {"action": "session_unsubscribed", **client, "topic": "a/+"},
    ]
    assert [each["action"] for each in found[:3]] == ["client_connect", "client_connack", "client_connected"]


async def test_only_topics_that_match() -> None:
    sink = await HttpSink().start()
    rules = [{"event": "message.publish", "topic": "a/#"}, {"event": "message.publish", "topic": "a/+"}]
    async with hooked(sink, *rules, {"event": "client.subscribe", "topic": "b/#"}) as node:
        peer = await node.client("c")
        await peer.subscribe("a/#", "b/#")
        for topic in ("x", "a/1", "a/1/2"):
            await peer.publish(topic, b"1", 1)
        found = await received(sink, 3)
        assert [each["topic"] for each in found] == ["b/#", "a/1", "a/1/2"]
    await sink.stop()


@pytest.mark.parametrize(
    "encoding, payload, sent",
    [
        ("plain", b"\xffx", "\N{REPLACEMENT CHARACTER}x"),
        ("base64", b"\xffx", base64.b64encode(b"\xffx").decode()),
        ("base62", b"\xff\xff\xff", "9C9C9C9C"),
        ("base62", b"hello world", "aGVsbG8gd29AybGE"),
    ],
)
async def test_encodings(encoding: str, payload: bytes, sent: str) -> None:
    sink = await HttpSink().start()
    async with hooked(sink, "message.publish", encoding_of_payload_field=encoding) as node:
        await (await node.client("c")).publish("t", payload, 1)
        ((found),) = await received(sink, 1)
    await sink.stop()
    assert found["payload"] == sent


def decoded(text: str, size: int) -> bytes:
    """The inverse of base62, as it is described in docs/web-hook.md and in EMQX's source."""
    digits, at = [], 0
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz012345678"
    while at < len(text):
        if text[at] == "9":
            digits.append(61 + "ABC".index(text[at + 1]))
            at += 1
        else:
            digits.append(alphabet.index(text[at]))
        at += 1
    bits = size * 8
    joined = "".join(f"{each:06b}" for each in digits[: bits // 6])
    if bits % 6:
        joined += f"{digits[-1]:0{bits % 6}b}"
    return int(joined, 2).to_bytes(size) if joined else b""


@pytest.mark.parametrize("size", range(10))
async def test_base62_can_be_read(size: int) -> None:
    for start in range(0, 256, 7):
        data = bytes((start + 37 * place) % 256 for place in range(size))
        assert decoded(base62(data), size) == data


async def test_the_order_of_a_client() -> None:
    sink = await HttpSink().start()

    async def slow_at_first(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(0.02 if len(sink.requests) < 5 else 0)
        return web.Response()

    sink.answer = slow_at_first
    async with hooked(sink, "message.publish") as node:
        peers = [await node.client(f"c{number}") for number in range(3)]
        for number in range(20):
            for peer in peers:
                await peer.publish("t", b"%d" % number, 1)
        found = await received(sink, 60)
    await sink.stop()
    for number in range(3):
        assert [each["payload"] for each in found if each["from_client_id"] == f"c{number}"] == [
            str(each) for each in range(20)
        ]


@pytest.mark.parametrize(
    "limit, setting", [({"max_queued": 5}, "max_queued"), ({"max_queued_bytes": 1500}, "max_queued_bytes")]
)
async def test_a_server_that_hangs_delays_nothing(
    limit: dict[str, int], setting: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = await HttpSink().start()
    answered = asyncio.Event()

    async def hang(request: web.Request, body: bytes) -> web.StreamResponse:
        await answered.wait()
        return web.Response()

    sink.answer = hang
    async with hooked(sink, "message.publish", "client.subscribe", **limit, pool_size=1) as node:
        peer = await node.client("c")
        await peer.subscribe("t", qos=1)
        for number in range(20):
            await peer.publish("t", b"%d" % number, 1)
            await peer.expect_publish("t", b"%d" % number, 1)
        dropped = node.server.metrics.refusals.snapshot()["webhook_dropped_queue_full"]
        assert dropped >= 10
        await peer.subscribe(*[f"x/{number}" for number in range(50)])  # as many requests
        assert node.server.metrics.refusals.snapshot()["webhook_dropped_queue_full"] == dropped + 50
        answered.set()
        found = await received(sink, 21 - dropped)
        assert [each["payload"] for each in found if "payload" in each] == [str(each) for each in range(20 - dropped)]
    await sink.stop()
    assert f"webhook_dropped reason=queue_full setting=webhook.{setting} count=1" in caplog.text


async def test_a_server_that_is_away_or_refuses(caplog: pytest.LogCaptureFixture) -> None:
    sink = HttpSink()  # away
    async with hooked(sink, "message.publish") as node:
        peer = await node.client("c")

        def count(reason: str) -> int:
            return node.server.metrics.refusals.snapshot().get(f"webhook_failed_{reason}", 0)

        await peer.publish("t", b"lost", 1)
        await until(lambda: count("no_answer") == 1)
        await sink.start()
        sink.answer = status(500)
        await peer.publish("t", b"refused", 1)
        await until(lambda: count("http_500") == 1)
        sink.answer = status(204)
        await peer.publish("t", b"3", 1)
        assert [each["payload"] for each in await received(sink, 2)] == ["refused", "3"]
    await sink.stop()
    assert "webhook_failed reason=no_answer setting=webhook.url count=1" in caplog.text


async def test_events_are_counted_by_action() -> None:
    """Those that a rule selects, dropped or not; all names are there from the start."""
    sink = HttpSink()  # away
    topics = {"event": "message.publish", "topic": "a/#"}
    subscribed = {"event": "client.subscribe", "topic": "x/+"}
    async with hooked(sink, "client.connected", topics, subscribed, max_queued=2, pool_size=1) as node:

        def counts() -> dict[str, int]:
            snapshot = node.server.metrics.snapshot()
            return {name: value for name, value in snapshot.items() if name.startswith("webhook.")}

        none = {f"webhook.{each.replace('.', '_')}": 0 for each in EVENTS}
        assert counts() == none
        peer = await node.client("c")
        for number in range(10):
            await peer.publish(f"a/{number}", b"x", 1)
        await peer.publish("b", b"not selected", 1)
        await peer.subscribe("x/1", "x/2", "y/1")
        expected = {"webhook.client_connected": 1, "webhook.message_publish": 10, "webhook.client_subscribe": 2}
        assert counts() == none | expected
    node = await start_node()
    assert not any(name.startswith("webhook.") for name in node.server.metrics.snapshot())
    await node.stop()


async def test_a_refused_network() -> None:
    sink = await HttpSink().start()
    config = WebHookSettings(url=sink.url, rules=[])
    node = await start_node()
    import msgspec

    from taipan.ruleengine.config import WebHookRule

    config = msgspec.structs.replace(config, rules=[WebHookRule(event="message.publish")])
    plugin = WebHookPlugin(node.server, config, EngineSettings(refused_networks=("127.0.0.0/8",)))
    plugin.start()
    await (await node.client("c")).publish("t", b"1", 1)
    await until(lambda: "webhook_failed_no_answer" in node.server.metrics.refusals.snapshot())
    await plugin.close()
    await node.stop()
    await sink.stop()
    assert not sink.requests


async def test_a_process_from_its_configuration(tmp_path: Path) -> None:
    """What the table says is sent, up to the events of the stop."""
    sink = await HttpSink().start()
    port = free_port()
    config = tmp_path / "taipan.toml"
    config.write_text(f"""
[node]
data_dir = "{tmp_path / "data"}"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{port}"

[ruleengine]
refused_networks = []

[webhook]
url = "{sink.url}/hook"
headers = {{ authorization = "Bearer x" }}

[[webhook.rules]]
event = "client.connected"

[[webhook.rules]]
event = "client.disconnected"
""")
    node = await NodeProcess(config).start()
    peer = Peer(Address("127.0.0.1", port), 4)
    await peer.connect("porch")
    await received(sink, 1)
    assert await node.stop() == 0
    await peer.close()
    found = await received(sink, 2)
    await sink.stop()
    assert [each["action"] for each in found] == ["client_connected", "client_disconnected"]
    assert sink.requests[0][2]["authorization"] == "Bearer x"


async def test_what_does_not_leave_before_the_stop_is_counted() -> None:
    sink = await HttpSink().start()

    async def hang(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    sink.answer = hang
    async with hooked(sink, "message.publish", engine={"close_timeout": 0.05}) as node:
        await (await node.client("c")).publish("t", b"1", 1)
        await received(sink, 1)
    assert node.server.metrics.refusals.snapshot()["webhook_dropped_stopped"] == 1
    await sink.stop()
