"""The events of exhook against a provider: what it receives, in which order, and what happens while it is not there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from taipan.broker.mqtt.packets import Properties
from taipan.management.configuration.config import load
from taipan.ruleengine.config import EngineSettings, ExhookServer, ExhookSettings
from taipan.ruleengine.exhook.plugin import ExhookPlugin
from tests.support.certificates import Certificates
from tests.support.exhook_provider import Provider
from tests.support.node import Node, start_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

EVERY = [
    *(f"client.{each}" for each in ("connect", "connack", "connected", "disconnected", "subscribe", "unsubscribe")),
    *(f"session.{each}" for each in ("created", "subscribed", "unsubscribed", "resumed", "discarded")),
    *("session.takeovered", "session.terminated", "message.delivered", "message.acked", "message.dropped"),
]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    provider: Provider,
    hooks: list[str] | dict[str, list[str]] = EVERY,
    start: bool = True,
    connected: bool = True,
    **settings: Any,
) -> AsyncIterator[tuple[Node, ExhookPlugin]]:
    provider.hooks = hooks if isinstance(hooks, dict) else {hook: [] for hook in hooks}
    if start:
        await provider.start()
    node = await start_node()
    table = {"auto_reconnect": 0.2, **settings}
    servers = [ExhookServer(name="p", url=provider.url or "http://127.0.0.1:1")]
    plugin = ExhookPlugin(node.server, ExhookSettings(**{"servers": servers, **table}), EngineSettings())
    plugin.start()
    try:
        if start and connected:
            await until(lambda: plugin.providers[0].connected)
        yield node, plugin
    finally:
        await plugin.close()
        await node.stop()
        await provider.stop()


def hooked(node: Node) -> list[str]:
    """Return the hooks that the plugin has a callback for."""
    points = node.server.hooks.points
    return [hook for hook in EVERY if any("Callbacks." in each.__qualname__ for each in points[hook])]


def names(provider: Provider) -> list[str]:
    return [name for name, _ in provider.asked if not name.startswith("OnProvider")]


@pytest.mark.parametrize("version", [4, 5])
async def test_every_event_of_a_client(version: int) -> None:
    provider = Provider()
    async with running(provider) as (node, _):
        properties: Properties = {0x11: 60, 0x26: [("k", "v")]} if version == 5 else {}
        first = await node.client("c", version, clean_start=True, username="ann", properties=properties)
        await first.subscribe("$share/g/t", qos=1)
        await first.publish("t", b"payload", 1)
        got = await first.expect_publish("t", b"payload", 1)
        await first.puback(got.packet_id or 0)
        await first.publish("nobody/reads", b"lost", 0)
        await first.unsubscribe("$share/g/t")
        await first.disconnect()
        wanted = [
            "OnClientConnect", "OnSessionCreated", "OnClientConnack", "OnClientConnected", "OnClientSubscribe",
            "OnSessionSubscribed", "OnMessageDelivered", "OnMessageAcked", "OnMessageDropped",
            "OnClientUnsubscribe", "OnSessionUnsubscribed", "OnClientDisconnected",
        ]  # fmt: skip
        await until(lambda: set(wanted) <= set(names(provider)))
        found = [each for each in names(provider) if each != "OnSessionTerminated"]
        assert sorted(found) == sorted(wanted)
        assert [each for each in found if each in ("OnMessageDelivered", "OnMessageAcked")] == wanted[6:8]
        (connect,) = provider.of("OnClientConnect")
        assert (connect.conninfo.clientid, connect.conninfo.username, connect.conninfo.proto_ver) == (
            "c", "ann", str(version)
        )  # fmt: skip
        if version == 5:
            assert {each.name: each.value for each in connect.props} == {"Session-Expiry-Interval": "60", "k": "v"}
        (connack,) = provider.of("OnClientConnack")
        assert connack.result_code == "success"
        (subscribe,) = provider.of("OnClientSubscribe")
        assert [(each.name, each.qos) for each in subscribe.topic_filters] == [("$share/g/t", 1)]
        (subscribed,) = provider.of("OnSessionSubscribed")
        assert (subscribed.topic, subscribed.subopts.qos, subscribed.subopts.share) == ("t", 1, "g")
        (acked,) = provider.of("OnMessageAcked")
        message = acked.message
        assert (message.topic, message.payload, message.qos, getattr(message, "from")) == ("t", b"payload", 1, "c")
        assert message.id and message.headers["username"] == "ann" and message.headers["protocol"] == "mqtt"
        (dropped,) = provider.of("OnMessageDropped")
        assert (dropped.message.topic, dropped.reason) == ("nobody/reads", "no_subscribers")
        assert provider.of("OnClientDisconnected")[0].reason == "normal"
        assert connect.meta.node == node.server.settings.node.name
    assert [name for name, _ in provider.asked][-1] == "OnProviderUnloaded"


async def test_only_what_it_wants_with_its_filters() -> None:
    provider = Provider()
    async with running(provider, {"message.acked": ["a/#"]}) as (node, _):
        client = await node.client("c")
        await client.subscribe("#", qos=1)
        for topic in ("b/1", "a/1", "$SYS/x", "a/2"):
            await client.publish(topic, b"", 1, expect=None)
            if not topic.startswith("$"):
                await client.puback((await client.expect_publish(topic)).packet_id or 0)
        await until(lambda: len(provider.of("OnMessageAcked")) == 2)
        assert [each.message.topic for each in provider.of("OnMessageAcked")] == ["a/1", "a/2"]
        assert set(names(provider)) == {"OnMessageAcked"}
        assert hooked(node) == ["message.acked"]


async def test_the_order_of_a_client_is_kept_while_answers_are_slow() -> None:
    provider = Provider()

    async def slow(request: Any) -> Any:
        from taipan.broker.access.exhook.messages import CLASSES

        await asyncio.sleep(0.002)
        return CLASSES["EmptySuccess"]()

    provider.answers["OnMessageDropped"] = slow
    async with running(provider, ["message.dropped"]) as (node, _):
        clients = [await node.client(f"c{number}") for number in range(3)]
        for number in range(50):
            for client in clients:
                await client.publish(f"t/{number}", b"", 0)
        await until(lambda: len(provider.of("OnMessageDropped")) == 150)
        for client in clients:
            of_client = [each.message for each in provider.of("OnMessageDropped")]
            topics = [each.topic for each in of_client if getattr(each, "from") == client.client_id]
            assert topics == [f"t/{number}" for number in range(50)]


async def test_away_at_the_start_and_back() -> None:
    provider = Provider()
    await provider.start()
    await provider.stop()
    async with running(provider, ["client.connected"], start=False) as (node, plugin):
        alarm = "exhook_down/p"
        await until(lambda: alarm in node.server.alarms.active)
        await node.client("unheard")
        await provider.start()
        await until(lambda: plugin.providers[0].connected)
        assert alarm not in node.server.alarms.active
        await node.client("heard")
        await until(lambda: provider.of("OnClientConnected"))
        assert [each.clientinfo.clientid for each in provider.of("OnClientConnected")] == ["heard"]


async def test_a_provider_that_dies_under_load_and_starts_again() -> None:
    provider = Provider()
    async with running(provider, ["message.dropped"]) as (node, plugin):
        client = await node.client("c")
        for number in range(200):
            await client.publish("t", str(number).encode(), 0)
            if number == 50:
                await provider.stop()
        refusals = node.server.metrics.refusals
        await until(lambda: "exhook_dropped_down" in refusals.snapshot())
        assert refusals.snapshot()["exhook_failed_unavailable"] >= 1
        provider.asked.clear()
        await provider.start()
        await until(lambda: plugin.providers[0].connected)
        assert provider.of("OnProviderLoaded")
        await client.publish("t", b"last", 0)
        await until(lambda: [each.message.payload for each in provider.of("OnMessageDropped")][-1:] == [b"last"])


async def test_a_provider_that_starts_again_with_other_hooks_while_there_are_no_events() -> None:
    provider = Provider()
    async with running(provider, ["client.connected"]) as (node, _):
        await provider.stop()
        provider.asked.clear()
        provider.hooks = {"client.disconnected": []}
        await provider.start()
        await until(lambda: hooked(node) == ["client.disconnected"])
        client = await node.client("c")
        await client.disconnect()
        await until(lambda: provider.of("OnClientDisconnected"))
        assert names(provider) == ["OnClientDisconnected"]


async def test_a_provider_that_hangs_costs_events_and_not_clients(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider()

    async def hangs(request: Any) -> Any:
        await asyncio.sleep(60)

    provider.answers["OnMessageDropped"] = hangs
    async with running(provider, ["message.dropped"], max_queued=5, request_timeout=0.3) as (node, plugin):
        client = await node.client("c")
        for _ in range(20):
            await client.publish("t", b"", 1)
        refusals = node.server.metrics.refusals
        assert refusals.snapshot()["exhook_dropped_queue_full"] == 15
        assert plugin.providers[0]._lanes.waiting == 5
        await until(lambda: refusals.snapshot().get("exhook_failed_deadline_exceeded", 0) >= 1)
        assert "exhook_dropped provider=p reason=queue_full setting=exhook.max_queued" in caplog.text
        assert plugin.providers[0].connected
        node.ignore(lambda record: True)


async def test_a_provider_that_hangs_raises_an_alarm_until_it_answers() -> None:
    provider = Provider()
    free = asyncio.Event()

    async def hangs(request: Any) -> Any:
        from taipan.broker.access.exhook.messages import CLASSES

        await free.wait()
        return CLASSES["EmptySuccess"]()

    provider.answers["OnMessageDropped"] = hangs
    async with running(provider, ["message.dropped"], request_timeout=0.3) as (node, plugin):
        client = await node.client("c")
        await client.publish("t", b"1", 1)
        alarms = node.server.alarms
        await until(lambda: "exhook_down/p" in alarms.active)
        assert alarms.active["exhook_down/p"].details["fault"] == "deadline_exceeded"
        assert plugin.providers[0].connected  # the next event is tried
        free.set()
        await client.publish("t", b"2", 1)
        await until(lambda: "exhook_down/p" not in alarms.active)
        node.ignore(lambda record: True)


async def test_what_waits_counts_as_memory_and_is_dropped_when_memory_is_exhausted() -> None:
    provider = Provider()
    free = asyncio.Event()

    async def hangs(request: Any) -> Any:
        from taipan.broker.access.exhook.messages import CLASSES

        await free.wait()
        return CLASSES["EmptySuccess"]()

    provider.answers["OnMessageDropped"] = hangs
    async with running(provider, ["message.dropped"], request_timeout=60) as (node, _):
        client = await node.client("c")
        for _ in range(20):
            await client.publish("t", b"x" * 100_000, 1)
        memory, guard = node.server.memory, node.server.guard
        before = memory.parts()["event_plugins"]
        assert before > 20 * 100_000
        memory.base = 1_000_000
        memory._resident = lambda: memory.base
        memory.limit = int(memory.used / 0.82)
        guard.tick(0.0)
        assert node.server.broker.account.level == 1
        await client.publish("t", b"last", 1)  # its lane is busy: it does not wait while memory is short
        refusals = node.server.metrics.refusals
        assert refusals.snapshot()["exhook_dropped_memory"] == 1
        memory.limit = int(memory.used / 1.01)
        guard.tick(1.0)
        assert refusals.snapshot()["exhook_dropped_memory"] == 20
        assert memory.parts()["event_plugins"] < before // 10
        assert node.server.broker.account.level < 3
        free.set()
        await until(lambda: not memory.parts()["event_plugins"])
        node.ignore(lambda record: True)


async def test_an_error_of_the_provider_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider()

    def fails(request: Any) -> Any:
        raise RuntimeError("of the provider")

    provider.answers["OnClientConnected"] = fails
    async with running(provider, ["client.connected"]) as (node, plugin):
        await node.client("c")
        await until(lambda: node.server.metrics.refusals.snapshot().get("exhook_failed_unknown") == 1)
        assert plugin.providers[0].connected


async def test_hooks_that_are_not_sent_are_named(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider()
    caplog.set_level("INFO")
    async with running(provider, ["message.publish", "client.authenticate", "nothing", "client.connected"]):
        text = caplog.text
    assert "exhook_hook_not_sent provider=p hook=client.authenticate setting=access.exhook.url" in text
    assert "exhook_hook_not_sent provider=p hook=nothing detail=unknown" in text
    assert "exhook_connected provider=p hooks=message.publish,client.connected" in text


async def test_tls(tmp_path: Path) -> None:
    authority = Certificates(tmp_path)
    certificate, key = authority.issue("localhost")
    provider = Provider()
    provider.hooks = {"client.connected": []}
    pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
    await provider.start(grpc.ssl_server_credentials([pair]))
    node = await start_node()
    server = ExhookServer(name="p", url=f"https://localhost:{provider.port}", cacertfile=authority.ca)
    plugin = ExhookPlugin(node.server, ExhookSettings(servers=[server]), EngineSettings())
    plugin.start()
    try:
        await until(lambda: plugin.providers[0].connected)
        await node.client("c")
        await until(lambda: provider.of("OnClientConnected"))
    finally:
        await plugin.close()
        await node.stop()
        await provider.stop()


async def test_without_providers_nothing_is_hooked() -> None:
    node = await start_node()
    try:
        plugin = ExhookPlugin(node.server, ExhookSettings(), EngineSettings())
        plugin.start()
        assert hooked(node) == []
        await plugin.close()
    finally:
        await node.stop()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "nowhere"', "expected http://"),
        ('url = "http://a:1"\ncertfile = "x.pem"', "together"),
        ('url = "http://a:1"\ncacertfile = "x.pem"', "only used with https://"),
        ('url = "http://ann:secret@a:1"', "the host and the port"),
        ('url = "http://a:1/path"', "the host and the port"),
        ('url = "https://a:1"\ncacertfile = "/nothing.pem"', "/nothing.pem"),
    ],
)
async def test_settings_that_are_wrong(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "taipan.toml"
    file.write_text(f'[[exhook.servers]]\nname = "a"\n{text}\n')
    with pytest.raises(Exception, match=said):
        load(str(file), environ={})


async def test_an_introduction_that_cannot_be_decoded_is_repeated() -> None:
    provider = Provider()
    provider.answers["OnProviderLoaded"] = lambda _: b"no message of exhook"
    async with running(provider, {"client.connected": []}, connected=False) as (_, plugin):
        await until(lambda: provider.of("OnProviderLoaded"))
        assert not plugin.providers[0].connected
        del provider.answers["OnProviderLoaded"]
        await until(lambda: plugin.providers[0].connected)
