"""taipan.amqtt: aMQTT's configuration and plugins on a node. What both brokers can do is asked of aMQTT's, too."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from amqtt.broker import Broker as TheirBroker
from amqtt.contexts import BrokerConfig, ListenerConfig
from amqtt.errors import BrokerError, PluginImportError, PluginInitError, PluginLoadError
from transitions import MachineError

from taipan import amqtt_plugins as calls
from taipan.amqtt import Broker
from taipan.broker.mqtt.constants import V4
from tests.support.amqtt_broker import shut_down
from tests.support.certificates import Certificates
from tests.support.node import free_port
from tests.support.peer import Address, Closed, Peer
from tests.support.waiting import until

from . import amqtt_plugins as plugins

HERE = plugins.__name__
ANONYMOUS = "amqtt.plugins.authentication.AnonymousAuthPlugin"
USERS = {f"{HERE}.Users": {"users": {"ann": "secret", "ben": "1234"}}}
BOTH = pytest.mark.parametrize("broker_type", [Broker, TheirBroker], ids=["taipan", "amqtt"])

pytestmark = [
    pytest.mark.asyncio,
    # What aMQTT says of older forms of its configuration, and of its packages.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def told() -> Iterator[list[tuple[Any, ...]]]:
    plugins.told.clear()
    yield plugins.told
    plugins.told.clear()


@asynccontextmanager
async def running(config: dict[str, Any], broker_type: Any = Broker, **listener: Any) -> AsyncIterator[Any]:
    """The broker; ``port`` is where it listens."""
    port = free_port()
    listeners = {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}", **listener}}
    broker = broker_type({"listeners": listeners, **config})
    await broker.start()
    broker.port = port
    try:
        yield broker
    finally:
        await (broker.shutdown() if broker_type is Broker else shut_down(broker))


async def connect(broker: Any, client_id: str, expect: int = 0, transport: str = "tcp", **more: Any) -> Peer:
    address = Address("127.0.0.1", broker.port, transport, "/")
    peer = Peer(address, V4, more.pop("ssl", None))
    await peer.connect(client_id, expect=expect, **more)
    if expect:
        await peer.close()
    return peer


def refusals(broker: Broker) -> dict[str, int]:
    assert broker.node is not None
    return broker.node._server.metrics.refusals.snapshot()


# ---------------------------------------------------------------- configuration


@BOTH
@pytest.mark.parametrize(
    "given",
    [
        {"plugins": {ANONYMOUS: {"allow_anonymous": True}}},
        {"plugins": [ANONYMOUS]},
        {"plugins": [{ANONYMOUS: {"allow_anonymous": True}}]},
        {"auth": {"plugins": ["auth_anonymous"], "allow-anonymous": True}},
    ],
    ids=["dictionary", "list of names", "list of dictionaries", "entry points"],
)
async def test_both_forms_of_plugins(broker_type: Any, given: dict[str, Any]) -> None:
    async with running(given, broker_type) as broker:
        peer = await connect(broker, "ann")
        await peer.subscribe("a")
        await peer.publish("a", b"1", qos=1)
        assert (await peer.expect_publish("a")).payload == b"1"
        await peer.close()


@BOTH
async def test_no_plugins_let_nobody_in(broker_type: Any) -> None:
    async with running({"plugins": {}}, broker_type) as broker:
        await connect(broker, "ann", expect=5)


async def test_a_configuration_as_an_object_with_listeners_of_both_types_and_a_limit() -> None:
    tcp, web = free_port(), free_port()
    config = BrokerConfig(
        listeners={
            "default": ListenerConfig(bind=f"127.0.0.1:{tcp}", max_connections=1),
            "web": ListenerConfig(type="ws", bind=f"127.0.0.1:{web}"),  # type: ignore[arg-type]
        },
        plugins={ANONYMOUS: {}},
    )
    broker: Any = Broker(config)
    await broker.start()
    broker.port = tcp
    first = await connect(broker, "first")
    refused = Peer(Address("127.0.0.1", tcp), V4)
    with pytest.raises((AssertionError, Closed, OSError)):
        await refused.connect("second")
    await refused.close()
    broker.port = web
    second = await connect(broker, "second", transport="ws")
    await second.close()
    await first.close()
    await broker.shutdown()


async def test_tls_with_its_authorities_as_a_text(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    files = {"certfile": certfile, "keyfile": keyfile, "cadata": Path(certificates.ca).read_text()}
    async with running({"plugins": {ANONYMOUS: {}}}, ssl=True, **files) as broker:
        peer = await connect(broker, "ann", transport="ssl", ssl=ssl.create_default_context(cafile=certificates.ca))
        await peer.close()


@pytest.mark.parametrize(
    "bind, expected",
    [
        ("", "0.0.0.0:1883"),
        ("1884", "0.0.0.0:1884"),
        (":1884", "0.0.0.0:1884"),
        ("10.0.0.1", "10.0.0.1:1883"),
        ("localhost:1884", "127.0.0.1:1884"),
        ("[::1]:1884", "[::1]:1884"),
        ("[::1]", "[::1]:1883"),
    ],
)
async def test_each_form_of_an_address(bind: str, expected: str) -> None:
    from taipan.amqtt_settings import _bind

    assert _bind(bind, 1883) == expected


@pytest.mark.parametrize(
    "listener, words",
    [
        ({"bind": "127.0.0.1:x"}, "Invalid port value in bind value: 127.0.0.1:x"),
        ({"ssl": True}, "listener 'default': 'certfile' or 'keyfile' configuration parameter missing"),
        ({"type": "external"}, "listener 'default': type external is not supported"),
        ({"bind": None}, "no listener has an address"),
    ],
)
async def test_what_cannot_start_says_why(listener: dict[str, Any], words: str) -> None:
    listeners = {"default": {"type": "tcp", "bind": "127.0.0.1:0", **listener}}
    broker = Broker({"listeners": listeners, "plugins": {}})
    with pytest.raises(BrokerError, match=words):
        await broker.start()
    assert broker.transitions.state == "not_started" and broker.node is None


@BOTH
@pytest.mark.parametrize(
    "name, error",
    [
        (f"{HERE}.Nothing", PluginImportError),
        ("nowhere.at.All", PluginImportError),
        (f"{HERE}.NoPlugin", PluginLoadError),
        (f"{HERE}.FailsAtInit", PluginInitError),
    ],
)
async def test_a_plugin_that_cannot_be_loaded_is_one_error(broker_type: Any, name: str, error: type) -> None:
    with pytest.raises(error):
        broker_type({"plugins": {name: {}}})


async def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with running({"timeout_disconnect_delay": 2, "plugins": {f"{HERE}.Packets": {}}}):
            pass
    assert "amqtt_setting_ignored setting=timeout-disconnect-delay used=keep_alive_multiplier" in caplog.messages
    assert "amqtt_event_not_sent plugin=Packets event=on_mqtt_packet_received" in caplog.messages


# ----------------------------------------------------------------------- access


@BOTH
async def test_an_auth_plugin_allows_and_denies(broker_type: Any) -> None:
    async with running({"plugins": USERS}, broker_type) as broker:
        peer = await connect(broker, "one", username="ann", password=b"secret")
        await peer.close()
        await connect(broker, "two", expect=5 if broker_type is TheirBroker else 4, username="ann", password=b"wrong")
        await connect(broker, "three", expect=5)


@BOTH
async def test_all_auth_plugins_have_to_agree(broker_type: Any) -> None:
    async with running({"plugins": {ANONYMOUS: {"allow_anonymous": True}, **USERS}}, broker_type) as broker:
        await (await connect(broker, "no-answer-of-one")).close()
        await connect(broker, "two", expect=5 if broker_type is TheirBroker else 4, username="ann", password=b"wrong")


async def test_a_password_that_is_no_text_is_refused() -> None:
    async with running({"plugins": USERS}) as broker:
        await connect(broker, "one", expect=4, username="ann", password=b"\xff")


async def test_an_auth_plugin_that_raises_refuses_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with running({"plugins": {ANONYMOUS: {}, f"{HERE}.Fails": {}}}) as broker:
        await connect(broker, "one", expect=3)
        assert refusals(broker)["authenticator_failed"] == 1
    assert any("authenticator_failed" in each for each in caplog.messages)


@BOTH
async def test_a_topic_plugin_allows_and_denies(broker_type: Any) -> None:
    async with running({"plugins": {**USERS, f"{HERE}.Writers": {}}}, broker_type) as broker:
        ann = await connect(broker, "a", username="ann", password=b"secret")
        ben = await connect(broker, "b", username="ben", password=b"1234")
        await ben.subscribe("open/#", expect=[0])
        await ben.subscribe("secret/#", expect=[0x80])
        await ben.publish("open/1", b"not allowed")
        await ben.ping()
        await ann.publish("open/1", b"allowed")
        assert (await ben.expect_publish("open/1")).payload == b"allowed"
        await ann.close()
        await ben.close()


async def test_a_topic_plugin_is_asked_each_time(told: list[Any]) -> None:
    async with running({"plugins": {**USERS, f"{HERE}.Writers": {}}}) as broker:
        ann = await connect(broker, "a", username="ann", password=b"secret")
        for _ in range(3):
            await ann.publish("t", b"", qos=1)
        assert told == [("asked", "a", "t", "publish")] * 3
        await ann.close()


async def test_a_topic_plugin_that_raises_refuses_and_is_counted() -> None:
    async with running({"plugins": {**USERS, f"{HERE}.Writers": {}}}) as broker:
        ann = await connect(broker, "a", username="ann", password=b"secret")
        await ann.subscribe("fails", expect=[0x80])
        assert refusals(broker)["authorizer_failed"] == 1
        await ann.close()


@BOTH
async def test_the_configuration_of_older_releases_with_rules(broker_type: Any, tmp_path: Path) -> None:
    config = {
        "auth": {"plugins": ["auth_anonymous"], "allow-anonymous": True},
        "topic-check": {
            "enabled": True,
            "plugins": ["topic_acl"],
            "acl": {"anonymous": ["a/#"], "ann": ["b"]},
            "publish-acl": {"anonymous": ["a/#"]},
        },
    }
    async with running(config, broker_type) as broker:
        peer = await connect(broker, "one")
        await peer.subscribe("a/b", expect=[0])
        await peer.subscribe("b", expect=[0x80])
        await peer.close()


# ----------------------------------------------------------------------- events


@BOTH
async def test_events_come_in_order(broker_type: Any, told: list[Any]) -> None:
    async with running({"plugins": {**USERS, f"{HERE}.Events": {}}}, broker_type) as broker:
        peer = await connect(broker, "one", username="ann", password=b"secret")
        await until(lambda: told[-1][0] == "connected")
        await peer.subscribe("a", qos=1)
        await until(lambda: told[-1][0] == "subscribed")
        await peer.publish("a", b"1", qos=1, retain=True)
        await until(lambda: ("retained", None, "a", b"1") in told)
        await peer.unsubscribe("a")
        await until(lambda: told[-1][0] == "unsubscribed")
        await peer.disconnect()
        await until(lambda: told[-1][0] == "disconnected")
        await peer.close()
    assert told == [
        ("pre_start",),
        ("retained", None, "hello", b"before"),
        ("post_start",),
        ("connected", "one", "ann"),
        ("subscribed", "one", "a", 1),
        ("received", "one", "a", b"1", 1),
        ("broadcast", "one", "a", True),
        ("retained", None, "a", b"1"),
        ("unsubscribed", "one", "a"),
        ("disconnected", "one", "ann"),
        ("pre_shutdown",),
        ("post_shutdown",),
        ("close",),
    ]


@BOTH
async def test_a_plugin_publishes_and_retains(broker_type: Any) -> None:
    async with running({"plugins": {ANONYMOUS: {}, f"{HERE}.Events": {}}}, broker_type) as broker:
        peer = await connect(broker, "one")
        await peer.subscribe("hello")
        assert (await peer.expect_publish("hello")).payload == b"before"
        await peer.subscribe("answer", qos=1)
        await peer.publish("ask", b"")
        assert (await peer.expect_publish("answer", qos=1)).payload == b"1"
        assert {name: [qos for _, qos in who] for name, who in broker.subscriptions.items()} == {
            "hello": [0],
            "answer": [1],
        }
        assert list(broker.retained_messages) == ["hello"] and list(broker.sessions) == ["one"]
        await peer.close()


async def test_a_plugin_subscribes_somebody_who_is_away() -> None:
    async with running({"plugins": {**USERS, f"{HERE}.Events": {}, f"{HERE}.Writers": {}}}) as broker:
        context = broker.plugins_manager.context
        await context.add_subscription("away", "a", 1)
        await context.add_subscription("away", "secret/a", 1)
        assert context.get_session("away").transitions.state == "disconnected"
        ann = await connect(broker, "one", username="ann", password=b"secret")
        await ann.publish("a", b"waits", qos=1)
        away = await connect(broker, "away", clean_start=False, username="ben", password=b"1234")
        assert (await away.expect_publish("a")).payload == b"waits"
        assert list(context.subscriptions) == ["a"]
        await ann.close()
        await away.close()


async def test_a_plugin_that_raises_at_an_event_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with running({"plugins": {ANONYMOUS: {}, f"{HERE}.FailsAtEvents": {}, f"{HERE}.Events": {}}}) as broker:
        peer = await connect(broker, "one")
        await until(lambda: ("connected", "one", None) in plugins.told)
        assert refusals(broker)["amqtt_plugin_failed"] == 1
        await peer.close()
    assert "amqtt_plugin_failed plugin=FailsAtEvents event=on_broker_client_connected" in caplog.messages


async def test_calls_that_do_not_end_are_bounded_and_cancelled(
    monkeypatch: pytest.MonkeyPatch, told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "MAX_CALLS", 2)
    async with running({"plugins": {ANONYMOUS: {}, f"{HERE}.Waits": {}}}) as broker:
        peer = await connect(broker, "one")
        monkeypatch.setattr("taipan.amqtt._TIMEOUT", 0.01)  # now: that of logins is another
        for _ in range(5):
            await peer.publish("a", b"", qos=1)
        assert refusals(broker)["amqtt_event_dropped"] == 3
        await peer.close()
    assert told == [("cancelled",)] * 2
    assert any("amqtt_event_dropped" in each for each in caplog.messages)


async def test_its_tree_below_sys_has_the_figures_of_the_node() -> None:
    config = {"plugins": {ANONYMOUS: {}, "amqtt.plugins.sys.broker.BrokerSysPlugin": {"sys_interval": 1}}}
    async with running(config) as broker:
        peer = await connect(broker, "one")
        await peer.subscribe("$SYS/broker/messages/publish/received", "$SYS/broker/clients/connected")
        await peer.publish("a", b"", qos=1)
        got = {each.topic: each.payload for each in [await peer.expect_publish(None) for _ in range(2)]}
        assert got == {"$SYS/broker/messages/publish/received": b"1", "$SYS/broker/clients/connected": b"1"}
        await peer.close()


# ------------------------------------------------------------------ start, stop


@BOTH
async def test_start_and_shutdown_in_each_state(broker_type: Any) -> None:
    listeners = {"default": {"type": "tcp", "bind": f"127.0.0.1:{free_port()}"}}
    broker = broker_type({"listeners": listeners, "plugins": {ANONYMOUS: {}}})
    assert broker.transitions.state == "new"
    with pytest.raises(MachineError):
        await broker.shutdown()
    await broker.start()
    assert broker.transitions.is_started()
    with pytest.raises(BrokerError, match="can't be started"):
        await broker.start()
    await broker.shutdown()
    assert broker.transitions.is_stopped()
    await broker.start()
    await broker.shutdown()


async def test_a_port_in_use_is_one_error_and_leaves_nothing() -> None:
    before = asyncio.all_tasks()
    async with running({"plugins": {}}) as broker:
        listeners = {"default": {"type": "tcp", "bind": f"127.0.0.1:{broker.port}"}}
        second = Broker({"listeners": listeners, "plugins": {}})
        with pytest.raises(BrokerError, match="can't be started"):
            await second.start()
        assert second.transitions.state == "not_started"
    assert asyncio.all_tasks() == before


async def test_shutdown_sends_clients_away_and_leaves_no_task(told: list[Any]) -> None:
    before = asyncio.all_tasks()
    async with running({"plugins": {ANONYMOUS: {}, f"{HERE}.Events": {}}}) as broker:
        peer = await connect(broker, "one")
    await peer.expect_closed()
    await peer.close()
    assert ("disconnected", "one", None) in told
    assert told[-1] == ("close",) and broker.sessions == {}
    assert asyncio.all_tasks() == before
    with pytest.raises(BrokerError, match="not started, it is stopped"):
        await broker.internal_message_broadcast("a", b"")


async def test_cancelled_while_a_plugin_is_told_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stops all the same: nobody could stop it later."""
    port = free_port()
    broker = Broker({"listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}, "plugins": {}})
    await broker.start()
    told = asyncio.Event()

    async def never(*event: Any, **more: Any) -> None:
        told.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(broker.plugins_manager, "fire_event", never)
    stopping = asyncio.ensure_future(broker.shutdown())
    await told.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)
    server.close()
    await server.wait_closed()
