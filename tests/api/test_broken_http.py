"""Connections that are slow, too many or no HTTP: all are refused, and the node goes on."""

import asyncio
import base64

import pytest

from taipan.management.http.connection import MAX_WITHOUT_REQUEST
from tests.api.raw_http import request_head, send
from tests.support.api import managed_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

CHUNKED = "Transfer-Encoding: chunked"
PUBLISH = b'{"topic":"t","payload":"x","clientid":"a"}'
BROKEN = {
    "two lengths": request_head("POST", "/mqtt/publish", "Content-Length: 5", "Content-Length: 6") + PUBLISH,
    "two equal lengths": request_head("POST", "/mqtt/publish", "Content-Length: 42, 42") + PUBLISH,
    "length and chunks": request_head("POST", "/mqtt/publish", "Content-Length: 3", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n",
    "a negative length": request_head("POST", "/mqtt/publish", "Content-Length: -1") + PUBLISH,
    "a length with a sign": request_head("POST", "/mqtt/publish", "Content-Length: +42") + PUBLISH,
    "a length in words": request_head("POST", "/mqtt/publish", "Content-Length: many") + PUBLISH,
    "garbage for chunks": request_head("POST", "/mqtt/publish", CHUNKED) + b"zz\r\n\r\n",
    "a negative chunk": request_head("POST", "/mqtt/publish", CHUNKED) + b"-1\r\nx\r\n",
    "an unknown coding": request_head("POST", "/mqtt/publish", "Transfer-Encoding: chunked, nonsense") + b"0\r\n\r\n",
    "no gzip": request_head("POST", "/mqtt/publish", "Content-Encoding: gzip", "Content-Length: 4") + b"abcd",
    "an endless header": request_head("GET", "/brokers", "X-A: " + "a" * 20_000),
    "too many headers": request_head("GET", "/brokers", *[f"X-{each}: a" for each in range(5000)]),
    "a header without a name": request_head("GET", "/brokers", ": a"),
    "a header with a NUL": request_head("GET", "/brokers", "X-A: \x00"),
    "a folded header": request_head("GET", "/brokers", "X-A: a", " b: c"),
    "an endless line": request_head("GET", "/" + "a" * 400_000),
    "a NUL in the line": b"GET /api/v4/\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": request_head("BREW", "/brokers"),
    "no version": b"GET /api/v4/brokers\r\n\r\n",
    "an odd version": b"GET /api/v4/brokers HTTP/9.9\r\nHost: a\r\n\r\n",
    "MQTT": b"\x10\x0c\x00\x04MQTT\x04\x02\x00<\x00\x00\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
"""What a careful server answers with 400, or by hanging up."""


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_no_http_is_refused(what: str) -> None:
    async with managed_node() as node:
        published = (await node.api.get(f"/nodes/{node.name}/metrics")).data["messages.publish"]
        status, body = await send(node, BROKEN[what])
        assert status in (0, 400, 401), str(body)[:300]
        if status:
            assert body["code"] in (104, 108) and body["message"], body
        assert (await node.api.get("/brokers")).code == 0
        assert (await node.api.get(f"/nodes/{node.name}/metrics")).data["messages.publish"] == published


@pytest.mark.parametrize("target", ["*", "http://elsewhere/api/v4/brokers", "//elsewhere/api/v4/brokers", "brokers"])
async def test_odd_targets(target: str) -> None:
    async with managed_node() as node:
        status, body = await send(node, f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert status in (400, 401, 404) and body["code"] in (102, 104, 108), body
        assert (await node.api.get("/brokers")).code == 0


@pytest.mark.parametrize("setting", ["first_request_timeout", "read_timeout"])
async def test_who_says_nothing_is_put_out(setting: str) -> None:
    async with managed_node({setting: 0.1}) as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        for begun in (b"", b"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begun)
            async with asyncio.timeout(patience(40)):
                assert await reader.read() == b""
            writer.close()
        # Whoever has been answered may stay.
        assert (await node.api.get("/brokers")).code == 0


async def test_a_body_that_never_ends_is_refused() -> None:
    async with managed_node({"read_timeout": 0.1}) as node:
        status, body = await send(node, request_head("POST", "/mqtt/publish", "Content-Length: 42") + PUBLISH[:20])
        assert (status, body["code"]) == (400, 108) and "read_timeout" in body["message"]


async def test_who_waits_before_its_body_may_send_it() -> None:
    async with managed_node() as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(patience(40)):
            length = f"Content-Length: {len(PUBLISH)}"
            writer.write(request_head("POST", "/mqtt/publish", length, "Expect: 100-continue"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(PUBLISH)
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"200"
        writer.close()
        status, body = await send(node, request_head("GET", "/brokers", "Expect: wonders"))
        assert (status, body["code"]) == (400, 108) and "Expect" in body["message"]


HEADS = {"line": b"GET /", "header": b"GET / HTTP/1.1\r\nX-A: ", "headers": b"GET / HTTP/1.1\r\n"}


@pytest.mark.parametrize("begun", HEADS.values(), ids=list(HEADS))
async def test_a_head_that_never_ends_is_cut_off(begun: bytes) -> None:
    async with managed_node() as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        piece = b"X-A: " + b"a" * 4000 + b"\r\n" if begun.endswith(b"\n") else b"a" * 4000
        async with asyncio.timeout(patience(40)):
            try:
                writer.write(begun)
                for _ in range(2 * MAX_WITHOUT_REQUEST // len(piece)):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                answer = await reader.read()
            except ConnectionError:
                answer = b""
        assert not answer or answer.split()[1] == b"400"
        writer.close()
        assert (await node.api.get("/brokers")).code == 0


async def test_the_credentials_that_cannot_be_read_are_not_called_empty() -> None:
    async with managed_node() as node:
        head = b"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\nAuthorization: Basic %b\r\n\r\n"
        for given in (b"!!!", base64.b64encode(b"\xff\xfe:x")):
            status, body = await send(node, head % given)
            assert (status, body["code"]) == (401, 104) and "not Base64 of UTF-8" in body["message"]
        status, body = await send(node, head % base64.b64encode(b":"))
        assert (status, body["code"]) == (401, 104) and "both are empty" in body["message"]


@pytest.mark.parametrize("coding", ["br", "zstd", "nonsense"])
async def test_a_coding_that_is_not_decoded_is_named(coding: str) -> None:
    async with managed_node() as node:
        octets = request_head("POST", "/mqtt/publish", f"Content-Encoding: {coding}", f"Content-Length: {len(PUBLISH)}")
        status, body = await send(node, octets + PUBLISH)
        assert (status, body["code"]) == (400, 108) and coding in body["message"] and "install" not in body["message"]


async def test_bytes_that_are_not_utf_8_have_their_place() -> None:
    async with managed_node() as node:
        octets = request_head("POST", "/mqtt/publish", "Content-Length: 9") + b'{"a":"\xff"}'
        status, body = await send(node, octets)
        assert (status, body["code"]) == (400, 109) and "codec" not in body["message"]


async def test_who_reads_only_after_a_body_that_is_too_long_gets_the_answer() -> None:
    """With the length said or not; the connection is not reset while the body is sent."""
    async with managed_node({"max_body": 1000}) as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        for header, body in (
            ("Content-Length: 8000000", b" " * 8_000_000),
            ("Transfer-Encoding: chunked", b"7a1200\r\n" + b" " * 8_000_000 + b"\r\n0\r\n\r\n"),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request_head("POST", "/mqtt/publish", header))
            for start in range(0, len(body), 100_000):
                writer.write(body[start : start + 100_000])
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400 "), head
            writer.close()


async def test_a_body_far_beyond_the_limit_is_not_read_to_its_end() -> None:
    async with managed_node({"max_body": 1000}) as node:
        status, body = await send(
            node, request_head("POST", "/mqtt/publish", "Content-Length: 99999999999") + b" " * 99
        )
        assert (status, body["code"]) == (400, 108) and "max_body" in body["message"]
