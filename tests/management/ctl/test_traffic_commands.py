"""listeners, retainer, topic-metrics, slow-subs."""

import asyncio

import pytest

from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done, refused
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


async def test_listeners() -> None:
    async with managed_node(listeners=[{"type": "tcp", "name": "default", "max_connections": 1000}]) as node:
        peer = await node.client("gone", 4)
        await node.client("here", 4)
        await done(node, "clients", "kick", "gone")
        await peer.expect_closed()
        await peer.close()
        async with asyncio.timeout(patience(40)):
            while (await ctl_json(node, "listeners"))[0]["current_conns"] > 1:
                await asyncio.sleep(0)
        address = node.address()
        lines = await done(node, "listeners")
        assert lines[:6] == [
            "mqtt:tcp:default",
            f"  listen_on       : 127.0.0.1:{address.port}",
            "  acceptors       : 1",
            "  max_conns       : 1000",
            "  current_conn    : 1",
            "  shutdown_count  : [{kicked,1}]",
        ]
        records = await ctl_json(node, "listeners")
        over_http = (await node.api.get(f"/nodes/{node.name}/listeners")).data
        assert records[0] == over_http[0] and [each.keys() for each in records] == [each.keys() for each in over_http]
        assert len(lines) == 6 * len(records)


async def test_listeners_restart() -> None:
    async with managed_node(listeners=[{"type": "tcp", "name": "default"}]) as node:
        peer = await node.client("here", 4)
        said = await done(node, "listeners", "restart", "mqtt:tcp:default")
        assert said == ["Restarted mqtt:tcp:default listener successfully."]
        await peer.ping()
        await node.client("another", 4)
        unknown = await ctl(node, "listeners", "restart", "mqtt:tcp:none")
        assert unknown == (1, "error: listener mqtt:tcp:none: not found\n", "")
        http = await ctl(node, "listeners", "restart", "http:management")
        assert http.status == 1 and http.out.startswith("error: listener http:management: ")


async def test_listeners_stop() -> None:
    listeners = [{"type": "tcp", "name": "default"}, {"type": "ws", "name": "web"}]
    async with managed_node(listeners=listeners) as node:
        peer = await node.client("here", 4)
        where = f"127.0.0.1:{node.address().port}"
        said = await done(node, "listeners", "stop", "mqtt:tcp:default")
        assert said == [f"Stop mqtt:tcp:default listener on {where} successfully."]
        await peer.ping()
        with pytest.raises(ConnectionRefusedError):
            await node.client("another", 4)
        twice = await ctl(node, "listeners", "stop", "mqtt:tcp:default")
        assert twice.status == 1 and twice.out.startswith("error: listener mqtt:tcp:default: ")
        await done(node, "listeners", "restart", "mqtt:tcp:default")
        await node.client("another", 4)
        for listen in (str(node.address().port), where):
            assert await done(node, "listeners", "stop", "mqtt:tcp", listen) == said
            await done(node, "listeners", "restart", "mqtt:tcp:default")
        web = str(node.address("ws").port)
        assert (await done(node, "listeners", "stop", "mqtt:ws", web))[0].startswith("Stop mqtt:ws:web listener on ")
        assert await refused(node, "listeners", "stop", "mqtt:tcp", "1") == "listener mqtt:tcp 1: not found"
        assert await refused(node, "listeners", "stop", "none") == "listener none: not found"
        assert (await ctl(node, "listeners", "stop", "http:management")).status == 1


async def test_retainer() -> None:
    async with managed_node() as node:
        peer = await node.client("a", 5)
        for topic in ("r/1", "r/2", "s/1"):
            await peer.publish(topic, b"x", retain=True, qos=1)
        assert await done(node, "retainer", "info") == ["retained/total: 3"]
        assert await done(node, "retainer", "topics") == ["r/1", "r/2", "s/1"]
        assert (await ctl_json(node, "retainer", "topics"))[0]["payload_size"] == 1
        assert await done(node, "retainer", "clean", "r/#") == ["Cleaned 2 retained messages"]
        assert await ctl_json(node, "retainer", "clean") == {"count": 1}
        assert await done(node, "retainer", "topics") == []
        assert (await ctl(node, "retainer", "clean", "r/#/x")).status == 1


async def test_topic_metrics() -> None:
    async with managed_node() as node:
        assert await done(node, "topic-metrics", "list") == []
        assert await done(node, "topic-metrics", "add", "t/1") == ["ok"]
        peer = await node.client("a", 5)
        await peer.publish("t/1", b"x", qos=1)
        lines = await done(node, "topic-metrics", "show", "t/1")
        assert f"{'messages.qos1.in.count':<30}: 1" in lines
        listed = await done(node, "topic-metrics", "list")
        assert listed[0] == "t/1" and listed[1:] and all(line.startswith("  ") for line in listed[1:])
        (row,) = await ctl_json(node, "topic-metrics", "list")
        assert row["topic"] == "t/1" and row["metrics"]["messages.in.count"] == 1
        assert row["metrics"].keys() == (await node.api.get("/topic-metrics/t%2F1")).data.keys()
        assert (await ctl(node, "topic-metrics", "add", "t/1")).status == 1
        assert await done(node, "topic-metrics", "del", "t/1") == ["ok"]
        assert (await ctl(node, "topic-metrics", "show", "t/1")).status == 1
        assert (await ctl(node, "topic-metrics", "del", "t/1")).status == 1


async def test_slow_subs() -> None:
    async with managed_node() as node:
        off = await ctl(node, "slow-subs", "list")
        assert off.status == 1 and "slow_subscriptions.enabled" in off.out
    async with managed_node(slow_subscriptions={"enabled": True, "threshold": 0.1}) as node:
        assert await done(node, "slow-subs", "list") == []
        slow, publisher = await node.client("slow", 4), await node.client("quick", 4)
        await slow.subscribe("t", qos=1)
        await publisher.publish("t", b"x", qos=1)
        got = await slow.expect_publish("t", acknowledge=False)
        node.clock.shift += 3
        await slow.puback(got.packet_id)
        await slow.ping()
        (line,) = await done(node, "slow-subs", "list")
        (row,) = await ctl_json(node, "slow-subs", "list")
        assert row["timespan"] >= 3000
        assert line == (
            f"SlowSub(clientid=slow, topic=t, timespan={row['timespan']}, last_update_time={row['last_update_time']})"
        )
        assert await done(node, "slow-subs", "clean") == ["ok"]
        assert await done(node, "slow-subs", "list") == []


async def test_delayed() -> None:
    async with managed_node() as node:
        peer = await node.client("porch")
        await peer.publish("$delayed/3600/door/1", b"open", qos=1)
        await peer.publish("$delayed/7200/door/2", b"\xff", qos=1)
        first, second = await done(node, "delayed", "list")
        name = first.partition("(")[2].partition(",")[0]
        assert first.startswith(f"Delayed({name}, topic=door/1, qos=1, expected_at=")
        assert first.endswith(f"clientid=porch, size=4, node={node.name})")
        assert await done(node, "delayed", "list", "--topic", "door/2", "--count", "5") == [second]
        assert (await done(node, "delayed", "show", name))[1:] == ["plain: open"]
        assert (await done(node, "delayed", "show", second.partition("(")[2].partition(",")[0], node.name))[1:] == [
            "base64: /w=="
        ]
        assert await done(node, "delayed", "del", name) == ["ok"]
        assert await refused(node, "delayed", "del", name) == f"delayed message {name}: not found"
        assert await done(node, "delayed", "list") == [second]
        assert (await ctl(node, "delayed", "list", "--topic", "a/#/b")).status == 1
        assert (await ctl(node, "delayed", "show", name, "else@where")).status == 1
