"""Server: how its parts are joined, its recurring work, reload, start and stop. Without listeners: no sockets."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker import server as module
from taipan.broker.channel import closing
from taipan.broker.config import BrokerSettings, ClusterSettings, ListenerSettings, ZoneSettings
from taipan.broker.core import session_life
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.message import Publisher
from taipan.broker.mqtt.packets import Disconnect, Will
from taipan.broker.server import Server
from tests.support.clock import Clock
from tests.support.fake_node import FakeNode
from tests.support.node import make_settings
from tests.support.wire import Publish


def test_gauges() -> None:
    node = FakeNode()
    client = node.connect("c", expiry=100)
    node.open()
    client.subscribe("a", "a/#", "$share/g/a")
    node.connect("d").subscribe("a")
    node.publish("r", b"x", retain=True)
    client.publish("$delayed/9/x")
    stats = node.server.stats
    stats.sample(node.clock.time)
    counts = stats.snapshot()
    expected = {
        "connections.count": 2,
        "live_connections.count": 3,
        "sessions.count": 2,
        "subscriptions.count": 4,
        "subscriptions.shared.count": 1,
        "subscribers.count": 3,
        "topics.count": 3,
        "retained.count": 1,
        "delayed.count": 1,
    }
    assert {name: counts[name] for name in expected} == expected


def test_retained_messages_of_who_may_no_longer_publish() -> None:
    node = FakeNode(retained={"check_source": True})
    writer = node.connect("w")
    writer.publish("mine", b"x", retain=True)
    node.connect("m", zone={"mountpoint": "m/"}).publish("theirs", b"x", retain=True)
    node.publish("ours", b"x", retain=True)
    rules = [{"allow": False, "action": "publish", "topics": ["mine", "theirs"]}]
    node.server.access.reload(msgspec.convert({"rules": rules}, type(node.server.settings.access)))
    reader = node.connect("r")
    reader.subscribe("#")
    assert [each.topic for each in reader.messages()] == ["ours"]
    assert node.metrics.refusals.snapshot() == {"retained_source_denied": 2}


def test_a_retained_message_of_a_publisher_whose_rights_are_not_known() -> None:
    """An extension may have put it there; only what has no publisher is the node's own."""
    stranger = Publisher()
    stranger.client_id = "stranger"
    stranger.username = None
    stranger.mountpoint = ""
    stranger.is_superuser = True
    node = FakeNode(retained={"check_source": True})
    node.publish("theirs", b"x", retain=True, publisher=stranger)
    node.publish("ours", b"x", retain=True)
    reader = node.connect("r")
    reader.subscribe("#")
    assert [each.topic for each in reader.messages()] == ["ours"]
    assert node.metrics.refusals.snapshot() == {"retained_source_denied": 1}


# --- recurring ------------------------------------------------------------------------------------------------------


def test_the_sweep_goes_round_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_life, "_SESSIONS_PER_SWEEP", 2)
    node = FakeNode()
    for number in range(5):
        client = node.connect(str(number), expiry=1000)
        client.subscribe("t", qos=1)
        client.vanish()
    node.publish("t", b"x", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 5})
    node.publish("r", b"x", retain=True, properties={c.MESSAGE_EXPIRY_INTERVAL: 5})
    node.clock.advance(60)
    left = []
    for _ in range(3):
        node.server._sweep(node.clock.time)
        left.append(sum(session.queued for session in node.broker.sessions))
    assert left == [3, 1, 0]
    assert node.metrics.messages_retained == 0


def test_the_retry_interval_is_for_3x_on_its_zone_only() -> None:
    """[MQTT-4.4.0-1]"""
    node = FakeNode({"retry_interval": 20})
    node.server._facts["default"] = node.facts
    clients = [node.connect("3", version=4), node.connect("5")]
    clients.append(node.connect("other", version=4, zone={"retry_interval": 0}))
    for client in clients:
        client.subscribe("t", qos=1)
    node.publish("t", b"x", 1)
    assert [len(client.messages()) for client in clients] == [1, 1, 1]
    node.clock.advance(19)
    node.server._sweep(node.clock.time)
    assert [len(client.messages()) for client in clients] == [0, 0, 0]
    node.clock.advance(2)
    node.server._sweep(node.clock.time)
    assert [[each.dup for each in client.messages()] for client in clients] == [[True], [], []]


# --- start, stop ----------------------------------------------------------------------------------------------------


def server_without_listeners(**config: Any) -> Server:
    config.setdefault("durability", {"level": "memory"})
    return Server(msgspec.convert(config, BrokerSettings), Clock())  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_start_and_stop() -> None:
    server = server_without_listeners()
    await server.start()
    fired: list[str] = []
    server.timers.after(5, lambda: fired.append("x"))
    server.clock.advance(5)  # type: ignore[attr-defined]
    await server.tick()
    assert fired == ["x"]
    await server.stop()
    assert server.context.closing
    assert server.ticker._handle is None


@pytest.mark.asyncio
async def test_stopping_says_goodbye_and_publishes_wills(caplog: pytest.LogCaptureFixture) -> None:
    """[MQTT-3.1.2-8]; delays end with the sessions, which end with the node where nothing is on disk."""
    node = FakeNode()
    vanished = node.connect("v", will=Will("will", b"late", 0, False, {c.WILL_DELAY_INTERVAL: 100}), expiry=1000)
    vanished.vanish()
    watcher = node.connect("watcher", version=4)
    watcher.subscribe("will")
    client = node.connect("c", will=Will("will", b"gone", 0, False, {c.WILL_DELAY_INTERVAL: 100}), expiry=1000)
    await node.server.start()
    with caplog.at_level(logging.INFO):
        stopping = asyncio.ensure_future(node.server.stop())
        await asyncio.sleep(0)
        assert [each.reason_code for each in client.received()] == [rc.SERVER_SHUTTING_DOWN]  # type: ignore[union-attr]
        assert watcher.payloads() == [b"late", b"gone"]
        for each in (client, watcher):
            each.transport.feed_eof()
        node.run()
        await stopping
    assert node.server.connections == {}
    assert "server_stopped sessions=2 retained=0" in caplog.text


@pytest.mark.asyncio
async def test_wills_of_a_crowd_reach_who_is_there_to_see_them() -> None:
    """[MQTT-3.1.2-8]: more than a loop turn delivers."""
    node = FakeNode()
    watchers = [node.connect(f"watcher-{number}", version=4) for number in range(30)]
    for watcher in watchers:
        watcher.subscribe("will")
    clients = [node.connect(f"c{number}", will=Will("will", b"%d" % number)) for number in range(400)]
    await node.server.start()
    stopping = asyncio.ensure_future(node.server.stop())
    while not all(each.closed for each in watchers):
        await asyncio.sleep(0)
    for watcher in watchers:
        assert sorted(map(int, watcher.payloads())) == list(range(400))
    for each in (*clients, *watchers):
        each.transport.feed_eof()
    node.run()
    await stopping
    assert node.server.connections == {}


@pytest.mark.asyncio
async def test_stopping_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.0)
    node = FakeNode()
    client = node.connect()
    await node.server.start()
    await node.server.stop()
    assert client.transport.aborted
    node.run()
    assert node.server.connections == {}


# --- reload ---------------------------------------------------------------------------------------------------------


def test_reload_takes_rules_and_limits() -> None:
    node = FakeNode()
    client = node.connect()
    settings = msgspec.structs.replace(
        node.server.settings,
        access=msgspec.convert({"no_match": "deny"}, type(node.server.settings.access)),
        retained=msgspec.convert({"max_messages": 1, "check_source": True}, type(node.server.settings.retained)),
    )
    node.server.reload(settings)
    assert node.server.settings is settings
    assert node.broker.retaining.check_source and not node.broker.refusing
    client.publish("t", b"x", 1, 1)
    assert [each.reason_code for each in client.received()] == [rc.NOT_AUTHORIZED]  # type: ignore[union-attr]
    node.publish("a", b"x", retain=True)
    node.publish("b", b"x", retain=True)
    assert len(node.broker.retained) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"node": {"name": "other@here"}},
        {"delayed": {"max_messages": 1}},
        {"shared": {"strategy": "sticky"}},
        {"sys_topics": {"interval": 5}},
        {"listeners": [{"name": "new", "type": "tcp", "bind": "127.0.0.1:1"}]},
        {"cluster": {"servers": ["nats://127.0.0.1:4222"]}},
    ],
)
def test_reload_refuses_what_needs_a_restart(change: dict[str, Any]) -> None:
    node = FakeNode()
    before = node.server.settings
    kinds = {"listeners": tuple[ListenerSettings, ...], "cluster": ClusterSettings}
    keys = {
        name: msgspec.convert(value, kinds.get(name, type(getattr(before, name)))) for name, value in change.items()
    }
    (name,) = change
    named = "listeners new" if name == "listeners" else rf"\[{name}\]"
    with pytest.raises(ValueError, match=rf"^{named}: restart the node to "):
        node.server.reload(msgspec.structs.replace(before, **keys))
    assert node.server.settings is before


def test_a_publish_after_goodbye_is_nothing() -> None:
    node = FakeNode()
    client = node.connect()
    closing.shut_down(client.channel)
    assert [type(each) for each in client.received()] == [Disconnect]
    client.feed(Publish("t"))
    assert node.metrics.messages_publish == 0


@pytest.mark.parametrize(("level", "most"), [("memory", 1000), ("disk", 100_000)])
def test_how_many_messages_wait_depends_on_the_level(level: str, most: int, tmp_path: Path) -> None:
    """Unless the zone says a number."""
    settings = make_settings(node={"data_dir": str(tmp_path)}, durability={"level": level})
    server = Server(settings)
    assert server.limits_of(ZoneSettings()).max_queued_messages == most
    assert server.limits_of(ZoneSettings(max_queued_messages=0)).max_queued_messages == 0
