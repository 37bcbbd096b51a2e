"""A user that is deleted: its connections end at once, its sessions stay, nobody else is concerned."""

import msgspec
import pytest

from tests.support.api import ManagedNode, managed_node
from tests.support.peer import Peer
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio

versions = pytest.mark.parametrize("version, transport", [(4, "tcp"), (5, "tcp"), (5, "ws")])
NOT_AUTHORIZED = 0x87
CHEAP = {"hash_cost": 10}


async def enter(node: ManagedNode, client_id: str, version: int, transport: str, username: str | None) -> Peer:
    return await node.client(client_id, version, transport, username=username, password=PASSWORD, expiry=3600)


@versions
async def test_a_stored_user(version: int, transport: str) -> None:
    async with managed_node(access=CHEAP) as node:
        password = PASSWORD.decode()
        rows = [{"login": name, "password": password, "is_superuser": False} for name in ("ann", "bob")]
        assert (await node.api.post("/auth_user", rows)).code == 0
        ann = await enter(node, "a1", version, transport, "ann")
        await ann.subscribe("t", qos=1)
        bob = await enter(node, "b1", version, transport, "bob")
        assert (await node.api.delete("/auth_user/ann")).code == 0
        await ann.expect_disconnect(NOT_AUTHORIZED)
        await bob.nothing()
        session = node.server.broker.sessions.get("a1")
        assert session is not None and "t" in session.subscriptions
        with pytest.raises(AssertionError, match="reason_code"):
            await enter(node, "a1", version, transport, "ann")


@versions
async def test_a_client_identifier(version: int, transport: str) -> None:
    async with managed_node(access=CHEAP) as node:
        password = PASSWORD.decode()
        for name in ("one", "two"):
            row = {"clientid": name, "password": password}
            assert (await node.api.post("/auth_clientid", row)).code == 0
        one = await enter(node, "one", version, transport, "nobody")
        two = await enter(node, "two", version, transport, "nobody")
        assert (await node.api.delete("/auth_clientid/one")).code == 0
        await one.expect_disconnect(NOT_AUTHORIZED)
        await two.nothing()


@versions
async def test_a_user_of_the_file(version: int, transport: str) -> None:
    async with managed_node(access={**CHEAP, "users": users("ann", "bob")}) as node:
        ann = await enter(node, "a1", version, transport, "ann")
        bob = await enter(node, "b1", version, transport, "bob")
        settings = node.server.settings
        left = [each for each in settings.access.users if each.username != "ann"]
        access = msgspec.structs.replace(settings.access, users=left)
        node.server.reload(msgspec.structs.replace(settings, access=access))
        node.management.reload(node.management.settings)
        await ann.expect_disconnect(NOT_AUTHORIZED)
        await bob.nothing()
