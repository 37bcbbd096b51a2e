"""A user name that nobody has proved is no user's: no rule, placeholder or service sees it."""

from typing import Any

import pytest

from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter, Will
from taipan.broker.session.client_info import ClientInfo
from tests.support.api import ManagedNode, managed_node
from tests.support.peer import Peer
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio

CHEAP = {"hash_cost": 10, "no_match": "deny"}
DEVICE = {"clientid": "device", "password": "d1"}
ways = pytest.mark.parametrize("version, transport", [(4, "tcp"), (5, "tcp"), (5, "ws")])


async def reads(peer: Peer, topic_filter: str) -> bool:
    refusal = 0x87 if peer.version == 5 else 0x80
    packet_id = peer.next_packet_id()
    await peer.send(Subscribe(packet_id, [TopicFilter(topic_filter)]))
    (code,) = (await peer.answer(Suback, packet_id=packet_id)).reason_codes
    assert code in (0, refusal)
    return bool(code == 0)


async def device(node: ManagedNode, username: str, version: int, transport: str) -> Peer:
    """It proves its client identifier, and says that it is ``username``."""
    await node.api.post("/auth_clientid", DEVICE)
    return await node.client("device", version, transport, username=username, password=b"d1")


@ways
async def test_a_device_that_calls_itself_by_a_user_s_name(version: int, transport: str) -> None:
    rules: list[dict[str, Any]] = [
        {"allow": True, "topics": ["of/%u/#", "to/%c"]},
        {"allow": True, "topics": ["file"], "username": "boss"},
    ]
    async with managed_node(access={**CHEAP, "rules": rules}) as node:
        await node.api.post("/broker_acl", {"login": "boss", "topic": "stored", "action": "pubsub", "allow": True})
        peer = await device(node, "boss", version, transport)
        assert await reads(peer, "to/device")
        for topic in ("of/boss/x", "file", "stored"):
            assert not await reads(peer, topic), topic
        # What it says it is is shown as it says it.
        (shown,) = (await node.api.get("/clients/device")).data
        assert shown["username"] == "boss"


@ways
async def test_without_authentication_no_name_is_proved(version: int, transport: str) -> None:
    async with managed_node(access=CHEAP) as node:
        await node.api.post("/broker_acl", {"login": "boss", "topic": "stored", "action": "pubsub", "allow": True})
        peer = await node.client("c", version, transport, username="boss", password=b"anything")
        assert not await reads(peer, "stored")


@ways
async def test_a_name_that_a_user_has_proved(version: int, transport: str) -> None:
    rules = [{"allow": True, "topics": ["of/%u/#"]}]
    async with managed_node(access={**CHEAP, "rules": rules, "users": users("boss")}) as node:
        await node.api.post("/broker_acl", {"login": "boss", "topic": "stored", "action": "pubsub", "allow": True})
        peer = await node.client("c", version, transport, username="boss", password=PASSWORD)
        assert await reads(peer, "stored") and await reads(peer, "of/boss/x")


@pytest.mark.parametrize("version", [4, 5])
async def test_a_mount_point_of_a_name_that_is_not_proved(version: int, caplog: pytest.LogCaptureFixture) -> None:
    async with managed_node(access={"hash_cost": 10}, zone={"mountpoint": "of/%u/"}) as node:
        await node.api.post("/auth_clientid", DEVICE)
        peer = node.peer(version)
        with caplog.at_level("INFO"):
            await peer.connect("device", username="boss", password=b"d1", expect=None)
        assert peer.connack.reason_code == (0x87 if version == 5 else 5)
        assert "setting=mountpoint" in caplog.text


@pytest.mark.parametrize("proved, mountpoint", [(True, ""), (False, ""), (True, "m/")])
async def test_retained_messages_after_a_restart(proved: bool, mountpoint: str, tmp_path: Any) -> None:
    """``check_source`` asks for the publisher's rights: whether its name was proved is kept with the message."""
    config: dict[str, Any] = {
        "node": {"data_dir": str(tmp_path)},
        "durability": {"level": "disk"},
        "retained": {"check_source": True},
        "zone": {"enable_acl": True, "mountpoint": mountpoint},
    }
    everybody = [{"allow": True, "action": "subscribe", "topics": ["#"]}]
    loose = {"rules": everybody, **({"users": users("boss")} if proved else {})}
    strict = {**loose, "no_match": "deny", "rules": [*everybody, {"allow": True, "topics": ["t"], "username": "boss"}]}
    async with managed_node(access=loose, **config) as node:
        peer = await node.client("c", 5, username="boss", password=PASSWORD)
        await peer.publish("t", b"kept", 1, retain=True)
    async with managed_node(access=strict, **config) as node:
        reader = await node.client("r", 5)
        await reader.subscribe("t")
        if proved:
            await reader.expect_publish("t", b"kept", retain=True)
        await reader.nothing()


async def test_a_will_in_a_name_that_is_not_proved() -> None:
    rules = [
        {"allow": True, "topics": ["of/%u/will"], "action": "publish"},
        {"allow": True, "topics": ["#"], "action": "subscribe", "client_id": "watcher"},
    ]
    async with managed_node(access={**CHEAP, "rules": rules}) as node:
        await node.api.post("/auth_clientid", DEVICE)
        watcher = await node.client("watcher", 5)
        await watcher.subscribe("of/#")
        peer = await node.client("device", 5, username="boss", password=b"d1", will=Will("of/boss/will", b"gone"))
        await peer.drop()
        await watcher.nothing()


@pytest.mark.parametrize("proved", [True, False])
async def test_a_device_without_a_user_name_is_known_again_after_a_restart(proved: bool, tmp_path: Any) -> None:
    """Its password is verified before those of unknown user names."""
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(access=CHEAP, **config) as node:
        if proved:
            await node.api.post("/auth_clientid", DEVICE)
        await node.client("device", 5, password=b"d1" if proved else None, expiry=3600)
    async with managed_node(access=CHEAP, **config) as node:
        zone = node.settings.listener_zones[0]
        was_here = node.server.access.authentication.passwords._was_here
        assert was_here(ClientInfo("n", zone, client_id="device", peer_host="127.0.0.1")) is proved
        assert not was_here(ClientInfo("n", zone, client_id="device", peer_host="192.0.2.1"))
        assert not was_here(ClientInfo("n", zone, client_id="device", username="x", peer_host="127.0.0.1"))
