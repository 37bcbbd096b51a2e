"""Reader: one HTTP connection, which has to say what it wants within a time, and is told in JSON what is wrong."""

import asyncio
import logging
import sys
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ..operations.refusal import WRONG
from .envelope import json_response

logger = logging.getLogger(__name__)

LONGEST_LINE: Final = 262_144
"""Bytes of a request line: room for a name of MQTT's longest, 65,535 bytes, percent-encoded."""


class Reader(RequestHandler):
    """Closes unless ``greet`` is called within ``patience`` seconds; between requests aiohttp's own timer holds."""

    __slots__ = ("_impatience", "_patience")

    def __init__(self, manager: Any, loop: asyncio.AbstractEventLoop, patience: float, **options: Any) -> None:
        super().__init__(manager, loop=loop, max_line_size=LONGEST_LINE, **options)
        self._patience = patience
        self._impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._impatience = asyncio.get_running_loop().call_later(self._patience, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.greet()
        super().connection_lost(exc)

    def greet(self) -> None:
        """The first request is there."""
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A body that breaks its headers' word is told to who sent it; the log needs no trace of that."""
        error = sys.exception()
        if isinstance(error, web.RequestPayloadError):
            logger.debug("api_body_broken error=%s", error)
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
        response.force_close()
        return response
