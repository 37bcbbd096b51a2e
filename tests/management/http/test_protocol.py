"""HttpProtocol: long names come through, and what is broken leaves no trace in the log."""

import asyncio
import base64
import logging

import pytest

from tests.support.api import APP_ID, SECRET, ManagedNode, managed_node, segment
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

BASIC = b"Authorization: Basic " + base64.b64encode(f"{APP_ID}:{SECRET}".encode()) + b"\r\n"


async def answer_to(node: ManagedNode, request: bytes) -> bytes:
    """All that comes back until the server closes."""
    host, _, port = node.management.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(patience(40)):
        octets = await reader.read()
    writer.close()
    return octets


@pytest.mark.parametrize("client_id", ["x" * 65_535, "é" * 32_000], ids=["ascii", "escaped"])
async def test_a_client_of_the_longest_name_can_be_looked_up_and_kicked(client_id: str) -> None:
    async with managed_node() as node:
        await node.client(client_id)
        path = f"/clients/{segment(client_id)}"
        (row,) = (await node.api.get(path)).data
        assert row["clientid"] == client_id
        (found,) = (await node.api.get("/clients", clientid=client_id)).data
        assert found["clientid"] == client_id
        assert (await node.api.delete(path)).json == {"code": 0}
        assert (await node.api.get(path)).data == []


@pytest.mark.parametrize("client_id", [".", "..", "username", "%", "%2e", "a/b", "a\0b"])
async def test_a_name_that_a_path_cannot_have_or_that_is_a_word(client_id: str) -> None:
    """A browser folds ``.`` and ``..`` away, escaped or not; ``/clients/username/x`` are the clients of a user."""
    async with managed_node() as node:
        await node.client("other", username="explain")
        if "\0" not in client_id:
            await node.client(client_id)
        path = f"/clients/{segment(client_id)}%00"
        expected = [] if "\0" in client_id else [client_id]
        assert [row["clientid"] for row in (await node.api.get(path)).data] == expected
        if expected:
            assert (await node.api.get(f"{path}/explain")).data["clientid"] == client_id
            assert (await node.api.delete(path)).json == {"code": 0}
        assert (await node.api.get(path)).data == []
        assert [row["clientid"] for row in (await node.api.get("/clients")).data] == ["other"]


async def test_a_line_beyond_that_is_refused() -> None:
    async with managed_node() as node:
        reply = await node.api.get("/clients/" + "x" * 300_000)
        assert (reply.status, reply.code) == (400, 108)


@pytest.mark.parametrize("who", [BASIC, b""], ids=["app", "anonymous"])
async def test_a_body_that_is_not_what_its_headers_say(caplog: pytest.LogCaptureFixture, who: bytes) -> None:
    caplog.set_level(logging.WARNING)
    async with managed_node() as node:
        head = b"POST /api/v4/mqtt/publish HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + who
        octets = await answer_to(node, head + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")
        assert octets.split(b" ", 2)[1] == (b"400" if who else b"401")
    assert [record.name for record in caplog.records if record.exc_info] == []


async def test_a_path_as_a_proxy_asks_for_it() -> None:
    async with managed_node() as node:
        for target in (b"http://node.example:8081/api/v4/brokers", b"HTTPS://node.example/api/v4/brokers?a=b"):
            request = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + BASIC + b"\r\n"
            assert (await answer_to(node, request)).startswith(b"HTTP/1.1 200")
        request = b"GET http://node.example HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + BASIC + b"\r\n"
        assert (await answer_to(node, request)).startswith(b"HTTP/1.1 404")
