"""Clients with a pre-shared key: who they are in the node, and what /access/try_login says of them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.password_hash import ScryptHash
from tests.support.api import ManagedNode, managed_node
from tests.support.peer import Peer
from tests.support.psk import KEY, PskClient, PskFile, needs_psk, psk_works

__all__ = ["psk_works"]

pytestmark = [pytest.mark.asyncio, needs_psk]


def listener(file: PskFile, kind: str = "ssl", **tls: Any) -> dict[str, Any]:
    return {"type": kind, "tls": msgspec.to_builtins(file.settings(**tls))}


async def came_in(node: ManagedNode, kind: str = "ssl", identity: str = "pump-7", **connect: Any) -> Any:
    """The ClientInfo of a client."""
    peer = Peer(node.address(kind), 5, PskClient(identity).context)
    await peer.connect("c", **connect)
    client = node.server.context.channels["c"].client
    await peer.disconnect()
    peer.abort()
    return client


async def tried(node: ManagedNode, **body: Any) -> Any:
    reply = await node.api.post("/access/try_login", {"clientid": "c", **body})
    assert reply.code == 0, reply.text
    return reply.data


@pytest.mark.parametrize("kind", ["ssl", "wss"])
async def test_the_identity_is_the_username(tmp_path: Path, kind: str) -> None:
    file = PskFile(tmp_path)
    file.write({"pump-7": KEY, "root": KEY})
    secure = listener(file, kind, psk_identity_as_username=True)
    users = [{"username": "root", "password_hash": str(ScryptHash.create(b"x", n=16)), "is_superuser": True}]
    async with managed_node(listeners=[secure], zone={"allow_anonymous": False}, access={"users": users}) as node:
        client = await came_in(node, kind, username="somebody", password=b"else")
        assert (client.username, client.proved_by, client.user, client.anonymous) == ("pump-7", "psk", "pump-7", False)
        assert not client.is_superuser
        told = await tried(node, username="pump-7")
        assert (told["allowed"], told["username"], told["proved_by"]) == (True, "pump-7", "psk")
        assert told["steps"][0]["detail"].startswith("the username is the identity of a pre-shared key")
        told = await tried(node, username="pump-8")
        assert (told["allowed"], told["setting"]) == (False, "tls.psk_file")
        assert told["reason"] == "unknown identity 'pump-8'"
        assert (await came_in(node, kind, "root")).is_superuser


async def test_a_key_alone_names_no_user(tmp_path: Path) -> None:
    async with managed_node(listeners=[listener(PskFile(tmp_path))], zone={"allow_anonymous": True}) as node:
        client = await came_in(node)
        assert (client.username, client.proved_by, client.cn) == (None, "", "pump-7")
        client = await came_in(node, username="ann")
        assert (client.username, client.proved_by) == ("ann", "")
        told = await tried(node)
        assert told["allowed"] and not told["proved_by"]


async def test_refusals_are_counted(tmp_path: Path) -> None:
    async with managed_node(listeners=[listener(PskFile(tmp_path))], zone={"allow_anonymous": True}) as node:
        with pytest.raises(OSError):
            await came_in(node, identity="pump-8")
        assert node.server.listeners[0].refused == {"tls_psk": 1}
        reply = await node.api.get("/reasons")
        assert any(each["reason"] == "tls_psk" for each in reply.data)
