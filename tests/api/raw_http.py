"""HTTP requests octet by octet, right or wrong, and what a node answers to them."""

import asyncio
import base64
from typing import Any

import msgspec

from tests.support.api import APP_ID, SECRET, ManagedNode
from tests.support.patience import patience

BASIC = "Basic " + base64.b64encode(f"{APP_ID}:{SECRET}".encode()).decode()


def request_head(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} /api/v4{path} HTTP/1.1", "Host: taipan", f"Authorization: {BASIC}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


async def send(node: ManagedNode, octets: bytes) -> tuple[int, Any]:
    """Status and body of the first answer; 0 where the connection was closed without one."""
    host, port = node.management.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(patience(40)):
            writer.write(octets)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            (length,) = [
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
            ]
            return status, msgspec.json.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, None
    finally:
        writer.close()
