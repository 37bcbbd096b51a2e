"""Very many unauthenticated connections at the HTTP API: who has credentials comes in beside them."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.transport.descriptors import Descriptors
from taipan.management.http.listener import HttpListener
from tests.api.raw_http import BASIC
from tests.support.api import ManagedNode, managed_node
from tests.support.certificates import Certificates
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

SILENT = b""
HALF = b"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\n"
GUESS = HALF + b"Authorization: Basic YTpi\r\n\r\n"
OPEN_TO_ALL = b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def unauthenticated(node: ManagedNode, addresses: list[str], say: bytes) -> AsyncIterator[None]:
    """One from each of ``addresses``, which may repeat."""
    port = int(node.management.url.rpartition(":")[2])
    writers = []
    for address in addresses:
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writer.write(say)
        writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


def listener(node: ManagedNode) -> Any:
    (found,) = node.management.operations.listeners.http_listeners
    return found


@pytest.mark.parametrize("say", [SILENT, HALF, GUESS, OPEN_TO_ALL], ids=["silent", "half", "guess", "open to all"])
async def test_520_unauthenticated_do_not_shut_out_who_asks_from_their_address(
    say: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "taipan.management.http.listener")
    async with managed_node({"first_request_timeout": 60}) as node:
        async with unauthenticated(node, ["127.0.0.1"] * 520, say):
            async with asyncio.timeout(patience(40)):
                assert (await node.api.get("/brokers")).code == 0
                while listener(node).accepted < 521:
                    await asyncio.sleep(0.01)
            assert listener(node).current_connections <= 257
            # Each that is gone was put out, but for those who had their answer: their connection may be over anyway.
            gone = listener(node).accepted - listener(node).current_connections
            put_out = listener(node).refused["max_unauthenticated"]
            assert put_out == gone or (say in (GUESS, OPEN_TO_ALL) and 0 < put_out < gone)
            assert listener(node).refused["max_connections"] == listener(node).refused["no_sockets"] == 0
            # Whoever has shown credentials stays, however many come later.
            async with unauthenticated(node, ["127.0.0.1"] * 300, say):
                assert (await node.api.get("/brokers")).code == 0
            assert listener(node).accepted == 821
        async with asyncio.timeout(patience(40)):
            while listener(node).current_connections > 1:
                await asyncio.sleep(0.01)
    (line,) = [message for message in caplog.messages if message.startswith("management_full ")]
    assert line.startswith("management_full reason=max_unauthenticated connections=256 unauthenticated=256 refused=1 ")
    assert line.endswith(" setting=management.max_unauthenticated")


async def test_520_unauthenticated_from_many_addresses() -> None:
    addresses = [f"127.0.{number // 200}.{number % 200 + 2}" for number in range(520)]
    async with managed_node() as node, unauthenticated(node, addresses, SILENT):
        async with asyncio.timeout(patience(40)):
            assert (await node.api.get("/brokers")).code == 0
            while listener(node).refused["max_connections"] < 9:
                await asyncio.sleep(0.01)
        assert listener(node).refused["max_connections"] == 9
        assert listener(node).current_connections == 512


async def test_connections_that_never_begin_their_handshake(tmp_path: Path) -> None:
    issuer = Certificates(tmp_path)
    certfile, keyfile = issuer.issue("localhost")
    management = {"max_connections": 5, "tls": {"certfile": str(certfile), "keyfile": str(keyfile)}}
    async with managed_node(management) as node, unauthenticated(node, ["127.0.0.1"] * 20, SILENT):
        context = ssl.create_default_context(cafile=issuer.ca)
        port = int(node.management.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        request = f"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: {BASIC}\r\n\r\n"
        writer.write(request.encode())
        async with asyncio.timeout(patience(40)):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (listener(node).accepted, listener(node).refused["max_connections"]) == (21, 16)


async def test_two_hundred_who_ask_at_once_are_all_answered() -> None:
    """Those who come are heard before those after them put them out."""
    async with managed_node({"max_unauthenticated": 100}) as node:
        port = int(node.management.url.rpartition(":")[2])
        request = f"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: {BASIC}\r\n\r\n"

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request.encode())
            answer = await reader.read()
            writer.close()
            return answer[:12]

        async with asyncio.timeout(patience(40)):
            assert set(await asyncio.gather(*[ask() for _ in range(200)])) == {b"HTTP/1.1 200"}


async def test_descriptors_that_the_node_keeps_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as node:
        port = int(node.management.url.rpartition(":")[2])
        assert (await node.api.get("/brokers")).code == 0
        found: HttpListener = listener(node)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        while found.accepted < 4:
            await asyncio.sleep(0)
        # All that may be taken are taken: the next one ends the oldest unauthenticated one.
        monkeypatch.setattr(found, "_descriptors", Descriptors(100, 0, 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(OPEN_TO_ALL)
        async with asyncio.timeout(patience(40)):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(ConnectionResetError):
                assert await held[0][0].read() == b""
        assert found.refused["no_sockets"] == 1
        assert (await node.api.get("/brokers")).code == 0
        for _, each in (*held, (reader, writer)):
            each.close()
