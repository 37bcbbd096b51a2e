"""Documents that come in: an export file, or what stands about one, read in steps that do not hold the loop."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from taipan.broker.server import Server

from ..backpressure_slice import BackpressureSlice
from ..refusal import NOT_JSON, WRONG, Refusal, missing, wrong
from .json_document import BadRecord, Document

_Decoder: Final = codecs.getincrementaldecoder("utf-8")
_PIECE: Final = 262_144
"""Bytes that are decoded before other work runs."""


class Documents:
    """Reads them. All of it raises Refusal where they are none."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read(self, chunks: Iterable[bytes | bytearray]) -> Document:
        work = BackpressureSlice(self._server)
        decoder = _Decoder()
        pieces = []
        position = begun = 0
        try:
            for data in chain(_cut(chunks), [b""]):
                # What is left over of a character counts as read with the piece that it began in.
                begun = position - len(decoder.getstate()[0])
                pieces.append(decoder.decode(data, not data))
                position += len(data)
                await work.checkpoint()
        except UnicodeDecodeError as error:
            place = begun + error.start
            raise Refusal(NOT_JSON, f"the document is not UTF-8: {error.reason} at byte {place}") from None
        return await self.find(pieces)

    async def find(self, pieces: Iterable[str]) -> Document:
        """The document that a text is, in ``pieces``."""
        work = BackpressureSlice(self._server)
        document = Document(pieces)
        for _ in document.read():
            await work.checkpoint()
        return document

    async def inner(self, document: Document) -> Document:
        """The document in ``file``: a download of EMQX 4.x."""
        return await self.find(await self.text(document))

    async def text(self, document: Document, no_text: int = WRONG) -> list[str]:
        """Return the text in ``file``, in pieces. ``no_text``: the code of the refusal if ``file`` is not a string."""
        work = BackpressureSlice(self._server)
        if not document.has("file"):
            raise missing("file")
        span = document.members.get("file")
        if span is None or not document.is_text(span):
            raise Refusal(no_text, "file: expected the text of an exported file as a string")
        pieces = []
        try:
            for piece in document.long_text(span):
                pieces.append(piece)
                await work.checkpoint()
        except BadRecord as error:
            raise Refusal(NOT_JSON, f"file: {error}") from None
        return pieces


def is_blank(chunks: Iterable[bytes | bytearray]) -> bool:
    """Whether nothing but white space is there."""
    return all(not chunk or chunk.isspace() for chunk in chunks)


def _cut(chunks: Iterable[bytes | bytearray]) -> Iterator[bytes | bytearray]:
    """In pieces of some length; none is empty."""
    for chunk in chunks:
        for at in range(0, len(chunk), _PIECE):
            yield chunk[at : at + _PIECE] if len(chunk) > _PIECE else chunk


def filename_of(document: Document) -> str:
    """Raises Refusal 108."""
    value = document.member("filename")
    if not isinstance(value, str):
        raise wrong("filename", "expected a string")
    return value


def env_of(document: Document) -> dict[str, object]:
    """The document's own ``env``. Raises Refusal 108."""
    value = document.member("env")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong("env", "expected a JSON object")
    return value


def flag_of(document: Document, key: str) -> bool:
    """Whether it asks for something, as for a dry run. Raises Refusal 108."""
    value = document.member(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(key, "expected true or false")
    return value
