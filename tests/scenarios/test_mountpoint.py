"""The mount point: a prefix that a listener's clients neither see nor escape."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter, Will
from tests.support.clients import Clients
from tests.support.node import Node, make_settings
from tests.support.peer import Peer
from tests.support.users import PASSWORD, users

from .until_quiet import payloads

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]


@pytest_asyncio.fixture(loop_scope="module")
async def mounted(version: int) -> AsyncIterator["MountedNodes"]:
    """A node with a mounted listener (``ws``) and one from which everything is seen (``tcp``)."""
    mounted = MountedNodes(version)
    yield mounted
    await mounted.stop()


class MountedNodes:
    def __init__(self, version: int) -> None:
        self.version = version
        self.nodes: list[Node] = []
        self.peers: list[Peer] = []

    async def start(self, mountpoint: str, **config: object) -> None:
        config["access"] = {"users": users("ann", "%c"), **config.get("access", {})}  # type: ignore[dict-item]
        settings = make_settings(**config)  # type: ignore[arg-type]
        zone = settings.listener_zones[1]
        mounted = type(zone)(mountpoint=mountpoint)
        settings = type(settings)(
            **{name: getattr(settings, name) for name in settings.__struct_fields__ if name != "listener_zones"},
            listener_zones=(zone, mounted),
        )
        self.nodes.append(await Node(settings).start())

    async def connect(self, transport: str, client_id: str, **options: object) -> Peer:
        peer = Peer(self.nodes[-1].address(transport), self.version)
        self.peers.append(peer)
        await peer.connect(client_id, **options)  # type: ignore[arg-type]
        return peer

    async def stop(self) -> None:
        for peer in self.peers:
            peer.abort()
        for node in self.nodes:
            await node.stop()


async def test_it_is_put_before_every_topic_and_taken_away_again(mounted: MountedNodes) -> None:
    await mounted.start("dev/%c/%u/")
    inside = await mounted.connect("ws", "one", username="ann", password=PASSWORD)
    outside = await mounted.connect("tcp", "all")
    await outside.subscribe("#", qos=1)
    await inside.subscribe("x/+", qos=1)
    await inside.publish("x/y", b"1", 1)
    await outside.expect_publish("dev/one/ann/x/y", b"1")
    await inside.expect_publish("x/y", b"1")
    await outside.publish("dev/one/ann/x/z", b"2", 1)
    await outside.expect_publish()
    await inside.expect_publish("x/z", b"2")
    await outside.publish("x/y", b"3", 1)
    await outside.expect_publish()
    await inside.nothing()
    await inside.unsubscribe("x/+")
    await inside.publish("x/y", b"4", 1)
    await inside.nothing()


async def test_its_clients_do_not_see_each_other(mounted: MountedNodes) -> None:
    await mounted.start("%c/")
    one, two = await mounted.connect("ws", "one"), await mounted.connect("ws", "two")
    for peer in (one, two):
        await peer.subscribe("#", qos=1)
    await one.publish("x", b"1", 1)
    await one.expect_publish("x", b"1")
    await two.nothing()


async def test_retained_messages_and_wills_are_mounted(mounted: MountedNodes) -> None:
    await mounted.start("m/")
    outside = await mounted.connect("tcp", "all")
    inside = await mounted.connect("ws", "one", will=Will("will", b"w", 1))
    await inside.publish("kept", b"k", 1, True)
    await outside.subscribe("m/#", qos=1)
    await outside.expect_publish("m/kept", b"k", retain=True)
    await inside.subscribe("#", qos=1)
    await inside.expect_publish("kept", b"k", retain=True)
    await inside.drop()
    await outside.expect_publish("m/will", b"w")


async def test_shared_subscriptions_are_mounted_inside(mounted: MountedNodes) -> None:
    await mounted.start("m/")
    outside = await mounted.connect("tcp", "all")
    members = [await mounted.connect("ws", name) for name in ("one", "two")]
    for member in members:
        await member.subscribe("$share/g/x", qos=1)
    for number in range(20):
        await outside.publish("m/x", b"%d" % number, 1)
    got = [await payloads(member) for member in members]
    assert sorted(int(each) for mine in got for each in mine) == list(range(20))
    for member in members:
        await member.unsubscribe("$share/g/x")


async def test_delayed_messages_are_mounted_inside(mounted: MountedNodes) -> None:
    await mounted.start("m/")
    outside, inside = await mounted.connect("tcp", "all"), await mounted.connect("ws", "one")
    await outside.subscribe("m/#", qos=1)
    await inside.publish("$delayed/5/x", b"d", 1)
    await mounted.nodes[-1].pass_time(6)
    await outside.expect_publish("m/x", b"d")


async def test_a_client_identifier_is_never_read_as_a_placeholder(mounted: MountedNodes) -> None:
    await mounted.start("%c/%u/")
    outside = await mounted.connect("tcp", "all")
    await outside.subscribe("#", qos=1)
    inside = await mounted.connect("ws", "%u", username="%c", password=PASSWORD)
    await inside.publish("x", b"1", 1)
    await outside.expect_publish("%u/%c/x", b"1")


async def test_a_wildcard_as_client_identifier_reaches_nobody_else(mounted: MountedNodes) -> None:
    await mounted.start("%c/")
    outside = await mounted.connect("tcp", "all")
    for name in ("+", "#", "a/#"):
        peer = Peer(mounted.nodes[-1].address("ws"), mounted.version)
        mounted.peers.append(peer)
        await peer.connect(name, expect=None)
        if peer.connack.reason_code == 0:
            await peer.send(Subscribe(1, [TopicFilter("x", 1)]))
            await peer.expect(Suback)
    await outside.publish("victim/x", b"secret", 1)
    for peer in mounted.peers[1:]:
        if peer.connack.reason_code == 0:
            await peer.nothing()


async def test_rules_speak_of_the_topics_that_clients_see(mounted: MountedNodes) -> None:
    await mounted.start("m/", access={"rules": [{"allow": False, "topics": ["no/#"]}]})
    inside = await mounted.connect("ws", "one")
    await inside.subscribe("no/x", qos=1, expect=[0x87 if mounted.version == 5 else 0x80])
    await inside.subscribe("yes/x", qos=1)
