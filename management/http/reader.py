"""Reader: one HTTP connection, which has to say what it wants within a time, and is told in JSON what is wrong."""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ..operations.refusal import WRONG
from .envelope import json_response

logger = logging.getLogger(__name__)

SERVER: Final = "taipan"
"""In place of the library's ``Server`` header, which tells versions."""
LONGEST_LINE: Final = 262_144
"""Bytes of a request line: room for a name of MQTT's longest, 65,535 bytes, percent-encoded."""


MOST_UNHEARD: Final = 2_097_152
"""Bytes from which no request has come: far more than a head has, and than a body brings before it is asked for."""


class Reader(RequestHandler):
    """``on_known`` is to be called when it was given right credentials.

    Closes unless ``greet`` is called within ``patience`` seconds; between requests aiohttp's own timer holds.

    aiohttp bounds the lines of a head that comes in one piece; here what comes in many is bounded.
    """

    __slots__ = ("_answering", "_held", "_impatience", "_patience", "_unheard", "on_known")

    def __init__(self, manager: Any, loop: asyncio.AbstractEventLoop, patience: float, **options: Any) -> None:
        super().__init__(manager, loop=loop, max_line_size=LONGEST_LINE, **options)
        self._patience = patience
        self._impatience: asyncio.TimerHandle | None = None
        self._answering = False
        self._unheard = 0
        self._held: asyncio.Future[None] | None = None
        self.on_known: Callable[[], None] = _nobody_asks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._impatience = asyncio.get_running_loop().call_later(self._patience, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.greet()
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._answering:
            self._unheard += len(data)
            if self._unheard > MOST_UNHEARD:
                self.force_close()
                return
        super().data_received(data)

    def greet(self) -> None:
        """A request is there."""
        self._answering = True
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def part(self) -> None:
        """It is answered; the next one may come."""
        self._answering = False
        self._unheard = 0

    async def hold(self, seconds: float) -> None:
        """Wait so long, or until the connection is lost."""
        if self.transport is None:
            return
        loop = asyncio.get_running_loop()
        self._held = loop.create_future()
        timer = loop.call_later(seconds, self._release)
        try:
            await self._held
        finally:
            timer.cancel()
            self._held = None

    def _release(self) -> None:
        if self._held is not None and not self._held.done():
            self._held.set_result(None)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A caller who goes amid the answer, or whose body breaks its headers' word, is no fault of the node."""
        error = kw.get("exc_info") or sys.exception()
        if isinstance(error, (ConnectionError, web.RequestPayloadError)):
            logger.debug("api_caller_lost error=%s", error)
        else:
            super().log_exception(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP gets its envelope all the same; the rest is aiohttp's."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        text = " ".join((message or "Bad Request").split())
        response = json_response({"code": WRONG, "message": f"this is no HTTP request: {text[:200]}"}, status)
        response.headers["Server"] = SERVER
        response.force_close()
        return response


def _nobody_asks() -> None:
    pass
