"""taipan.Node: start, publish, subscribe, stop, and what misuse is told."""

import asyncio
import base64
import gc
import logging
import signal
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import taipan
from taipan import ConfigError, Message, Node, NodeError
from taipan.broker.mqtt.packets import Will
from taipan.ruleengine.engine import RuleEngine
from tests.support.node import free_port
from tests.support.peer import Address, Peer

MEMORY: dict[str, Any] = {"listeners": ["tcp://127.0.0.1:0"], "durability": "memory"}


async def client(node: Node, client_id: str = "", version: int = 5, **connect: Any) -> Peer:
    peer = Peer(Address(node.host, node.port), version)
    await peer.connect(client_id, **connect)
    return peer


def test_every_public_name_is_there_with_a_docstring() -> None:
    assert taipan.__all__ == sorted(taipan.__all__)
    for name in taipan.__all__:
        assert getattr(taipan, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'Nod'"):
        _ = taipan.Nod


@pytest.mark.asyncio
async def test_publish_and_subscribe() -> None:
    async with Node(**MEMORY) as node:
        await node.publish("a/kept", "before", retain=True)
        subscription = node.subscribe("a/#")
        peer = await client(node, "ann")
        await peer.publish("a/b", b"1", qos=1)
        await node.publish("a/c", b"2", 2, properties={"content_type": "text/plain", "user_property": [("k", "v")]})
        await node.publish("b", b"not wanted")
        kept, of_client, own = [await anext(subscription) for _ in range(3)]
        assert kept == Message("a/kept", b"before", retain=True)
        assert (of_client.topic, of_client.payload, of_client.qos, of_client.client_id) == ("a/b", b"1", 1, "ann")
        assert own.properties == {"content_type": "text/plain", "user_property": [("k", "v")]}
        assert own.qos == 2 and own.client_id == "" and own.timestamp > 0
        await peer.close()


@pytest.mark.asyncio
async def test_what_it_publishes_reaches_clients() -> None:
    async with Node(**MEMORY) as node:
        peer = await client(node)
        await peer.subscribe("a/+", qos=1)
        await node.publish("a/b", b"payload", qos=1)
        got = await peer.expect_publish("a/b")
        assert (got.topic, got.payload, got.qos) == ("a/b", b"payload", 1)
        await peer.close()


@pytest.mark.asyncio
async def test_a_subscription_ends_with_the_node_and_hands_out_what_waits() -> None:
    async with Node(**MEMORY) as node:
        waiting, full = node.subscribe("a"), node.subscribe("a", max_queued=2)
        reader = asyncio.ensure_future(_read(node.subscribe("nothing")))
        for number in range(3):
            await node.publish("a", str(number))
    assert [each.payload for each in [m async for m in waiting]] == [b"0", b"1", b"2"]
    assert [each.payload for each in [m async for m in full]] == [b"0", b"1"]
    assert full.dropped == 1 and waiting.dropped == 0
    assert node._server.metrics.refusals.snapshot()["subscriber_queue_full"] == 1
    assert await reader == []


async def _read(subscription: taipan.Subscription) -> list[Message]:
    return [message async for message in subscription]


@pytest.mark.asyncio
async def test_a_will_is_seen_while_the_node_stops() -> None:
    async with Node(**MEMORY) as node:
        subscription = node.subscribe("will")
        peer = await client(node, "ann", will=Will("will", b"gone"))
    assert [each.payload for each in await _read(subscription)] == [b"gone"]
    await peer.close()


@pytest.mark.asyncio
async def test_many_retained_messages_come_as_they_are_taken() -> None:
    async with Node(**MEMORY) as node:
        for number in range(1500):
            await node.publish(f"r/{number}", b"x", retain=True)
        subscription = node.subscribe("r/#", max_queued=10)
        topics = {(await anext(subscription)).topic for _ in range(1500)}
        assert len(topics) == 1500 and subscription.dropped == 0


@pytest.mark.asyncio
async def test_a_shared_subscription_takes_its_part() -> None:
    async with Node(**MEMORY, shared={"strategy": "round_robin"}) as node:
        one, other = node.subscribe("$share/g/a"), node.subscribe("$share/g/a")
        for number in range(4):
            await node.publish("a", str(number))
    assert len(await _read(one)) == len(await _read(other)) == 2


@pytest.mark.asyncio
async def test_a_subscription_that_nobody_has_ends() -> None:
    async with Node(**MEMORY) as node:
        router = node._server.broker.router
        async for _ in _endless(node):
            break
        gc.collect()
        while router.subscription_count:
            await asyncio.sleep(0)
        async with node.subscribe("a") as subscription:
            assert router.subscription_count == 1
        assert router.subscription_count == 0
        subscription.close()  # a second time changes nothing


async def _endless(node: Node) -> Any:
    subscription = node.subscribe("a")
    await node.publish("a")
    yield await anext(subscription)


@pytest.mark.asyncio
async def test_a_subscriber_is_no_client() -> None:
    told: list[object] = []
    async with Node(**MEMORY) as node:
        node.on_session_subscribed(lambda *each: told.append(each))
        node.on_session_created(told.append)
        with pytest.raises(TypeError, match=r"session\.created: a hook cannot wait"):
            node.on_session_created(_never)
        async with node.subscribe("a"):
            assert len(node._server.broker.sessions) == 0
    assert told == []


async def _never(client: taipan.Client) -> None:
    raise AssertionError("is not called")


# --------------------------------------------------------------------- misuse


def test_a_wrong_keyword_is_one_sentence() -> None:
    with pytest.raises(TypeError, match=r'^Node has no keyword "listners"; did you mean "listeners"\?$'):
        Node(listners=[])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"durability": "disc"}, "configuration: durability.level: "),
        ({"listeners": "tcp://127.0.0.1:0"}, "listeners: expected a list of URLs or tables"),
        ({"listeners": ["tcp://127.0.0.1"]}, 'listeners.0: "tcp://127.0.0.1": expected host:port'),
        ({"listeners": ["mqtts://127.0.0.1:0"]}, "listeners.0: .* requires certificates"),
        ({"listeners": ["http://127.0.0.1:0"]}, "listeners.0: .*expected tcp://host:port or "),
        ({"listeners": [{"type": "tcp", "bind": "127.0.0.1:0", "nme": "x"}]}, "listeners.0.nme: "),
        ({"listeners": ["unix://run/mqtt.sock"]}, "listeners.0: .*expected unix:///path$"),
        ({"listeners": ["unix:"]}, "listeners.0: .*expected unix:///path$"),
        ({"log": {"level": "debug"}}, "log: a program sets up its own logging"),
        ({"retained": 5}, "retained: expected a table, got int 5"),
        ({"config": [1]}, "config: expected a dictionary"),
        ({"config": {"nod": {}}}, 'configuration: nod: .*"node"'),
        ({"management": "127.0.0.1:8081"}, "management: .*expected http://host:port"),
    ],
)
def test_a_wrong_setting_is_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        Node(**given)
    assert len(raised.value.lines) == 1


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_one_sentence() -> None:
    async with Node(**MEMORY) as node:
        other = Node(listeners=[f"tcp://127.0.0.1:{node.port}"], durability="memory")
        with pytest.raises(
            NodeError, match=r"^the node cannot start: listener tcp: cannot bind .*: Address already in"
        ):
            await other.start()
        with pytest.raises(NodeError, match="create another Node"):
            await other.start()
        await other.stop()


@pytest.mark.asyncio
async def test_used_twice_or_at_the_wrong_time() -> None:
    node = Node(**MEMORY)
    with pytest.raises(NodeError, match=r"^urls: the node has not been started$"):
        _ = node.url
    async with node:
        with pytest.raises(NodeError, match=r"^the node is running: create another Node to start again$"):
            await node.start()
        for wrong in ("", "a/+", "a\0", 5):
            with pytest.raises(ValueError, match="is not a Topic Name"):
                await node.publish(wrong)  # type: ignore[arg-type]
        with pytest.raises(NodeError, match="publish to '\\$SYS/x' is refused: reserved for the server"):
            await node.publish("$SYS/x")
        with pytest.raises(ValueError, match="qos: expected 0, 1 or 2, got 3"):
            await node.publish("a", qos=3)
        with pytest.raises(ValueError, match="'contenttype'; did you mean 'content_type'"):
            await node.publish("a", properties={"contenttype": "x"})  # type: ignore[typeddict-unknown-key]
        with pytest.raises(ValueError, match="property response_topic: expected a Topic Name, got 'a/#'"):
            await node.publish("a", properties={"response_topic": "a/#"})
        with pytest.raises(TypeError, match="payload: expected bytes or str, got dict"):
            await node.publish("a", {})  # type: ignore[arg-type]
        for filter in ("", "a/#/b", 3):
            with pytest.raises(ValueError, match=r"subscribe: .* is not a Topic Filter"):
                node.subscribe(filter)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_queued: expected a number of at least 1, got 0"):
            node.subscribe("a", max_queued=0)
    for use in (lambda: node.subscribe("a"), lambda: node.url):
        with pytest.raises(NodeError, match="the node has stopped"):
            use()
    with pytest.raises(NodeError, match="publish: the node has stopped"):
        await node.publish("a")
    with pytest.raises(NodeError, match="the node has stopped: create another Node"):
        await node.start()
    await node.stop()


# ----------------------------------------------------------------- nothing left


def left_open() -> tuple[int, int, list[str]]:
    """File descriptors, tasks of the loop, threads."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, len(asyncio.all_tasks()), sorted(each.name for each in threading.enumerate())


@pytest.mark.asyncio
async def test_several_nodes_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await asyncio.to_thread(int)  # the loop's own thread pool stays
    before = left_open()
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    root, thresholds = list(logging.root.handlers), gc.get_threshold()
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    logs = list(logging.getLogger("taipan").handlers), logging.getLogger("taipan").level
    async with Node(**MEMORY) as one, Node(**MEMORY) as other:
        assert one.port != other.port
        peer = await client(one)
        await peer.subscribe("a")
        await other.publish("a", b"elsewhere")
        await one.publish("a", b"here")
        assert (await peer.expect_publish("a")).payload == b"here"
        assert list(tmp_path.iterdir()) == []
    await peer.close()
    assert left_open() == before
    assert handlers == (
        signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP),
    )  # fmt: skip
    assert (root, thresholds, frozen) == (logging.root.handlers, gc.get_threshold(), [])
    assert logs == (logging.getLogger("taipan").handlers, logging.getLogger("taipan").level)


@pytest.mark.asyncio
@pytest.mark.parametrize("iterations", range(0, 24, 2))
async def test_cancelled_while_it_starts(iterations: int, tmp_path: Path) -> None:
    """At any moment of the start: with a store, a management server and a dashboard."""
    # The first of all nodes goes on for a moment, in its thread, to read the modules of the grammar.
    await asyncio.to_thread(RuleEngine.prepare)
    port = free_port()
    before = left_open()
    node = Node(
        listeners=[f"tcp://127.0.0.1:{port}"],
        node={"data_dir": str(tmp_path)},
        management={"bind": "127.0.0.1:0", "apps": [{"id": "me", "secret": "secret-of-mine"}]},
    )
    starting = asyncio.ensure_future(node.start())
    for _ in range(iterations):
        await asyncio.sleep(0)
    starting.cancel()
    starting.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        pass
    else:
        await node.stop()
    await asyncio.sleep(0)
    assert left_open() == before
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.asyncio
async def test_cancelled_while_it_runs_and_while_it_stops() -> None:
    await asyncio.to_thread(int)
    before = left_open()
    running = asyncio.Event()

    async def serve() -> None:
        async with Node(**MEMORY) as node:
            peers.append(await client(node))
            subscriptions.append(node.subscribe("a"))
            running.set()
            await asyncio.Event().wait()

    peers: list[Peer] = []
    subscriptions: list[taipan.Subscription] = []
    serving = asyncio.ensure_future(serve())
    await running.wait()
    serving.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    serving.cancel()  # it stops already
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert await _read(subscriptions[0]) == []
    await peers[0].close()
    assert left_open() == before


@pytest.mark.asyncio
async def test_messages_outlive_the_node_on_disk(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"listeners": ["tcp://127.0.0.1:0"], "node": {"data_dir": str(tmp_path)}}
    async with Node(**settings) as node:
        await node.publish("a", b"kept", qos=1, retain=True)
        with pytest.raises(NodeError, match="in use by process"):
            await Node(**settings).start()
    async with Node(**settings) as node:
        assert (await anext(node.subscribe("a"))).payload == b"kept"


@pytest.mark.asyncio
async def test_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAIPAN__NODE__NAME", "of-the-environment")
    file = tmp_path / "taipan.toml"
    file.write_text(
        f'[node]\nname = "mine@127.0.0.1"\ndata_dir = "{tmp_path}/data"\n[durability]\nlevel = "memory"\n'
        '[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:0"\n'
        "[management]\nenabled = false\n[dashboard]\nenabled = false\n"
    )
    async with Node.from_file(str(file)) as node:
        assert node.settings.broker.node.name == "mine@127.0.0.1"
        assert node.management_url is None and node.dashboard_url is None
        assert node.url == f"mqtt://127.0.0.1:{node.port}"
    with pytest.raises(ConfigError, match=r"nowhere.toml: No such file"):
        Node.from_file(str(tmp_path / "nowhere.toml"))


async def _asked_and_stopped() -> "weakref.ref[object]":
    """A node's server, after one of its pages was asked for."""
    async with Node(**MEMORY, management="http://127.0.0.1:0") as node:
        server = node._server
        assert server is not None
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{node.management_url}/status") as status,
            session.get(f"{node.management_url}/api/v4/nothing") as nothing,
        ):
            assert (status.status, nothing.status) == (200, 401)
        return weakref.ref(server)


def test_a_node_whose_management_server_answered_is_freed() -> None:
    """Tests of others start hundreds in one process. aiohttp keeps what a middleware of it holds."""
    server = asyncio.run(_asked_and_stopped())
    gc.collect()
    assert server() is None


@pytest.mark.asyncio
async def test_management(tmp_path: Path) -> None:
    async with Node(**MEMORY, management="http://127.0.0.1:0") as node:
        data_dir = Path(node.settings.broker.node.data_dir)
        assert data_dir.exists()
        (told,) = node.secrets
        credentials = told.split()[told.split().index("-u") + 1]
        headers = {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{node.management_url}/api/v4/brokers") as answer,
        ):
            assert answer.status == 200
    assert not data_dir.exists()


@pytest.mark.asyncio
async def test_websocket_and_any_address() -> None:
    async with Node(listeners=["ws://0.0.0.0:0/in", "mqtt://[::1]:0"], durability="memory") as node:
        first, second = node.urls
        assert first.startswith("ws://127.0.0.1:") and first.endswith("/in")
        assert second.startswith("mqtt://[::1]:")


@pytest.mark.asyncio
async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    async with Node(listeners=[f"unix://{path}"], durability="memory") as node:
        assert (node.url, node.host, node.port) == (f"unix://{path}", str(path), 0)
        other = Node(listeners=[f"unix://{path}"], durability="memory")
        with pytest.raises(NodeError, match=rf"cannot bind {path}: another process listens at this socket$"):
            await other.start()
        await other.stop()
    assert not path.exists()


def test_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def run() -> bytes:
        async with Node(**MEMORY) as node:
            subscription = node.subscribe("a")
            peer = await client(node)
            await peer.publish("a", b"x", qos=1)
            await peer.close()
            return (await anext(subscription)).payload

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == b"x"


@pytest.mark.asyncio
async def test_it_starts_within_a_moment() -> None:
    """50 ms on an idle machine are promised; processor time, and room for a slow one."""
    async with Node(**MEMORY):
        pass
    best = 1.0
    for _ in range(3):
        began = time.process_time()
        node = Node(**MEMORY)
        await node.start()
        best = min(best, time.process_time() - began)
        await node.stop()
    assert best < 0.2


@pytest.mark.asyncio
async def test_cancelled_when_all_has_started() -> None:
    """The cancellation comes in the moment in which the start is done: nothing stays open."""
    await asyncio.to_thread(int)
    port = free_port()
    before = left_open()
    node = Node(durability="memory", listeners=[f"tcp://127.0.0.1:{port}"])
    begin = node._assembly.start

    async def start() -> None:
        await begin()
        asyncio.get_running_loop().call_soon(starting.cancel)

    node._assembly.start = start  # type: ignore[method-assign]
    starting = asyncio.ensure_future(node.start())
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not node.running
    with socket.create_server(("127.0.0.1", port)):
        pass
    await asyncio.sleep(0)
    assert left_open() == before


def test_an_event_loop_that_cannot_be_made() -> None:
    def none() -> asyncio.AbstractEventLoop:
        raise ImportError("no such loop")

    node = taipan.BackgroundNode(durability="memory", listeners=["tcp://127.0.0.1:0"], loop_factory=none)
    told: list[BaseException] = []

    def start() -> None:
        try:
            node.start()
        except NodeError as error:
            told.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(30)
    assert [str(error) for error in told] == ["the node cannot start: loop_factory: ImportError('no such loop')"]
