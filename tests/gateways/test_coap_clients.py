"""Clients of CoAP that others have written: libcoap's coap-client, as docs/gateways/coap.md has it, and aiocoap."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import aiocoap
import pytest
import pytest_asyncio

from taipan.broker.gateway import kind_of
from tests.support.api import ManagedNode, managed_node
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]

PROGRAMS = ["coap-client-openssl", "coap-client-gnutls"]
BODY = bytes(range(32, 127)) * 40


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ManagedNode]:
    assert kind_of("coap") is not None
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "coap", "name": "devices"}]) as made:
        yield made


def uri(node: ManagedNode, path: str) -> str:
    [listener] = [each for each in node.server.listeners if each.type == "coap"]
    return f"coap://127.0.0.1:{listener.port}/{path}"


async def begun(program: str, *options: str) -> asyncio.subprocess.Process:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing: apt install libcoap3-bin")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(program, *options, stdout=pipe, stderr=pipe)


async def said(program: str, *options: str) -> tuple[bytes, bytes]:
    """Run a command to its end; return its output and its error output."""
    process = await begun(program, "-B", "30", *options)
    async with asyncio.timeout(patience(40)):
        return await process.communicate()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_coap_client(node: ManagedNode, program: str, tmp_path: Path) -> None:
    peer = await node.client("m")
    await peer.subscribe("plant/#", qos=1)
    assert (await said(program, "-m", "get", uri(node, ".well-known/core")))[0].strip() == b"</mqtt>,</ps>"
    await said(program, "-m", "put", "-e", "21.5", uri(node, "mqtt/plant/temperature?c=sensor7"))
    await peer.expect_publish("plant/temperature", b"21.5", 1)
    assert b"4.00" in (await said(program, "-m", "put", "-e", "x", uri(node, "mqtt/plant/x")))[1]
    assert b"4.05" in (await said(program, "-m", "post", "-e", "x", uri(node, "mqtt/plant/x?c=a")))[1]
    file = tmp_path / "body"
    file.write_bytes(BODY)
    for block in ("64", "1024"):
        await said(program, "-b", block, "-m", "put", "-t", "42", "-f", str(file), uri(node, "ps/plant/big?c=a"))
        await peer.expect_publish("plant/big", BODY, 1)
    assert (await said(program, "-m", "get", uri(node, "ps/plant/big?c=b")))[0].strip() == BODY.strip()
    await said(program, "-m", "delete", uri(node, "ps/plant?c=a"))
    assert b"4.04" in (await said(program, "-m", "get", uri(node, "ps/plant/big?c=b")))[1]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("version", [4, 5])
async def test_coap_client_observes(node: ManagedNode, program: str, version: int) -> None:
    peer = await node.client("m", version=version)
    observer = await begun(program, "-s", "2", "-m", "get", uri(node, "mqtt/valve/+?c=valve1"))
    broker = node.server.broker
    await until(lambda: broker.sessions.get("valve1") is not None and broker.sessions.get("valve1").subscriptions)
    await peer.publish("valve/set", b"open", qos=1)
    await peer.publish("valve/big", BODY, qos=1)
    async with asyncio.timeout(patience(40)):
        output, _ = await observer.communicate()
    assert b"open" in output and BODY in output
    await until(lambda: not broker.sessions.get("valve1") or not broker.sessions.get("valve1").subscriptions)


async def test_aiocoap(node: ManagedNode) -> None:
    context = await aiocoap.Context.create_client_context()
    try:
        peer = await node.client("m", version=5)
        await peer.subscribe("t/#", qos=1)
        for payload in (b"21.5", BODY):
            request = aiocoap.Message(code=aiocoap.PUT, uri=uri(node, "mqtt/t/x?c=sensor7"), payload=payload)
            assert (await context.request(request).response).code == aiocoap.CHANGED
            await peer.expect_publish("t/x", payload, 1)
        observed = aiocoap.Message(code=aiocoap.GET, uri=uri(node, "mqtt/valve?c=sensor7"), observe=0)
        request = context.request(observed)
        assert (await request.response).code == aiocoap.CONTENT
        states = aiter(request.observation)
        for payload in (b"open", b"shut", BODY):
            await peer.publish("valve", payload, qos=1)
            async with asyncio.timeout(patience(20)):
                assert (await anext(states)).payload == payload
        request.observation.cancel()
        await peer.publish("r", BODY, qos=1, retain=True)
        read = aiocoap.Message(code=aiocoap.GET, uri=uri(node, "ps/r?c=sensor7"))
        assert (await context.request(read).response).payload == BODY
    finally:
        await context.shutdown()
