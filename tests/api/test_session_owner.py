"""A session belongs to the user that made it: nobody else goes on with it, ends it or reads what waits in it."""

from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.packets import Will
from tests.support.api import ManagedNode, managed_node
from tests.support.peer import Peer
from tests.support.reason_codes import not_authorized
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio

ACCESS: dict[str, Any] = {"hash_cost": 10, "users": users("ann", "bob", superusers=("root",))}
DEVICE = {"clientid": "dev", "password": "d1"}
versions = pytest.mark.parametrize("version", [3, 4, 5])
five = pytest.mark.parametrize("version", [4, 5])


async def enter(
    node: ManagedNode,
    version: int,
    username: str | None,
    clean_start: bool = False,
    transport: str = "tcp",
    **more: Any,
) -> tuple[int, bool, Peer]:
    """CONNECT as ``dev``: the Reason Code, Session Present, and the peer."""
    more.setdefault("password", PASSWORD if username else None)
    if version == 5:
        more.setdefault("properties", {17: 3600})
    peer = node.peer(version, transport)
    await peer.connect("dev", clean_start, username=username, expect=None, **more)
    return peer.connack.reason_code, peer.connack.session_present, peer


@versions
@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("who", ["bob", "root", None])
async def test_another_user_is_refused(
    version: int, clean_start: bool, who: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a superuser, whom rules about topics do not bind, and who is nobody; whether the owner is there or away."""
    async with managed_node(access=ACCESS) as node:
        code, _, ann = await enter(node, version, "ann")
        assert code == 0
        await ann.subscribe("mail", qos=1)
        with caplog.at_level("INFO"):
            assert (await enter(node, version, who, clean_start, will=Will("mail", b"forged", 1)))[0] == not_authorized(
                version
            )
        assert "reason=session_of_another setting=access.session_owner" in caplog.text
        assert "the session belongs to username:ann" in caplog.text
        await ann.nothing()  # neither closed nor told anything
        await ann.drop()
        writer = await node.client("writer", 5)
        await writer.publish("mail", b"for ann", 1)
        assert (await enter(node, version, who, clean_start))[0] == not_authorized(version)
        code, present, ann = await enter(node, version, "ann")
        assert (code, present) == (0, version > 3)  # 3.1 has no Session Present
        await ann.expect_publish("mail", b"for ann", 1)
        told = (await node.api.get("/clients/dev/explain")).data
        assert told["session"]["owner"] == "username:ann"
        refused = [event for event in told["events"] if event["reason"] == "session_of_another"]
        assert refused and refused[0]["setting"] == "access.session_owner"
        assert node.server.metrics.refusals.snapshot()["session_of_another"] == 2


@five
async def test_over_websocket_too(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        await enter(node, version, "ann", transport="ws")
        assert (await enter(node, version, "bob", transport="ws"))[0] == not_authorized(version)


@five
async def test_the_setting_for_any_client(version: int) -> None:
    async with managed_node(access={**ACCESS, "session_owner": "any"}) as node:
        await enter(node, version, "ann")
        assert (await enter(node, version, "bob"))[:2] == (0, True)
        (session,) = [each for each in node.server.broker.sessions if each.client_id == "dev"]
        assert session.owner == "username:bob"
        assert (await enter(node, version, None))[:2] == (0, True)
        assert session.owner == "username:bob"


@five
async def test_nobodys_session_becomes_a_user_s(version: int) -> None:
    """A site that gives its anonymous clients names: the first that proves one has the session from then on."""
    async with managed_node(access=ACCESS) as node:
        await enter(node, version, None)
        assert (await enter(node, version, "ann"))[:2] == (0, True)
        assert (await enter(node, version, None))[0] == not_authorized(version)
        assert (await enter(node, version, "bob"))[0] == not_authorized(version)


@five
async def test_a_device_that_proves_its_identifier(version: int) -> None:
    """And a user name that it only says: the session is of the identifier, and no user's."""
    async with managed_node(access=ACCESS) as node:
        await node.api.post("/auth_clientid", DEVICE)
        await enter(node, version, "eve", password=b"d1")
        assert (await enter(node, version, "ann"))[0] == not_authorized(version)
        assert (await enter(node, version, "adam", password=b"d1"))[:2] == (0, True)


@five
async def test_an_operator_frees_the_identifier(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        _, _, ann = await enter(node, version, "ann")
        await ann.drop()
        assert (await enter(node, version, "bob"))[0] == not_authorized(version)
        assert (await node.api.delete("/clients/dev")).code == 0
        assert (await enter(node, version, "bob"))[:2] == (0, False)


@five
async def test_a_session_that_has_ended_is_nobodys(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        _, _, ann = await enter(node, version, "ann", True, properties={})
        await ann.disconnect()
        await node.server.tick()
        assert (await enter(node, version, "bob"))[:2] == (0, False)


async def test_who_proves_no_name_shares_sessions_as_before() -> None:
    """Where nobody authenticates a name says nothing."""
    async with managed_node() as node:
        await enter(node, 4, "ann")
        assert (await enter(node, 4, "bob"))[:2] == (0, True)
        assert (await enter(node, 4, None))[:2] == (0, True)


async def test_after_a_restart(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "access": ACCESS, "node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"},
    }  # fmt: skip
    async with managed_node(**config) as node:
        _, _, ann = await enter(node, 5, "ann")
        await ann.subscribe("mail", qos=1)
        await ann.drop()
    async with managed_node(**config) as node:
        session = node.server.broker.sessions.get("dev")
        assert session is not None and session.owner == "username:ann"
        for who in ("bob", None):
            assert (await enter(node, 5, who))[0] == 0x87
        assert (await enter(node, 5, "ann"))[:2] == (0, True)
        assert session.owner == "username:ann"
