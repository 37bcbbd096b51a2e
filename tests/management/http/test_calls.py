"""GET of one client: few calls of our own functions between the request and its encoded answer."""

import sys
from types import FrameType
from typing import Any, Final

import pytest
from aiohttp import web

from taipan.management.http.app import Application
from tests.support.api import managed_node

pytestmark = pytest.mark.asyncio

# Two for messages in flight, whose dict a session creates when it has some; two for what the clients of a socket share.
MAX_CALLS: Final = 34


async def test_get_of_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    handle = Application.handle

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("taipan."):
            called.append(frame.f_code.co_qualname)

    async def profiled(self: Application, request: web.Request) -> web.StreamResponse:
        called.clear()
        sys.setprofile(note)
        try:
            return await handle(self, request)
        finally:
            sys.setprofile(None)

    async with managed_node() as node:
        await node.client("c1", 4)
        await node.api.get("/clients/c1")  # the connection gives its credentials
        monkeypatch.setattr(Application, "handle", profiled)
        assert (await node.api.get("/clients/c1")).data[0]["clientid"] == "c1"
    assert called[0] == "Application.handle" and called[-1] == "json_response"
    assert len(called) <= MAX_CALLS, "\n".join(called)
