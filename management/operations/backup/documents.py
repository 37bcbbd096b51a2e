"""Documents that are imported: an export file, or an object that contains one. They are read in steps that do not block
the loop."""

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
"""Number of bytes that are decoded before other work runs."""


class Documents:
    """Reads documents. All methods raise Refusal if the input is not a document."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read(self, chunks: Iterable[bytes | bytearray]) -> Document:
        work = BackpressureSlice(self._server)
        decoder = _Decoder()
        pieces = []
        position = begun = 0
        try:
            for data in chain(_cut(chunks), [b""]):
                # The bytes of an incomplete character belong to the piece in which it began.
                begun = position - len(decoder.getstate()[0])
                pieces.append(decoder.decode(data, not data))
                position += len(data)
                await work.checkpoint()
        except UnicodeDecodeError as error:
            place = begun + error.start
            raise Refusal(NOT_JSON, f"the document is not UTF-8: {error.reason} at byte {place}") from None
        return await self.find(pieces)

    async def find(self, pieces: Iterable[str]) -> Document:
        """Return the document whose text is given in ``pieces``."""
        work = BackpressureSlice(self._server)
        document = Document(pieces)
        for _ in document.read():
            await work.checkpoint()
        return document

    async def inner(self, document: Document) -> Document:
        """Return the document in ``file``: a download from EMQX 4.x."""
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
    """Return whether the input is only whitespace."""
    return all(not chunk or chunk.isspace() for chunk in chunks)


def _cut(chunks: Iterable[bytes | bytearray]) -> Iterator[bytes | bytearray]:
    """Yield pieces of a limited length; none is empty."""
    for chunk in chunks:
        for at in range(0, len(chunk), _PIECE):
            yield chunk[at : at + _PIECE] if len(chunk) > _PIECE else chunk


def filename_of(document: Document) -> str:
    """Return the file name in the document. Raises Refusal 108."""
    value = document.member("filename")
    if not isinstance(value, str):
        raise wrong("filename", "expected a string")
    return value


def env_of(document: Document) -> dict[str, object]:
    """Return ``env`` of the document. Raises Refusal 108."""
    value = document.member("env")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong("env", "expected a JSON object")
    return value


def flag_of(document: Document, key: str) -> bool:
    """Return whether the document sets a flag, such as that of a dry run. Raises Refusal 108."""
    value = document.member(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(key, "expected true or false")
    return value
