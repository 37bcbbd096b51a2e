"""A reader of ``/api/v4/live``."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from .api import APP_ID, SECRET, ManagedNode
from .patience import patience

PATIENCE = 40.0


class Events:
    """A live stream as a page reads it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.seen: list[tuple[str, Any]] = []

    async def next(self, name: str | None = None, where: Callable[[Any], Any] = lambda data: True) -> Any:
        """The data of the next event, or of the next one of this name with such data."""
        async with asyncio.timeout(patience(PATIENCE)):
            while True:
                event, data = await self._read()
                self.seen.append((event, data))
                if name in (None, event) and where(data):
                    return data

    async def ended(self) -> bool:
        """Whether nothing more comes, but the end."""
        async with asyncio.timeout(patience(PATIENCE)):
            return await self.response.content.read() == b""

    async def _read(self) -> tuple[str, Any]:
        name, data = "", ""
        while line := await self.response.content.readline():
            text = line.decode()
            assert text.endswith("\n")
            text = text[:-1]
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data += text.removeprefix("data: ")
            elif not text and name:
                return name, json.loads(data)
        raise AssertionError("the stream is over")


def credentials(app: tuple[str, str] = (APP_ID, SECRET)) -> str:
    return "Basic " + base64.b64encode(":".join(app).encode()).decode()


@asynccontextmanager
async def live(node: ManagedNode, app: tuple[str, str] = (APP_ID, SECRET), /, **query: Any) -> AsyncIterator[Events]:
    """A stream for as long as the block lasts."""
    async with aiohttp.ClientSession(headers={"Authorization": credentials(app)}) as session:
        url = node.management.url + "/api/v4/live"
        async with session.get(url, params={key: str(value) for key, value in query.items()}) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream"
            yield Events(response)
