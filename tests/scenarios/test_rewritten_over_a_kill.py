"""Topic rewrite and proxy subscription in a real process at level ``disk``, which kill -9 ends: what was acknowledged
is owed under its new topic, and is not rewritten again."""

from pathlib import Path

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer
from tests.support.wire import Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(180)]

CONFIG = """
[node]
data_dir = "{directory}"

[durability]
level = "disk"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{tcp}"

[[listeners]]
name = "web"
type = "ws"
bind = "127.0.0.1:{ws}"

[[auto_subscribe.topics]]
topic = "to/%c"
qos = 1

[rewrite]
rules = [
  {{action = "publish", source_topic = "old/#", re = "^old/(.*)$", dest_topic = "new/$1"}},
  {{action = "publish", source_topic = "new/#", re = "^new/(.*)$", dest_topic = "twice/$1"}},
]
"""
RUN = 60


class Killed:
    """A node that is killed and starts again, and its clients."""

    def __init__(self, directory: Path, version: int, transport: str) -> None:
        ports = {"tcp": free_port(), "ws": free_port()}
        self.address = Address("127.0.0.1", ports[transport], transport)
        self.version = version
        config = directory / "taipan.toml"
        config.write_text(CONFIG.format(directory=directory / "data", **ports))
        self.node = NodeProcess(config)
        self.peers: list[Peer] = []

    async def client(self, client_id: str) -> Peer:
        """With a session that stays."""
        peer = Peer(self.address, self.version)
        self.peers.append(peer)
        properties = {c.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF} if self.version == 5 else None
        await peer.connect(client_id, False, properties=properties)
        return peer

    async def kill(self) -> None:
        self.node.process.kill()
        await self.node.process.communicate()
        for peer in self.peers:
            peer.abort()

    async def __aenter__(self) -> "Killed":
        await self.node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.node.process.returncode is None:
            await self.kill()


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("version", [4, 5])
async def test_what_was_acknowledged_is_owed_under_its_new_topic(tmp_path: Path, version: int, transport: str) -> None:
    async with Killed(tmp_path, version, transport) as broker:
        reader = await broker.client("r")
        await reader.subscribe("new/#", "old/#", "twice/#", qos=2)
        await reader.disconnect()
        writer = await broker.client("w")
        # The first message is checked by itself, and those that follow in one read are one run.
        await writer.publish("old/run", b"0", 1)
        await writer.send(*[Publish("old/run", b"%d" % at, 1, packet_id=at) for at in range(1, RUN)])
        for at in range(1, RUN):
            assert await writer.receive() == Ack(c.PUBACK, at)
        await writer.publish("old/two", b"whole", 2)
        await writer.publish("old/kept", b"retained", 1, True)
        await writer.publish("$delayed/1/old/delayed", b"delayed", 1)
        await writer.publish("to/r", b"by proxy", 1)
        if version == 5:
            await writer.publish("old/alias", b"named", 1, properties={c.TOPIC_ALIAS: 1})
            await writer.publish("", b"by its alias", 1, properties={c.TOPIC_ALIAS: 1})
        await writer.send(Publish("old/two", b"half", 2, packet_id=500))
        answer = await writer.receive()
        assert isinstance(answer, Ack) and answer.type == c.PUBREC and answer.packet_id == 500
        await broker.kill()
        await broker.node.start()

        writer = await broker.client("w")
        await writer.send(Publish("old/two", b"half", 2, dup=True, packet_id=500))
        answer = await writer.receive()
        assert isinstance(answer, Ack) and answer.type == c.PUBREC
        await writer.send(Ack(c.PUBREL, 500))
        assert await writer.receive() == Ack(c.PUBCOMP, 500)
        expected = [("new/run", b"%d" % at) for at in range(RUN)]
        expected += [("new/two", b"whole"), ("new/kept", b"retained"), ("new/delayed", b"delayed")]
        expected += [("to/r", b"by proxy"), ("new/two", b"half")]
        if version == 5:
            expected += [("new/alias", b"named"), ("new/alias", b"by its alias")]
        reader = await broker.client("r")
        got = []
        for _ in expected:
            message = await reader.expect_publish()
            got.append((message.topic, message.payload))
        assert sorted(got) == sorted(expected)
        assert [each for each in got if each[0] == "new/run"] == expected[:RUN]
        await reader.nothing()
        await reader.subscribe("new/kept", qos=1)
        await reader.expect_publish("new/kept", b"retained", 1, retain=True)


@pytest.mark.parametrize("version", [4, 5])
async def test_whoever_was_let_in_keeps_its_proxy_subscription(tmp_path: Path, version: int) -> None:
    """Killed right after each CONNACK: while the client is away, its messages wait for it."""
    async with Killed(tmp_path, version, "tcp") as broker:
        for number in range(3):
            name = f"r{number}"
            await broker.client(name)
            await broker.kill()
            await broker.node.start()
            writer = await broker.client("w")
            await writer.publish(f"to/{name}", b"while it was away", 1)
            await writer.publish("old/x", b"has no subscriber", 1)
            await broker.kill()
            await broker.node.start()
            reader = await broker.client(name)
            assert reader.connack.session_present
            await reader.expect_publish(f"to/{name}", b"while it was away", 1)
