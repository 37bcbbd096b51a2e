"""Output: the answer of a command, sent as text or JSON without blocking the loop or filling memory."""

import asyncio
import re
import time
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.observability.log_text import one_line

from ..operations.listing import Listing, everything
from ..operations.node_listing import NodeListing
from .command import CommandResult, Stream

SLICE: Final = 0.002
"""Maximum seconds of work on a long answer without a pause."""
CHUNK: Final = 32_768
WRITE_TIMEOUT: Final = 300.0
"""Seconds that a reader may leave data unread: a pager waits for people."""
SIGN_TIMEOUT: Final = 1.0
"""Seconds that a keepalive waits for the reader."""
SIGN_INTERVAL: Final = 1.0
"""Seconds between two keepalives of a continuous answer that has nothing to send."""
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


def frame(kind: bytes, text: bytes) -> bytes:
    """Return one frame of the answer: its kind, four bytes of length, its text."""
    return kind + len(text).to_bytes(4, "big") + text


class Gone(Exception):
    """The caller has disconnected; the message is one line."""


class FrameWriter(Protocol):
    """Destination of frames. ``drain`` waits until the reader has received most of them; raises ConnectionError."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


class Output:
    """Writes frames to one client."""

    def __init__(self, sink: FrameWriter) -> None:
        self._sink = sink
        self._pending = bytearray()
        self._work = CooperativeSlice(SLICE)

    async def answer(self, answer: CommandResult, as_json: bool) -> None:
        """Send the whole answer. Raises Gone if the caller has disconnected."""
        if answer.stream is not None:
            return await self._stream(answer.stream, as_json)
        if answer.file is not None:
            async with aclosing(answer.file) as pieces:
                async for piece in pieces:
                    for at in range(0, len(piece), CHUNK):
                        self._sink.write(frame(b"f", piece[at : at + CHUNK]))
                        await self._drain()
        if as_json:
            await self._json(answer.data)
        elif isinstance(answer.data, Listing | NodeListing) and callable(answer.text):
            async for row in answer.data:
                if row is None:
                    await self._checkpoint()
                else:
                    await self._lines(answer.text(row))
        else:
            await self._lines(answer.text(answer.data) if callable(answer.text) else answer.text)
        await self._send()

    async def _stream(self, stream: Stream, as_json: bool) -> None:
        said = time.monotonic()
        async with aclosing(stream) as looks:
            async for found in looks:
                for piece in found:
                    if piece.aside:
                        await self._send()
                        text = json_text(piece.data) + b"\n" if as_json else printable(str(piece.text))
                        self._sink.write(frame(b"e", text))
                    elif as_json:
                        await self.json(piece.data)
                    else:
                        await self._lines(piece.text)
                await self._send()
                if not found and time.monotonic() - said >= SIGN_INTERVAL:
                    self._sink.write(frame(b"o", b""))
                    await self._drain()
                if found or time.monotonic() - said >= SIGN_INTERVAL:
                    said = time.monotonic()

    async def line(self, text: str, error: bool = False) -> None:
        """Send one line; ``error``: to the error output."""
        if error:
            await self._send()
            self._sink.write(frame(b"e", printable(text)))
        else:
            await self._lines(text)

    async def end(self, status: int) -> None:
        """Send the exit status, which is the last frame."""
        await self._send()
        self._sink.write(frame(b"x", b"%d" % status))
        await self._drain()

    async def keepalive(self) -> None:
        """Send a keepalive. A caller that has disconnected misses only the answer: the command is completed."""
        try:
            self._sink.write(frame(b"o", b""))
            async with asyncio.timeout(SIGN_TIMEOUT):
                await self._sink.drain()
        except (ConnectionError, TimeoutError):
            pass

    async def json(self, value: object) -> None:
        self._pending += json_text(value) + b"\n"
        await self._checkpoint()

    async def json_error(self, code: int, message: str) -> None:
        """Send an error as JSON to the error output."""
        await self._send()
        self._sink.write(frame(b"e", json_text({"code": code, "message": message}) + b"\n"))

    async def _json(self, data: object) -> None:
        if isinstance(data, list):
            data = everything(data, lambda row: row)
        if data is None:
            await self.json({"code": 0})
        elif isinstance(data, Listing | NodeListing):
            before = b"["
            async for row in data:
                if row is not None:
                    self._pending += before + json_text(row)
                    before = b",\n"
                await self._checkpoint()
            self._pending += b"[]\n" if before == b"[" else b"]\n"
        else:
            await self.json(data)

    async def _lines(self, lines: str | Iterable[str | None]) -> None:
        for line in (lines,) if isinstance(lines, str) else lines:
            if line is not None:
                self._pending += printable(line)
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        if len(self._pending) >= CHUNK:
            await self._send()
        await self._work.checkpoint()

    async def _send(self) -> None:
        if self._pending:
            self._sink.write(frame(b"o", bytes(self._pending)))
            self._pending.clear()
            await self._drain()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._sink.drain()
        except ConnectionError as error:
            raise Gone(str(error)) from None
        except TimeoutError:
            raise Gone(f"nothing read for {WRITE_TIMEOUT:.0f} seconds") from None


def printable(line: str) -> bytes:
    """Return a line that is safe for a terminal: text from clients cannot move the cursor or begin another line."""
    return one_line(line).encode("utf-8", "backslashreplace") + b"\n"


def json_text(value: object) -> bytes:
    """Return JSON with escapes for characters that control a terminal."""
    text = _encode(value).decode("utf-8")
    return (text if text.isprintable() else _UNPRINTABLE.sub(_escaped, text)).encode("utf-8")


def _escaped(found: "re.Match[str]") -> str:
    char = found[0]
    if char.isprintable():
        return char
    data = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at] << 8 | data[at + 1]:04x}" for at in range(0, len(data), 2))
