"""Documents that come in: an export file, or what stands about one, read in steps that do not hold the loop."""

import codecs
from typing import Any, Final

from taipan.broker.server import Server

from ..backpressure_slice import BackpressureSlice
from ..refusal import NOT_JSON, WRONG, Refusal, missing, wrong
from .json_document import BadRecord, Document

_Decoder: Final = codecs.getincrementaldecoder("utf-8")
_PIECE: Final = 1_048_576
"""Bytes that are decoded before others are heard."""


class Documents:
    """Reads them. All of it raises Refusal where they are none."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read(self, octets: bytes | bytearray) -> Document:
        work = BackpressureSlice(self._server)
        decoder = _Decoder()
        pieces = []
        at = before = 0
        try:
            for at in range(0, len(octets), _PIECE):
                # What is left over of a character counts as read with the piece that it began in.
                before = at - len(decoder.getstate()[0])
                pieces.append(decoder.decode(octets[at : at + _PIECE], at + _PIECE >= len(octets)))
                await work.checkpoint()
        except UnicodeDecodeError as error:
            place = before + error.start
            raise Refusal(NOT_JSON, f"the document is not UTF-8: {error.reason} at byte {place}") from None
        return await self.find("".join(pieces))

    async def find(self, text: str) -> Document:
        """The document that a text is."""
        work = BackpressureSlice(self._server)
        document = Document(text)
        for _ in document.read():
            await work.checkpoint()
        return document

    async def inner(self, document: Document) -> Document:
        """The document in ``file``: a download of EMQX 4.x."""
        return await self.find(await self.text(document))

    async def text(self, document: Document, no_text: int = WRONG) -> str:
        """The text in ``file``; ``no_text`` is the code where it is no string."""
        work = BackpressureSlice(self._server)
        if not document.has("file"):
            raise missing("file")
        span = document.members.get("file")
        if span is None or document.text[span.start] != '"':
            raise Refusal(no_text, "file: expected the text of an exported file as a string")
        pieces = []
        try:
            for piece in document.long_text(span):
                pieces.append(piece)
                await work.checkpoint()
        except BadRecord as error:
            raise Refusal(NOT_JSON, f"file: {error}") from None
        return "".join(pieces)


def filename_of(document: Document) -> str:
    """Raises Refusal 108."""
    value = document.member("filename")
    if not isinstance(value, str):
        raise wrong("filename", "expected a string")
    return value


def env_of(document: Document) -> dict[str, Any]:
    """The document's own ``env``. Raises Refusal 108."""
    value = document.member("env")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong("env", "expected a JSON object")
    return value


def dry_run_of(document: Document) -> bool:
    """Whether it asks for a dry run. Raises Refusal 108."""
    value = document.member("dry_run")
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong("dry_run", "expected true or false")
    return value
