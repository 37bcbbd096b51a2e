"""KafkaGate: stands before a server with the protocol of Kafka, in the test's loop, and adds what the server lacks.

TLS, logins (PLAIN, SCRAM), answers that are lost, errors that the server does not have. To its clients, it is
the only broker, so that a client does not pass it by."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import ssl
import struct
from collections.abc import Callable
from typing import Final

PRODUCE: Final = 0
METADATA: Final = 3
_FIND_COORDINATOR: Final = 10
_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_AUTHENTICATE: Final = 36
_REFUSED: Final = 58
_UNSUPPORTED: Final = 33
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ROUNDS: Final = 4096


class _Scram:
    """The server's part of one login, RFC 5802."""

    def __init__(self, mechanism: str, users: dict[str, str]) -> None:
        self._hash = _HASHES[mechanism]
        self._users = users
        self._first = ""
        self._key = b""

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, self._hash).digest()

    def answer(self, text: str) -> str | None:
        """What the server says; None: it refuses."""
        fields = dict(each.split("=", 1) for each in text.split(",") if "=" in each)
        if not self._first:
            bare = text.removeprefix("n,,")
            salt = os.urandom(16)
            password = self._users.get(fields["n"], os.urandom(8).hex())
            self._key = hashlib.pbkdf2_hmac(self._hash, password.encode(), salt, _ROUNDS)
            mine = f"r={fields['r']}{os.urandom(8).hex()},s={base64.b64encode(salt).decode()},i={_ROUNDS}"
            self._first = f"{bare},{mine}"
            return mine
        message = f"{self._first},{text.rpartition(',p=')[0]}".encode()
        client = self._mac(self._key, b"Client Key")
        stored = hashlib.new(self._hash, client).digest()
        proof = bytes(a ^ b for a, b in zip(client, self._mac(stored, message), strict=True))
        if base64.b64decode(fields["p"]) != proof:
            return None
        return "v=" + base64.b64encode(self._mac(self._mac(self._key, b"Server Key"), message)).decode()


class KafkaGate:
    """``users``: their passwords; empty: no login. ``change`` returns the answer to a request of an API, given the
    server's; None: the connection ends before the answer."""

    def __init__(self, server_port: int, tls: ssl.SSLContext | None = None) -> None:
        self.users: dict[str, str] = {}
        self.mechanism = "PLAIN"
        self.change: Callable[[int, bytes], bytes | None] = lambda api, answer: answer
        self.left = 0
        """How many answers are still to be cut: of each, the first half is forwarded, and then the connection ends."""
        self.port = 0
        self._server_port = server_port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def disconnect(self) -> None:
        """End the connections of all clients."""
        for each in self._connections:
            each.cancel()

    async def stop(self) -> None:
        assert self._server is not None
        server, self._server = self._server, None
        server.close()
        self.disconnect()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # its TLS handshake was not done when the gate stopped
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        inner: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                there, inner = await asyncio.open_connection("127.0.0.1", self._server_port)
                await self._serve(reader, writer, there, inner)
        finally:
            self._connections.discard(task)
            for each in (writer, inner):
                if each is not None:
                    each.transport.abort()

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        inner: asyncio.StreamWriter,
    ) -> None:
        scram: _Scram | None = None
        known = not self.users
        while True:
            request = await _frame(reader)
            api, version, correlation = struct.unpack(">hhi", request[:8])
            body = request[8 + 2 + max(struct.unpack(">h", request[8:10])[0], 0) :]
            if api == _HANDSHAKE:
                mechanism = body[2:].decode()
                if mechanism in _HASHES:
                    scram = _Scram(mechanism, self.users)
                offered = self.mechanism.encode()
                code = 0 if mechanism == self.mechanism else _UNSUPPORTED
                answer = struct.pack(">ihih", correlation, code, 1, len(offered)) + offered
            elif api == _AUTHENTICATE:
                text = body[4:].decode()
                said: str | None = ""
                if scram is not None:
                    said = scram.answer(text)
                    known = said is not None and said.startswith("v=")
                else:
                    _, user, password = text.split("\0")
                    known = self.users.get(user) == password
                    said = "" if known else None
                why = b"" if said is not None else b"Authentication failed: Invalid username or password"
                reply = (said or "").encode()
                answer = struct.pack(">ihh", correlation, _REFUSED if said is None else 0, len(why) or -1) + why
                answer += struct.pack(">i", len(reply)) + reply
            elif not known and api != _API_VERSIONS:
                return
            else:
                inner.write(struct.pack(">i", len(request)) + request)
                if api == PRODUCE and _acks(body, version) == 0:
                    continue
                answer = await _frame(there)
                if api == _API_VERSIONS and self.users:
                    answer = _with_login(answer)
                elif api in (METADATA, _FIND_COORDINATOR):
                    answer = answer.replace(struct.pack(">i", self._server_port), struct.pack(">i", self.port))
                changed = self.change(api, answer)
                if changed is None:
                    return
                answer = changed
            answer = struct.pack(">i", len(answer)) + answer
            if self.left:
                self.left -= 1
                writer.write(answer[: len(answer) // 2])
                await writer.drain()
                writer.close()
                return
            writer.write(answer)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _acks(body: bytes, version: int) -> int:
    at = 2 if version >= 3 else 0  # no identifier of a transaction: a length of -1
    return int(struct.unpack(">h", body[at : at + 2])[0])


def _with_login(answer: bytes) -> bytes:
    """The versions of a server, and those of the requests that log in."""
    correlation, code, count = struct.unpack(">ihi", answer[:10])
    listed = answer[10 : 10 + 6 * count]
    kept = b"".join(
        listed[at : at + 6]
        for at in range(0, len(listed), 6)
        if struct.unpack(">h", listed[at : at + 2])[0] not in (_HANDSHAKE, _AUTHENTICATE)
    )
    kept += struct.pack(">hhhhhh", _HANDSHAKE, 1, 1, _AUTHENTICATE, 0, 0)
    return struct.pack(">ihi", correlation, code, len(kept) // 6) + kept + answer[10 + 6 * count :]
