"""alarms, traces, trace, explain."""

import pytest

from taipan.broker.access.password_hash import ScryptHash
from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done, refused

pytestmark = pytest.mark.asyncio


async def test_alarms() -> None:
    async with managed_node() as node:
        assert await done(node, "alarms", "list") == []
        node.server.alarms.activate("hot", "it is hot")
        (record,) = node.server.alarms.records()
        since = record["activate_at"]
        line = f"Alarm(hot, activated=true, activate_at={since}, deactivate_at=infinity, message=it is hot)"
        assert await done(node, "alarms", "list") == [line]
        assert await done(node, "alarms", "list", "deactivated") == []
        assert await done(node, "alarms", "deactivate", "hot") == ["ok"]
        assert await done(node, "alarms", "list", "activated") == []
        (row,) = await ctl_json(node, "alarms", "list", "deactivated")
        assert row["name"] == "hot" and isinstance(row["deactivate_at"], int)
        assert (await ctl(node, "alarms", "deactivate", "hot")).status == 1
        assert await done(node, "alarms", "clean") == ["ok"]
        assert await done(node, "alarms", "list", "all") == []
        assert (await ctl(node, "alarms", "list", "some")).status == 1


async def test_alarm_targets() -> None:
    async with managed_node() as node:
        assert await done(node, "alarms", "targets") == []
        await node.management.operations.alarm_targets.add("ops", "mqtt", True, ["*"], {"topic": "ops/alarms"})
        subscriber = await node.client("s")
        await subscriber.subscribe("ops/alarms")
        assert await done(node, "alarms", "test", "ops") == ["ok"]
        assert b"This is a test" in (await subscriber.expect_publish()).payload
        line = "AlarmTarget(ops, type=mqtt, state=ready, sent=0, failed=0, dropped=0, waiting=0, last_error=-)"
        assert await done(node, "alarms", "targets") == [line]
        assert (await ctl(node, "alarms", "test", "nothing")).status == 1


async def test_traces() -> None:
    async with managed_node() as node:
        assert await done(node, "traces", "list") == ["Cluster Trace is empty"]
        said = await done(node, "traces", "start", "mine", "clientid", "c", "60")
        assert said == ["Cluster_trace clientid c mine successfully"]
        await node.pass_time(1)
        assert await done(node, "traces", "list") == [f"Trace(mine: clientid=c, running, LogSize:{node.name}:0)"]
        again = await ctl(node, "traces", "start", "mine", "clientid", "d")
        assert again.status == 1 and again.out.startswith("error: trace ")
        assert (await ctl(node, "traces", "start", "other", "shoe", "d")).status == 1
        assert (await ctl(node, "traces", "start", "other", "topic", "t/#/x")).status == 1
        assert await done(node, "traces", "stop", "mine") == ["Stop cluster_trace mine successfully"]
        assert (await ctl_json(node, "traces", "list"))[0]["status"] == "stopped"
        assert await done(node, "traces", "delete", "mine") == ["Del cluster_trace mine successfully"]
        for words in (("stop", "mine"), ("delete", "mine")):
            unknown = await ctl(node, "traces", *words)
            assert unknown == (1, "error: trace mine: not found\n", "")


@pytest.mark.parametrize("kind, name", [("client", "clientid"), ("topic", "topic"), ("ip_address", "ip_address")])
async def test_trace(kind: str, name: str) -> None:
    async with managed_node() as node:
        value = "127.0.0.1" if kind == "ip_address" else "x"
        assert await done(node, "trace", "list") == []
        assert await done(node, "trace", "start", kind, value, "mine") == [f"trace {name} {value} successfully"]
        path = node.server.tracing.path("mine")
        assert await done(node, "trace", "list") == [f"Trace({name}={value}, level=debug, destination={path})"]
        assert await done(node, "trace", "stop", kind, value) == [f"stop tracing {name} {value} successfully"]
        assert await done(node, "trace", "list") == []
        assert await refused(node, "trace", "stop", kind, value) == f"trace {kind} {value}: no such trace runs"


async def test_explain_says_why_and_what_to_do_below_each_event() -> None:
    users = [{"username": "u", "password_hash": str(ScryptHash.create(b"right", n=16))}]
    async with managed_node(access={"users": users}, zone={"allow_anonymous": False}) as node:
        await node.peer(4).connect("c", expect=5)
        lines = await done(node, "explain", "client", "c")
        assert lines[:2] == ["Client(c, connected=false)", "no session"]
        assert lines[2].endswith(
            " Event(event=client_refused, reason=not_authorized, setting=allow_anonymous, count=1)"
        )
        assert lines[3] == "  the client gave no username, and the listener requires one"
        assert lines[4].startswith("  Give the client a username and a password")
        assert lines[5:] == ["  detail: anonymous_not_allowed"]


async def test_explain() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        await peer.subscribe("t/+", "$share/g/t/1", qos=1)
        await peer.publish("t/1", b"abc", retain=True)
        await peer.ping()
        lines = await done(node, "explain", "topic", "t/1")
        assert lines[0] == "Topic(t/1, receivers=1, delayed=false)"
        assert "Receiver(c, connected=true, topic=t/+, qos=1)" in lines
        assert any(line.startswith("Shared(") and "members=c" in line for line in lines)
        assert "Retained(qos=0, octets=3)" in lines
        lines = await done(node, "explain", "client", "c")
        assert lines[0] == "Client(c, connected=true)" and lines[1].startswith("Session(created_at=")
        assert (await ctl_json(node, "explain", "client", "c"))["clientid"] == "c"
        unknown = await refused(node, "explain", "client", "nobody")
        assert unknown.startswith("client nobody: no session and no recorded events.") and "listener_limit" in unknown
        assert (await ctl(node, "explain", "topic", "t/#")).status == 1


async def test_silences_and_thresholds() -> None:
    async with managed_node() as node:
        (name,) = await done(node, "silences", "add", "resource/*", "60", "--reason", "work")
        (line,) = await done(node, "silences", "list")
        assert line.startswith(f"Silence({name}, alarms=resource/*, until=") and line.endswith("by=-, reason=work)")
        assert (await node.api.get(f"/alarm_silences/{name}")).data["reason"] == "work"
        assert await done(node, "silences", "del", name) == ["ok"]
        assert await refused(node, "silences", "del", name) == f"silence {name}: not found"
        assert "Seconds" in (await ctl(node, "silences", "add", "*", "0")).out
        assert await done(node, "thresholds", "set", "memory", "80.5") == ["ok"]
        lines = await done(node, "thresholds", "list")
        assert next(each for each in lines if "memory" in each).startswith("Threshold(memory, above=80.5, current=")
        assert await done(node, "thresholds", "set", "memory", "off") == ["ok"]
        assert "Threshold(memory, above=off" in "".join(await done(node, "thresholds", "list"))
        assert await refused(node, "thresholds", "set", "size", "1") == "threshold size: not found"
        for text in ("-1", "nan", "1e400", "much", ""):
            assert (await ctl(node, "thresholds", "set", "memory", text)).status == 1


async def test_reading_is_no_change_of_the_audit() -> None:
    async with managed_node() as node:
        for words in ("alarms targets", "silences list", "thresholds list", "log show", "delayed list", "mgmt list"):
            await done(node, *words.split())
        assert (await node.api.get("/audit")).data == []
