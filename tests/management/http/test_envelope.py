"""Envelope: a listing that breaks off is never taken for a whole one."""

import asyncio
import base64
import logging
from collections.abc import Iterator

import aiohttp
import pytest
from yarl import URL

from taipan.management.operations.listing import Listing
from tests.api.raw_http import request_head
from tests.support.api import APP_ID, SECRET, ManagedNode, managed_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


def rows(healthy: int) -> Iterator[int]:
    yield from range(healthy)
    raise ZeroDivisionError


def row(number: int) -> dict[str, str]:
    return {"clientid": f"{number}", "filler": "x" * 1000}


async def test_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as node:
        monkeypatch.setattr(node.management.operations.clients, "cut", lambda *_: Listing(rows(1), 1, 9999, row))
        reply = await node.api.get("/clients")
        error = _complaint_of(node)
        assert (reply.status, reply.code) == (500, 102)
        assert "ZeroDivisionError" in error


async def test_after_half_of_it_is_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with managed_node() as node:
        cut = node.management.operations.clients.cut
        monkeypatch.setattr(node.management.operations.clients, "cut", lambda *_: Listing(rows(9000), 1, 9999, row))
        with pytest.raises(aiohttp.ClientError):
            await node.api.get("/clients")
        assert "ZeroDivisionError" in _complaint_of(node)
        assert [record.name for record in caplog.records] == ["taipan.management.http.envelope"]
        monkeypatch.setattr(node.management.operations.clients, "cut", cut)
        assert (await node.api.get("/clients")).data == []


async def test_who_leaves_amid_the_answer_leaves_no_trace_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with managed_node() as node:
        monkeypatch.setattr(
            node.management.operations.clients, "cut", lambda *_: Listing(iter(range(200_000)), 1, 200_000, row)
        )
        url = URL(node.management.url + "/api/v4/clients")
        who = {"Authorization": "Basic " + base64.b64encode(f"{APP_ID}:{SECRET}".encode()).decode()}
        async with aiohttp.ClientSession(headers=who) as caller:
            response = await caller.get(url)
            await response.content.read(1)
            response.close()
        listener = node.management.operations.listeners.http_listeners[0]
        async with asyncio.timeout(patience(40)):
            while listener.current_connections:
                await asyncio.sleep(0.001)
    assert [record.name for record in caplog.records if record.exc_info] == []


async def test_head_has_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as node:
        monkeypatch.setattr(
            node.management.operations.clients, "cut", lambda *_: Listing(iter(range(9000)), 1, 9999, row)
        )
        host, _, port = node.management.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_head("HEAD", "/clients") + request_head("GET", "/brokers", "Connection: close"))
        async with asyncio.timeout(patience(40)):
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 200") and rest.startswith(b"HTTP/1.1 200") and rest.endswith(b"}]}")
        assert (await node.api.ask("HEAD", "/clients")).status == 200
        assert len((await node.api.get("/clients")).data) == 9000


def _complaint_of(node: ManagedNode) -> str:
    """The one error that the node logged, which it may this time."""
    (complaint,) = node._complaints.records
    node._complaints.records.clear()
    return complaint
