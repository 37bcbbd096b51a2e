"""ManagementServer: what it says when it starts to listen."""

import logging
from typing import Any

import msgspec
import pytest

from taipan.broker.access.password_hash import ScryptHash
from taipan.management.http.listener import HttpListener
from tests.support.api import managed_node

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]", "127.0.0.1", "[::1]", "localhost"])
async def test_secrets_in_clear_text_beyond_loopback(
    host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def opened(*_: Any) -> None:
        """Nobody listens in a test but on loopback."""

    monkeypatch.setattr(HttpListener, "open", opened)
    caplog.set_level(logging.WARNING, "taipan.management")
    async with managed_node(management={"bind": f"{host}:0"}):
        pass
    beyond = host in ("0.0.0.0", "192.0.2.1", "[::]")
    assert ("management_without_tls" in caplog.text and "setting=management.tls" in caplog.text) is beyond


async def test_a_reload_takes_the_right_of_a_superuser_who_is_connected() -> None:
    root = {"username": "root", "password_hash": str(ScryptHash.create(b"r", n=1024)), "is_superuser": True}
    access = {"hash_cost": 10, "no_match": "deny", "users": [root]}
    async with managed_node(access=access) as node:
        peer = await node.client("c", username="root", password=b"r")
        assert await peer.publish("t", qos=1, expect=(0, 0x10, 0x87)) != 0x87
        users = [msgspec.structs.replace(node.settings.access.users[0], is_superuser=False)]
        access_now = msgspec.structs.replace(node.settings.access, users=users)
        node.management.check(node.management.settings, node.management.history.settings)
        node.server.reload(msgspec.structs.replace(node.settings, access=access_now))
        node.management.reload(node.management.settings)
        await peer.ping()
        assert await peer.publish("t", qos=1, expect=(0, 0x10, 0x87)) == 0x87
