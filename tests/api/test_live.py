"""/live: server-sent events over real HTTP, of a node with real clients."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from taipan.management.http import event_stream
from taipan.management.operations.live_answers import LiveAnswers
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.live import PATIENCE, credentials, live
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


async def until(is_so: Any) -> None:
    async with asyncio.timeout(patience(PATIENCE)):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_hello_comes_first() -> None:
    async with managed_node() as node, live(node, every=250) as events:
        hello = await events.next()
        assert events.seen == [("hello", hello)]
        assert hello["node"] == node.name and hello["every"] == 250
        assert hello["version"] == node.server.version
        assert abs(hello["at"] - node.clock.wall() * 1000) < 60_000


async def test_the_first_look_is_at_once_and_then_there_are_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT", 0.5)
    async with managed_node() as node, live(node, alarms=1, figures=1, every=250) as events:
        await events.next("hello")
        # A rate of no time at all is none.
        assert await events.next() == {"active": []} and events.seen[-1][0] == "alarms"
        await events.next("figures")
    async with managed_node() as node, live(node, every=250) as events:
        await events.next("hello")
        async with asyncio.timeout(patience(PATIENCE)):
            assert [await events.response.content.readline() for _ in range(4)] == [b":\n", b"\n"] * 2


async def test_figures_are_those_of_clients() -> None:
    async with managed_node() as node:
        client = await node.client("one")
        await client.subscribe("a/+", qos=1)
        async with live(node, figures=1, every=250) as events:
            await events.next("hello")
            for _ in range(20):
                await client.publish("a/b", b"x" * 100)
            figures = await events.next("figures", lambda data: data["messages_received"])
            assert figures["messages_received"] > 0 and figures["bytes_received"] > figures["messages_received"] * 100
            assert figures["connections"] == figures["sessions"] == figures["subscriptions"] == figures["topics"] == 1
            assert figures["disk_free"] > 0 and figures["memory"] > 0
            assert figures["loop_lag"] >= 0 and "commit_time" in figures
            await client.publish("nobody/reads", b"x")
            figures = await events.next("figures", lambda data: data["messages_dropped"])
            assert set(figures["drops"]) == {"messages.dropped.no_subscribers"}
            assert figures["drops"]["messages.dropped.no_subscribers"] == figures["messages_dropped"]


async def test_alarms_come_when_they_change() -> None:
    async with managed_node() as node, live(node, alarms=1, figures=1, every=250) as events:
        assert await events.next("alarms") == {"active": []}
        await events.next("figures")
        await events.next("figures")
        node.server.alarms.activate("something", "it is so", {"setting": "x"})
        (alarm,) = (await events.next("alarms"))["active"]
        assert (alarm["name"], alarm["message"], alarm["activated"]) == ("something", "it is so", True)
        node.server.alarms.deactivate("something")
        assert await events.next("alarms") == {"active": []}
        assert [name for name, _ in events.seen].count("alarms") == 3


async def test_a_bug_ends_the_stream_and_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with managed_node() as node, live(node, alarms=1, every=250) as events:
        await events.next("alarms")
        node.ignore(lambda record: "api_error" in record.getMessage())
        monkeypatch.setattr(LiveAnswers, "alarms", lambda _: 1 / 0)
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            await events.next("bye")
        await until(lambda: node.management.operations.live.count == 0)
        assert [each.getMessage() for each in caplog.records if "api_error" in each.getMessage()] == [
            "api_error method=GET path=/api/v4/live"
        ]


@pytest.mark.parametrize("query", [{"every": 249}, {"every": 10_001}, {"every": "soon"}, {"figures": "perhaps"}])
async def test_what_cannot_be_watched(query: dict[str, Any]) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/live", **query), 400, 108, next(iter(query)))
        assert node.management.operations.live.count == 0


async def test_a_node_that_is_none() -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/live", node="nobody@nowhere"), 404, 102, "nobody@nowhere")


async def test_streams_are_bounded() -> None:
    async with managed_node({"max_live_streams": 2}) as node, live(node) as first:
        await first.next("hello")
        async with live(node) as second:
            await second.next("hello")
            assert_refused(await node.api.get("/live"), 503, 101, "management.max_live_streams")
            assert node.server.metrics.refusals.snapshot()["live_streams"] == 1
        await until(lambda: node.management.operations.live.count == 1)
        async with live(node) as third:
            await third.next("hello")


async def test_a_head_opens_none() -> None:
    async with managed_node() as node:
        reply = await node.api.ask("HEAD", "/live")
        assert reply.status == 200 and reply.headers["Content-Type"] == "text/event-stream"
        assert node.management.operations.live.count == 0


async def test_a_reader_who_goes_is_forgotten() -> None:
    async with managed_node() as node:
        async with live(node, every=250) as events:
            await events.next("hello")
            assert node.management.operations.live.count == 1
        await until(lambda: node.management.operations.live.count == 0)


async def test_it_ends_when_its_application_is_deleted() -> None:
    async with managed_node() as node:
        secret = (await node.api.post("/apps", {"app_id": "page", "name": "page"})).data["secret"]
        async with live(node, ("page", secret), every=250, figures=1) as events:
            await events.next("figures")
            assert (await node.api.delete("/apps/page")).code == 0
            assert await events.next("bye") == {"reason": "not_allowed"}
            assert await events.ended()
        assert node.management.operations.live.count == 0


async def test_it_ends_when_its_application_is_disabled() -> None:
    async with managed_node() as node:
        secret = (await node.api.post("/apps", {"app_id": "page", "name": "page"})).data["secret"]
        async with live(node, ("page", secret), every=250) as events:
            await events.next("hello")
            body = {"name": "page", "status": False}
            assert (await node.api.put("/apps/page", body)).code == 0
            assert await events.next("bye") == {"reason": "not_allowed"}
            assert await events.ended()


async def test_a_stop_says_so_and_does_not_wait() -> None:
    async with managed_node() as node:
        async with live(node, every=10_000) as events:
            await events.next("hello")
            loop = asyncio.get_running_loop()
            stopping = asyncio.ensure_future(node.management.stop())
            assert await events.next("bye") == {"reason": "node_stops"}
            assert await events.ended()
            async with asyncio.timeout(patience(PATIENCE)):
                await stopping
            assert loop.is_running()
        with contextlib.suppress(aiohttp.ClientError):
            await node.api.get("/live")


async def test_a_client() -> None:
    async with managed_node() as node, live(node, client="one", every=250) as events:
        assert await events.next("client") == {"clientid": "one", "connected": False}
        client = await node.client("one", expiry=100)
        told = await events.next("client", lambda data: data["connected"])
        assert told["clientid"] == "one" and told["mqueue_len"] == told["inflight"] == 0
        await client.publish("a", b"x" * 100)
        told = await events.next("client", lambda data: data["rates"]["recv_msg"])
        assert told["recv_msg"] == 1 and told["rates"]["recv_oct"] > 100
        await client.disconnect()
        told = await events.next("client", lambda data: not data["connected"])
        assert told["disconnected_at"]


RULE = {"rawsql": 'SELECT * FROM "a/#"', "actions": [{"name": "do_nothing", "params": {}}]}


async def test_rules_are_told_when_they_change() -> None:
    async with managed_node() as node:
        rule = (await node.api.post("/rules", RULE)).data
        other = (await node.api.post("/rules", RULE)).data
        (action,) = rule["actions"]
        client = await node.client("one")
        async with live(node, rules="1", every=250) as everything, live(node, rules=rule["id"], every=250) as one:
            first = await everything.next("rules")
            assert set(first) == {rule["id"], other["id"]}
            assert set(await one.next("rules")) == {rule["id"]}
            assert first[rule["id"]]["rule"]["matched"] == first[rule["id"]]["actions"][action["id"]]["success"] == 0
            await client.publish("a/b", b"x")
            for events in (everything, one):
                told = (await events.next("rules", lambda data: data[rule["id"]]["rule"]["matched"]))[rule["id"]]
                assert told["rule"]["matched"] == told["actions"][action["id"]]["success"] == 1
            assert (await node.api.delete(f"/rules/{other['id']}")).code == 0
            told = await everything.next("rules", lambda data: other["id"] in data)
            assert told[other["id"]] is None


async def test_topics_below_a_prefix() -> None:
    async with managed_node() as node:
        hook = node.server.hooks.message_publish
        before = len(hook)
        client = await node.client("one")
        async with live(node, topics="a", every=250) as events:
            assert await events.next("topics") == {"prefix": "a", "rows": [], "others": 0}
            assert len(hook) == before + 1
            await client.publish("a/b", b"first")
            await client.publish("a/b", "last ä".encode())
            await client.publish("a/c/d", b"deeper")
            await client.publish("a/bin", b"\xff\x00")
            await client.publish("a/long", b"x" * 1000)
            await client.publish("b/b", b"elsewhere")
            await client.publish("a", b"not below")
            told = await events.next("topics", lambda data: sum(row["messages"] for row in data["rows"]) == 5)
            rows = {row["level"]: row for row in told["rows"]}
            assert set(rows) == {"b", "c", "bin", "long"}
            assert (rows["b"]["topic"], rows["b"]["payload"]) == ("a/b", "last ä")
            assert (rows["b"]["messages"], rows["b"]["deeper"]) == (2, False)
            assert (rows["c"]["payload"], rows["c"]["deeper"]) == (None, True)
            assert rows["bin"]["payload"] == "0xff00" and rows["long"]["payload"] == "x" * 256
            told = await events.next("topics", lambda data: data["rows"][0]["rate"])
            assert told["rows"][0]["level"] == "b"
        await until(lambda: len(hook) == before)


async def test_topics_below_an_empty_first_level() -> None:
    async with managed_node() as node:
        client = await node.client("one")
        async with live(node, topics_below="/", every=250) as events:
            assert await events.next("topics") == {"prefix": "", "rows": [], "others": 0}
            await client.publish("/a/b", b"x")
            await client.publish("a", b"elsewhere")
            await client.publish("/c", b"y")
            told = await events.next("topics", lambda data: len(data["rows"]) == 2)
            assert {(row["level"], row["topic"]) for row in told["rows"]} == {("a", "/a"), ("c", "/c")}


async def test_two_who_watch_the_same_share_it() -> None:
    async with managed_node() as node:
        hook = node.server.hooks.message_publish
        before = len(hook)
        async with live(node, topics="", every=250) as one:
            await one.next("topics")
            async with live(node, topics="", every=250) as two:
                await two.next("topics")
                assert len(hook) == before + 1
            await until(lambda: node.management.operations.live.count == 1)
            client = await node.client("one")
            await client.publish("a/b", b"x")
            told = await one.next("topics", lambda data: data["rows"])
            assert [row["level"] for row in told["rows"]] == ["a"]
        await until(lambda: len(hook) == before)


async def test_the_end_of_a_trace() -> None:
    async with managed_node() as node:
        body = {"name": "t1", "type": "topic", "topic": "a/#"}
        assert (await node.api.post("/trace", body)).code == 0
        client = await node.client("one")
        await client.publish("a/b", b"before")
        async with live(node, trace="t1", every=250) as events:
            lines = (await events.next("trace"))["lines"]
            assert [line.endswith("payload=before") for line in lines if "[message.publish]" in line] == [True]
            await client.publish("a/b", b"after")
            lines = (await events.next("trace"))["lines"]
            assert [line.endswith("payload=after") for line in lines if "[message.publish]" in line] == [True]
            assert (await node.api.delete("/trace/t1")).code == 0
            bye = await events.next("bye")
            assert (bye["reason"], bye["code"]) == ("refused", 102)
            assert await events.ended()


async def test_a_long_trace_begins_with_a_whole_line() -> None:
    async with managed_node() as node:
        assert (await node.api.post("/trace", {"name": "t1", "type": "topic", "topic": "#"})).code == 0
        client = await node.client("one")
        for number in range(40):
            await client.publish("a", f"{number:04d} ".encode() + b"x" * 900, qos=1)
        async with live(node, trace="t1", every=250) as events:
            lines: list[str] = []
            while not any("0039 " in line for line in lines):
                lines += (await events.next("trace"))["lines"]
        assert 10 < sum("[message.publish]" in line for line in lines) < 40
        assert all(line.startswith("20") and "] one@" in line for line in lines)


async def test_events_as_rules_see_them() -> None:
    async with managed_node() as node:
        client = await node.client("one", username="ann")
        async with live(node, events="a/#", every=250) as events:
            await events.next("hello")
            await client.publish("a/b", b'{"x": 1}', qos=1)
            await client.publish("c", b"elsewhere", qos=1)
            await client.publish("a/bin", b"\xff", qos=1)
            got: list[Any] = []
            while len(got) < 2:
                got += (await events.next("events"))["events"]
            assert [each["topic"] for each in got] == ["a/b", "a/bin"]
            assert (got[0]["event"], got[0]["clientid"], got[0]["qos"]) == ("message.publish", "one", 1)
            assert (got[0]["payload"], got[1]["payload"]) == ('{"x": 1}', "/w==")
            assert got[0]["username"] == "ann" and got[0]["timestamp"]
            sql = 'SELECT payload.x AS x FROM "a/#"'
            tested = await node.api.post("/rules?test=true", {"rawsql": sql, "ctx": got[0]})
            assert tested.data == {"x": 1}
        await until(lambda: not node.engine.rule_index.wants_messages)
        assert node.server.metrics.rules_matched == 0


async def test_events_of_clients() -> None:
    async with managed_node() as node:
        hook = node.server.hooks.client_connected
        before = len(hook)
        async with live(node, events="$events/client_connected", every=250) as events:
            await events.next("hello")
            await node.client("two")
            (event,) = (await events.next("events"))["events"]
            assert (event["event"], event["clientid"]) == ("client.connected", "two")
            assert len(hook) == before + 1
        await until(lambda: len(hook) == before)


async def test_a_watched_event_changes_no_rule() -> None:
    async with managed_node() as node:
        rule = (await node.api.post("/rules", RULE)).data
        client = await node.client("one")
        async with live(node, events="#", every=250) as events:
            await events.next("hello")
            await client.publish("a/b", b"x", qos=1)
            await events.next("events")
            assert [each["id"] for each in (await node.api.get("/rules")).data] == [rule["id"]]
        await client.publish("a/b", b"x", qos=1)
        (metrics,) = (await node.api.get(f"/rules/{rule['id']}")).data["metrics"]
        assert metrics["matched"] == metrics["evaluated"] == 2 and node.server.metrics.rules_matched == 2


@pytest.mark.parametrize(
    "query, status, code",
    [
        ({"topics": "a/#"}, 400, 108),
        ({"topics_below": "a"}, 400, 108),
        ({"topics_below": "a/", "topics": "b"}, 400, 108),
        ({"events": "a/#/b"}, 400, 108),
        ({"events": "$events/nothing"}, 400, 108),
        ({"trace": "none"}, 404, 102),
    ],
    ids=str,
)
async def test_what_is_not_there_is_said_at_once(query: dict[str, Any], status: int, code: int) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/live", **query), status, code)
        live_operations = node.management.operations.live
        assert live_operations.count == 0
        assert not len(live_operations.answers.topic_watches) and not len(live_operations.answers.event_watches)


async def test_a_hundred_streams() -> None:
    async with managed_node() as node, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(live(node, figures=1, every=250)) for _ in range(100)]
        assert node.management.operations.live.count == 100
        client = await node.client("one")
        await client.publish("a", b"x", qos=1)
        for events in streams:
            assert (await events.next("figures", lambda data: data["connections"]))["connections"] == 1
        await stack.aclose()
        await until(lambda: node.management.operations.live.count == 0)


async def slow_reader(node: ManagedNode) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Transport]:
    """One who watches all messages and reads no more after ``hello``; and the node's end of his connection."""
    host, _, port = node.management.url.removeprefix("http://").partition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    request = f"GET /api/v4/live?events=%23&every=250 HTTP/1.1\r\nHost: x\r\nAuthorization: {credentials()}\r\n\r\n"
    writer.write(request.encode())
    await reader.readuntil(b"event: hello")
    listener = node.management.operations.listeners.http_listeners[0]
    own = writer.get_extra_info("sockname")
    for connection in listener._connections:
        transport = connection._transport
        if transport is not None and transport.get_extra_info("peername") == own:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            return reader, writer, transport
    raise AssertionError("there is no such connection")


async def publish_until(node: ManagedNode, is_so: Callable[[], bool]) -> None:
    """Large messages, as many as the watch takes, until it is so."""
    client = await node.client()
    async with asyncio.timeout(patience(PATIENCE)):
        while not is_so():
            await client.publish("a", b"x" * 8000, qos=1)


@pytest.mark.slow
async def test_a_slow_reader_misses_events_and_nothing_waits_for_him(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as node:
        reader, writer, transport = await slow_reader(node)
        (stream,) = node.management.operations.live._streams
        looks = 0
        real = stream.look

        async def look() -> Any:
            nonlocal looks
            looks += 1
            return await real()

        monkeypatch.setattr(stream, "look", look)
        client = await node.client()
        quiet = 0
        async with live(node, figures=1, every=250) as other, asyncio.timeout(2 * PATIENCE):
            # While nothing more goes out, further events are not even looked at.
            while quiet < 4:
                looks = 0
                for _ in range(25):
                    await client.publish("a", b"x" * 8000, qos=1)
                await other.next("figures")
                await other.next("figures")
                quiet = 0 if looks else quiet + 1
                assert transport.get_write_buffer_size() < 1_000_000
        assert looks == 0
        # He goes on where the node is now.
        async with asyncio.timeout(patience(PATIENCE)):
            while not looks:
                assert await reader.read(65_536)
        writer.close()


@pytest.mark.slow
async def test_who_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(event_stream, "SLOW", 0.5)
    caplog.set_level("INFO", "taipan.management")
    async with managed_node() as node:
        _, writer, transport = await slow_reader(node)
        await publish_until(node, lambda: transport.is_closing())
        await until(lambda: node.management.operations.live.count == 0)
        assert "live_stream_cut" in caplog.text and "reason=slow_reader" in caplog.text
        writer.close()


@pytest.mark.slow
async def test_a_slow_reader_keeps_no_node_from_stopping() -> None:
    async with managed_node() as node:
        _, writer, transport = await slow_reader(node)
        await publish_until(node, lambda: transport.get_write_buffer_size() > event_stream.MAX_UNSENT)
        async with asyncio.timeout(patience(PATIENCE)):
            await node.management.stop()
        assert node.management.operations.live.count == 0
        writer.close()
