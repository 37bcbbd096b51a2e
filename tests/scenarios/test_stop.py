"""A graceful stop of the real process: wills of those who are connected, and clients that say nothing any more."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker import server
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Will
from tests.support.api import APP_ID, SECRET, ApiClient
from tests.support.node import NodeProcess, free_port, start_node
from tests.support.patience import patience
from tests.support.peer import TIMEOUT, Address, Peer
from tests.support.users import PASSWORD, users

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

CONFIG = """
[node]
data_dir = "{directory}"

[[listeners]]
name = "one"
type = "tcp"
bind = "127.0.0.1:{tcp}"

[[listeners]]
name = "two"
type = "ws"
bind = "127.0.0.1:{ws}"

[[management.apps]]
id = "{app}"
secret = "{secret}"

[stop]
wills = "{wills}"

[durability]
level = "{level}"
"""


class Site:
    """A node that is stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses = {
            "tcp": Address("127.0.0.1", free_port()),
            "ws": Address("127.0.0.1", free_port(), "ws"),
        }
        self.node: NodeProcess
        self.peers: list[Peer] = []

    async def start(self, wills: str = "publish", level: str = "disk", more: str = "", zone: str = "") -> None:
        """``more``: at the end of the configuration; ``zone``: of the listener for WebSocket."""
        config = self.directory / "taipan.toml"
        ports = {name: address.port for name, address in self.addresses.items()}
        app = {"app": APP_ID, "secret": SECRET}
        text = CONFIG.format(directory=self.directory, wills=wills, level=level, **ports, **app)
        if zone:
            text = text.replace('name = "two"', f'name = "two"\nzone = "{zone}"')
        config.write_text(text + more)
        self.node = await NodeProcess(config).start()

    async def stop(self) -> None:
        assert await self.node.stop() == 0

    async def peer(
        self, client_id: str, version: int = 5, transport: str = "tcp", expiry: int = 0, **options: Any
    ) -> Peer:
        peer = Peer(self.addresses[transport], version)
        self.peers.append(peer)
        properties = {c.SESSION_EXPIRY_INTERVAL: expiry} if expiry and version == 5 else {}
        await peer.connect(client_id, not expiry, properties=properties, **options)
        return peer


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    for peer in site.peers:
        peer.abort()
    if site.node.process.returncode is None:
        await site.stop()


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("version", [4, 5])
async def test_wills_reach_who_is_there_and_who_comes_back(site: Site, version: int, transport: str) -> None:
    """[MQTT-3.1.2-8]"""
    await site.start()
    away = await site.peer("away", version, transport, expiry=1000)
    await away.subscribe("will/#", qos=1)
    await away.disconnect()
    watcher = await site.peer("watcher", version, transport)
    await watcher.subscribe("will/#", qos=1)
    await site.peer("plain", version, transport, will=Will("will/plain", b"gone", 1))
    await site.peer("kept", version, transport, will=Will("will/kept", b"gone", 1, True), expiry=1000)
    polite = await site.peer("polite", version, transport, will=Will("will/polite", b"wrong", 1))
    await polite.disconnect()
    stopping = asyncio.create_task(site.stop())
    topics = set()
    for _ in range(2):
        topics.add((await watcher.expect_publish(None, b"gone")).topic)
    assert topics == {"will/plain", "will/kept"}
    if version == 5:
        await watcher.expect_disconnect(rc.SERVER_SHUTTING_DOWN)
    await stopping
    await site.start()
    away = await site.peer("away", version, transport, expiry=1000)
    topics = set()
    for _ in range(2):
        topics.add((await away.expect_publish(None, b"gone", 1)).topic)
    assert topics == {"will/plain", "will/kept"}
    await away.nothing()
    late = await site.peer("late", version, transport)
    await late.subscribe("will/#")
    await late.expect_publish("will/kept", b"gone", retain=True)
    await late.nothing()


async def test_wills_are_kept_for_the_start(site: Site) -> None:
    """As they are after kill -9."""
    await site.start("keep")
    away = await site.peer("away", expiry=1000)
    await away.subscribe("will/#", qos=1)
    await away.disconnect()
    watcher = await site.peer("watcher")
    await watcher.subscribe("will/#")
    await site.peer("one", will=Will("will/one", b"gone", 1))
    await site.peer("two", 4, will=Will("will/two", b"gone", 1, True), expiry=1000)
    stopping = asyncio.create_task(site.stop())
    await watcher.expect_disconnect(rc.SERVER_SHUTTING_DOWN)
    await stopping
    await site.start("keep")
    away = await site.peer("away", expiry=1000)
    told = [(await away.expect_publish(None, b"gone", 1, acknowledge=False)).topic for _ in range(2)]
    assert set(told) == {"will/one", "will/two"}
    late = await site.peer("late")
    await late.subscribe("will/#")
    await late.expect_publish("will/two", b"gone", retain=True)
    # Once: the next start has none of them.
    await site.stop()
    await site.start("keep")
    away = await site.peer("away", expiry=1000)
    for _ in range(2):
        await away.expect_publish(None, b"gone", 1)
    await away.nothing()


JUDGED = """
[zones.mounted]
mountpoint = "m/"

[access]
no_match = "deny"
rules = [
    {{ allow = true, action = "subscribe", topics = ["#"] }},
    {{ allow = false, topics = ["secret"] }},
    {{ allow = true, action = "publish", topics = ["own", "m/secret"] }},
]

[[access.users]]
username = "root"
password_hash = "{hash}"
is_superuser = true
"""


async def test_a_kept_will_is_judged_as_its_client_s(site: Site) -> None:
    """By its mount point, and by what its user may at the start."""
    (root,) = users(superusers=("root",))
    more = JUDGED.format(hash=root["password_hash"])
    await site.start("keep", more=more, zone="mounted")
    away = await site.peer("away", expiry=1000)
    await away.subscribe("#", qos=1)
    await away.disconnect()
    watcher = await site.peer("watcher")
    await site.peer("root", username="root", password=PASSWORD, will=Will("will/root", b"gone", 1))
    await site.peer("allowed", transport="ws", will=Will("own", b"gone", 1))
    await site.peer("denied", transport="ws", will=Will("secret", b"gone", 1))
    stopping = asyncio.create_task(site.stop())
    await watcher.expect_disconnect(rc.SERVER_SHUTTING_DOWN)
    await stopping
    await site.start("keep", more=more, zone="mounted")
    away = await site.peer("away", expiry=1000)
    assert {(await away.expect_publish(None, b"gone", 1)).topic for _ in range(2)} == {"will/root", "m/own"}
    await away.nothing()


@pytest.mark.parametrize("wills", ["publish", "keep"])
async def test_a_delayed_will_waits_over_the_restart_for_a_session_that_stays(site: Site, wills: str) -> None:
    """[MQTT-3.1.3-9]"""
    await site.start(wills)
    watcher = await site.peer("watcher", expiry=1000)
    await watcher.subscribe("will/#", qos=1)
    for name, delay in (("back", 120), ("gone", 3)):
        will = Will(f"will/{name}", b"gone", 1, False, {c.WILL_DELAY_INTERVAL: delay})
        await site.peer(name, will=will, expiry=1000)
    await site.stop()
    await site.start(wills)
    watcher = await site.peer("watcher", expiry=1000)
    await watcher.expect_publish("will/gone", b"gone", 1, timeout=10)
    back = await site.peer("back", expiry=1000)
    await watcher.nothing()
    await back.disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0})  # the end of the session has no will any more
    await watcher.nothing()


async def test_at_level_memory_every_session_ends_with_the_node(site: Site) -> None:
    """[MQTT-3.1.2-8]: also those whose delay is not over."""
    await site.start(level="memory")
    watcher = await site.peer("watcher")
    await watcher.subscribe("will/#")
    delayed = {c.WILL_DELAY_INTERVAL: 1000}
    vanished = await site.peer("vanished", will=Will("will/1", b"gone", 0, False, delayed), expiry=1000)
    vanished.abort()
    await site.peer("there", will=Will("will/2", b"gone", 0, False, delayed), expiry=1000)
    await asyncio.sleep(0.2)
    stopping = asyncio.create_task(site.stop())
    assert {(await watcher.expect_publish(None, b"gone")).topic for _ in range(2)} == {"will/1", "will/2"}
    await stopping


async def test_rules_hear_of_wills_at_the_stop(site: Site) -> None:
    await site.start()
    (url,) = (each.removeprefix("management=") for each in site.node.ready.split() if "management=" in each)
    api = ApiClient(url)
    target = {"target_topic": "heard/${clientid}", "target_qos": 1, "payload_tmpl": "${payload}"}
    action = {"name": "republish", "params": target}
    assert (await api.post("/rules", {"rawsql": 'SELECT * FROM "will/#"', "actions": [action]})).status == 200
    await api.close()
    away = await site.peer("away", expiry=1000)
    await away.subscribe("heard/#", qos=1)
    await away.disconnect()
    await site.peer("c", will=Will("will/c", b"gone", 1))
    await site.stop()
    await site.start()
    away = await site.peer("away", expiry=1000)
    await away.expect_publish("heard/c", b"gone", 1)


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("version", [4, 5])
async def test_clients_that_stay_silent_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, version: int, transport: str
) -> None:
    """They read nothing, close nothing and are owed nothing. Neither time that ends the wait ever comes: LINGER is of
    a clock that stands still."""
    monkeypatch.setattr(server, "STOP_TIMEOUT", 1e6)
    node = await start_node()
    await node.stand_still()
    peers = [await node.client(f"c{number}", version, transport) for number in range(20)]
    if transport == "ws":
        for peer in peers:
            peer.stream.socket.transport.pause_reading()  # type: ignore[union-attr]
    async with asyncio.timeout(patience(TIMEOUT)):
        await node.server.disconnect_clients()
    assert not node.server.connections
    for peer in peers:
        peer.abort()
    await node.stop()
