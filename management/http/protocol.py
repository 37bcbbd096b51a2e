"""HttpProtocol: aiohttp's protocol of one connection, with JSON answers to requests that are not HTTP."""

import asyncio
import logging
import re
import sys
from typing import Any, Final

from aiohttp import web

from ..operations.refusal import WRONG
from .connection import HttpConnection
from .envelope import json_response

logger = logging.getLogger(__name__)

SERVER: Final = "taipan"
"""Replaces the library's ``Server`` header, which contains versions."""
_CODING: Final = re.compile(r"content-encoding: \w+ \((\w+)\)")
MAX_LINE_LENGTH: Final = 262_144
"""Maximum length of a request line in bytes: enough for the longest name in MQTT, 65,535 bytes, percent-encoded."""


class HttpProtocol(web.RequestHandler):
    """Middleware does not see requests that cannot be parsed, so these two methods answer and log them
    ([0039](../../docs/decisions/0039-public-interfaces.md))."""

    __slots__ = ("connection",)

    def __init__(
        self, manager: web.Server, loop: asyncio.AbstractEventLoop, connection: HttpConnection, **options: Any
    ) -> None:
        super().__init__(manager, loop=loop, max_line_size=MAX_LINE_LENGTH, **options)
        self.connection = connection

    def log_exception(self, *args: object, **kw: object) -> None:
        """Do not log callers that disconnect during the answer, or whose body contradicts its headers: these are not
        errors of the node."""
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
        """Answer a request that is not HTTP with an envelope as well; aiohttp handles the rest."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        text = " ".join((message or "Bad Request").split())
        told = f"not an HTTP request: {text[:200]}"
        coding = _CODING.search(text)
        if coding is not None:  # aiohttp recommends installing a package
            told = f"Content-Encoding: expected gzip, deflate or none, got {coding[1]}"
        response = json_response({"code": WRONG, "message": told}, status)
        response.headers["Server"] = SERVER
        response.force_close()
        return response


def connection_of(request: web.Request) -> HttpConnection:
    """Return the connection of a request."""
    protocol = request.protocol
    assert isinstance(protocol, HttpProtocol)
    return protocol.connection
