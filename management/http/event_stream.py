"""Event streams: a live stream as server-sent events over HTTP."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from ..operations.live import LiveStream
from ..operations.live_sources import LiveEvent
from ..operations.refusal import Refusal
from .envelope import encode, path_of

logger = logging.getLogger(__name__)

HEARTBEAT: Final = 15.0
"""Seconds without an event after which a comment is sent, so that the reader knows that the node is alive."""
MAX_UNSENT: Final = 32_768
"""Limit of unsent bytes for a reader; beyond it no events are computed, and the reader misses them."""
SLOW: Final = 30.0
"""Seconds after which a reader that reads nothing is disconnected."""
_ASK_EVERY: Final = 1.0
"""Seconds between two checks whether the reader still has access."""
_HEADERS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def send_events(request: web.Request, stream: LiveStream, ended: Callable[[], str]) -> web.StreamResponse:
    """Send events until the reader disconnects, the node stops, or ``ended`` returns why the reader no longer has
    access. ``ended`` is called once a second, and before each event."""
    response = web.StreamResponse(headers=_HEADERS)
    try:
        await response.prepare(request)
        if request.method != "HEAD":
            await _send(request, response, stream, ended)
    except ConnectionError:
        raise
    except Exception:
        if not response.prepared or request.transport is None:
            raise
        # The head has been sent: only closing the connection can show an error.
        logger.exception("api_error method=%s path=%s", request.method, path_of(request))
        request.transport.abort()
        raise ConnectionResetError("the live stream was interrupted") from None
    finally:
        stream.close()
    return response


async def _send(
    request: web.Request, response: web.StreamResponse, stream: LiveStream, ended: Callable[[], str]
) -> None:
    loop = asyncio.get_running_loop()
    transport = request.transport
    sent_at = loop.time()
    pending = [stream.hello()]
    why = ""
    looked = False  # the first update is sent immediately
    while transport is not None and not transport.is_closing():
        now = loop.time()
        if transport.get_write_buffer_size() > MAX_UNSENT:
            if now - sent_at > SLOW:
                _cut(request, "slow_reader")
        elif pending or now - sent_at + stream.every >= HEARTBEAT:
            sent_at = now
            try:
                async with asyncio.timeout(SLOW):
                    await response.write(b"".join(map(_as_text, pending)) or b":\n\n")
            except TimeoutError:
                _cut(request, "slow_reader")
        if why:
            await response.write_eof()
            return
        why = await _wait(request, stream, ended) if looked else ended()
        looked = True
        pending = []
        if why:
            pending = [("bye", {"reason": why})]
        elif transport.get_write_buffer_size() <= MAX_UNSENT:
            try:
                pending = await stream.look()
            except Refusal as refusal:
                why = "refused"
                pending = [("bye", {"reason": why, "code": refusal.code, "message": refusal.message})]


async def _wait(request: web.Request, stream: LiveStream, ended: Callable[[], str]) -> str:
    """Wait until the next update is due. Return why the stream has to end, or an empty text."""
    loop = asyncio.get_running_loop()
    due = loop.time() + stream.every
    while (left := due - loop.time()) > 0:
        why = await stream.wait(min(left, _ASK_EVERY)) or ended()
        if why or request.transport is None or request.transport.is_closing():
            return why
    return ""


def _as_text(event: LiveEvent) -> bytes:
    name, data = event
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))


def _cut(request: web.Request, reason: str) -> None:
    logger.info("live_stream_cut address=%s reason=%s", request.remote, reason)
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the reader of a live stream is too slow")
