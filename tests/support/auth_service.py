"""AuthService: the HTTP service that a node asks, on a loopback port, answering as a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Question = dict[str, str]
Reply = int | str | Callable[[Question], Any]


class AuthService:
    """``replies``: by path what to answer: a status, a body with 200, a callable on the question, which gives one of
    these and may be a coroutine function. ``asked``: all questions as (path, parameters). While ``gate`` is not set,
    nobody is answered."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {"/auth": 200, "/super": 403, "/acl": 200}
        self.asked: list[tuple[str, Question]] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[Any] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_once = 0
        self.most_at_once = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """``[access.http]`` that asks about connecting and permissions."""
        return {"auth_url": self.url("/auth"), "acl_url": self.url("/acl"), "timeout": 20.0, **more}

    def questions(self, path: str = "/acl") -> list[Question]:
        return [question for asked, question in self.asked if asked == path]

    def topics(self) -> list[str]:
        return [question["topic"] for question in self.questions()]

    async def _answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            question = dict(request.query)
        elif request.content_type == "application/json":
            question = await request.json()
        else:
            question = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append((request.path, question))
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
            reply: Any = self.replies[request.path]
            if callable(reply):
                reply = reply(question)
            if asyncio.iscoroutine(reply):
                reply = await reply
        finally:
            self.at_once -= 1
        if reply == "hang up":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(reply, str):
            return web.Response(text=reply)
        return web.Response(status=reply)


@asynccontextmanager
async def auth_service() -> AsyncIterator[AuthService]:
    service = AuthService()
    await service.start()
    try:
        yield service
    finally:
        service.gate.set()
        await service.stop()
