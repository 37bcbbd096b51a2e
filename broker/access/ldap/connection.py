"""LdapConnection: a connection to a directory, with one request at a time."""

import asyncio
import ssl
from collections.abc import Sequence

from ...loop.answer_limit import answer_within
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION
from .message import (
    NO_SUCH_OBJECT,
    NOT_ACCEPTED,
    SIZE_LIMIT_EXCEEDED,
    SUCCESS,
    Answer,
    BadAnswer,
    Condition,
    Conditions,
    DirectoryEntry,
    bind,
    missing_bytes,
    read,
    search,
    start_tls,
)


class LdapConnection:
    """Belongs to one event loop. After an error with ``away``, and after a request that was given up, it cannot be used
    again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(
        cls, host: str, port: int, tls: ssl.SSLContext | None, encrypt_first: bool, timeout: float
    ) -> "LdapConnection":
        """``encrypt_first``: with TLS from the first byte on, instead of StartTLS. Raises SourceFailed."""
        try:
            async with answer_within(timeout):
                at_once = tls if encrypt_first else None
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=at_once, server_hostname=host if at_once is not None else None
                )
                connection = cls(reader, writer)
                try:
                    if tls is not None and not encrypt_first:
                        await connection._encrypt(tls, host)
                except BaseException:
                    connection.abort()
                    raise
                return connection
        except TimeoutError:
            raise SourceFailed(NO_CONNECTION, detail="timeout", away=True) from None
        except (OSError, ssl.SSLError) as error:
            raise SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True) from None

    async def _encrypt(self, tls: ssl.SSLContext, host: str) -> None:
        self._number += 1
        answer = await self._final(start_tls(self._number), [])
        if answer.code != SUCCESS:
            raise SourceFailed(NO_CONNECTION, detail=f"StartTLS: {_result(answer)}", away=True)
        await self._writer.start_tls(tls, server_hostname=host)

    async def bind(self, dn: bytes, password: bytes) -> bool:
        """Return whether the password is that of the entry. Raises SourceFailed if the directory does not answer
        that."""
        self._number += 1
        answer = await self._final(bind(self._number, dn, password), [])
        if answer.code == SUCCESS:
            return True
        if answer.code in NOT_ACCEPTED:
            return False
        raise SourceFailed("query", detail=_result(answer))

    async def search(
        self, base: str, condition: Condition | Conditions, attributes: Sequence[str], most: int
    ) -> list[DirectoryEntry]:
        """Return the entries that fulfil the condition; none if ``base`` does not exist. Raises SourceFailed, also for
        more than ``most`` entries."""
        self._number += 1
        entries: list[DirectoryEntry] = []
        answer = await self._final(search(self._number, base, condition, attributes, most), entries)
        if answer.code == SIZE_LIMIT_EXCEEDED or len(entries) > most:
            raise SourceFailed("several_rows", detail=f"more than {most} entries")
        if answer.code not in (SUCCESS, NO_SUCH_OBJECT):
            raise SourceFailed("query", detail=_result(answer))
        return entries

    async def _final(self, request: bytes, entries: list[DirectoryEntry]) -> Answer:
        """Send a request, collect its entries, and return its last answer."""
        try:
            self._writer.write(request)
            await self._writer.drain()
            while True:
                answer = read(await self._message())
                if answer.number != self._number:  # 0: the server ends the connection
                    raise SourceFailed("broken", detail=answer.text or "an answer to no request", away=True)
                if answer.code is not None:
                    return answer
                if answer.entry is not None:
                    entries.append(answer.entry)
        except BadAnswer as error:
            raise SourceFailed("broken", detail=str(error), away=True) from None
        except asyncio.IncompleteReadError:
            raise SourceFailed("broken", detail="the server has ended the connection", away=True) from None
        except OSError as error:
            raise SourceFailed("broken", detail=in_one_line(error), away=True) from None

    async def _message(self) -> bytes:
        data = b""
        while (missing := missing_bytes(data)) is None:
            data += await self._reader.readexactly(1 if data else 2)
        return data + await self._reader.readexactly(missing)

    def abort(self) -> None:
        """Close it without waiting."""
        self._writer.transport.abort()


def _result(answer: Answer) -> str:
    return f"result {answer.code}" + (f": {' '.join(answer.text.split())[:300]}" if answer.text else "")


def in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
