"""An HTTP server that keeps what it is sent: the other side of a web hook."""

import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from .node import free_port


class HttpSink:
    """An HTTP server on a port of its own that can be started, stopped and started again.

    ``requests`` are (method, path with query, headers in lower case, body) of everything that came; ``answer`` makes
    the replies.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: Callable[[web.Request, bytes], Awaitable[web.StreamResponse]] = _ok
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[bytes]:
        return [each[3] for each in self.requests]

    async def start(self, tls: ssl.SSLContext | None = None) -> "HttpSink":
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=tls).start()
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.raw_path, headers, body))
        return await self.answer(request, body)


async def _ok(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.Response(text="ok")


def status(code: int, **headers: str) -> Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]:
    """An ``answer`` with this status."""

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.Response(status=code, headers=headers, text="no")

    return answer
