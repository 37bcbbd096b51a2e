"""A page of any site, read on the broker's own machine, tries to be one of its anonymous clients."""

import logging

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.node import Node, start_node
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio


async def page(node: Node, origin: str | None, version: int) -> Peer:
    peer = node.peer(version, "ws")
    await peer.open(origin=origin)
    await peer.connect("page")
    return peer


@pytest.mark.parametrize("version", [4, 5])
async def test_by_default_only_pages_of_this_machine_and_programs_read_and_write(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    node = await start_node()
    try:
        with caplog.at_level(logging.WARNING, "taipan.broker.transport.listener"):
            for origin in ("https://evil.example", "null"):
                with pytest.raises(InvalidStatus) as refused:
                    await page(node, origin, version)
                assert refused.value.response.status_code == 403
        (listener,) = [each for each in node.server.listeners if each.type == "ws"]
        assert (listener.refused, listener.accepted) == ({"websocket_origin": 2}, 0)
        # The second comes too soon after the first to be told as well, unless the machine is very slow.
        line = next(each for each in caplog.messages if "websocket_origin" in each)
        assert (
            "reason=websocket_origin" in line and "setting=allowed_origins" in line and "https://evil.example" in line
        )
        for origin in ("http://localhost:5173", None):
            peer = await page(node, origin, version)
            await peer.subscribe("a/#")
            await peer.publish("a/b", b"mine", qos=1)
            await peer.drop()
    finally:
        await node.stop()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_setting_names_the_sites_that_may(version: int) -> None:
    node = await start_node(listeners=[{"type": "ws", "allowed_origins": ["https://panel.example"]}])
    try:
        with pytest.raises(InvalidStatus):
            await page(node, "https://evil.example", version)
        await page(node, "https://panel.example", version)
    finally:
        await node.stop()


@pytest.mark.parametrize("version", [4, 5])
async def test_where_the_configuration_lets_anonymous_clients_in_any_page_may_come(version: int) -> None:
    node = await start_node({"allow_anonymous": True})
    try:
        await page(node, "https://anywhere.example", version)
    finally:
        await node.stop()
