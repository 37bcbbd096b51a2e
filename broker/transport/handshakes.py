"""Handshakes: clients of a DTLS listener that have repeated their cookie, but have not proved their keys yet."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .dtls import DtlsContext, DtlsError, DtlsSession, client_random, is_client_hello

if TYPE_CHECKING:
    from .listener import Listener

MAX_HANDSHAKES: Final = 256
"""Maximum number of handshakes of a listener. Each has some 50 KB; a new one replaces the oldest."""

_Key = tuple[int, tuple[Any, ...], bytes]
_Done = Callable[[_Key, socket.socket, DtlsSession, list[bytes]], None]


class _Handshake:
    """``random``: the random number of its ClientHello. ``timer``: when the last flight is repeated; ``ends``: when the
    handshake is given up."""

    __slots__ = ("ends", "random", "session", "sock", "timer")

    def __init__(self, random: bytes, session: DtlsSession, sock: socket.socket, ends: float) -> None:
        self.random = random
        self.session = session
        self.sock = sock
        self.ends = ends
        self.timer: asyncio.TimerHandle | None = None


class Handshakes:
    """``done`` is called with each session that is ready, and the first messages that have arrived with it."""

    __slots__ = ("_done", "_listener", "_of")

    def __init__(self, listener: "Listener", done: _Done) -> None:
        self._listener = listener
        self._done = done
        self._of: dict[_Key, _Handshake] = {}  # the oldest first

    def takes(self, key: _Key, data: bytes) -> bool:
        """Return whether a datagram of a client with a session begins a handshake, or may continue one."""
        return key in self._of or is_client_hello(data)

    def take(self, dtls: DtlsContext, key: _Key, sock: socket.socket, data: bytes) -> None:
        """Process a datagram from an address without a session, or one that begins another session."""
        handshake = self._of.get(key)
        if handshake is None or (is_client_hello(data) and client_random(data) != handshake.random):
            handshake = self._begun(dtls, key, sock, data)
            if handshake is None:
                return
            data = b""
        try:
            handshake.session.handshake(data)
        except DtlsError as error:
            self._flush(key, handshake)
            self._fail(key, error.reason, error.setting, error.why)
            return
        self._flush(key, handshake)
        if not handshake.session.done:
            self._repeat_later(key, handshake)
            return
        self._forget(key)
        try:
            found = handshake.session.received()
        except DtlsError:
            return  # it has closed the session already
        self._done(key, sock, handshake.session, found)

    def _begun(self, dtls: DtlsContext, key: _Key, sock: socket.socket, data: bytes) -> _Handshake | None:
        if not is_client_hello(data):
            self._listener.refuse("malformed_datagram", "", key[1][:2], "no handshake of DTLS")
            return None
        try:
            answer, session = dtls.hello(key[1], data)
        except DtlsError as error:
            self._listener.refuse("tls_handshake", "tls", key[1][:2], error.why)
            return None
        for each in answer:
            self._send(sock, key, each)
        if session is None or not self._listener.admits_datagrams(key[1][:2]):
            return None
        self._give_up(key)
        if len(self._of) >= MAX_HANDSHAKES:
            self._fail(next(iter(self._of)), "newcomers", "", "too many clients are in their handshake")
        tls = self._listener.settings.tls
        assert tls is not None
        ends = asyncio.get_running_loop().time() + tls.handshake_timeout
        made = self._of[key] = _Handshake(client_random(data), session, sock, ends)
        return made

    def _repeat_later(self, key: _Key, handshake: _Handshake) -> None:
        if handshake.timer is not None:
            handshake.timer.cancel()
        loop = asyncio.get_running_loop()
        left = max(0.0, handshake.ends - loop.time())
        seconds = handshake.session.repeat_after()
        wait = left if seconds is None else min(left, seconds + 0.01)
        handshake.timer = loop.call_later(wait, self._on_time, key, handshake)

    def _on_time(self, key: _Key, handshake: _Handshake) -> None:
        if self._of.get(key) is not handshake:
            return
        if asyncio.get_running_loop().time() >= handshake.ends:
            if not self._give_up(key):
                self._fail(key, "tls_timeout", "tls.handshake_timeout", "the handshake was not completed")
            return
        try:
            handshake.session.repeat()
        except DtlsError as error:
            self._fail(key, "tls_handshake", "tls", error.why)
            return
        self._flush(key, handshake)
        self._repeat_later(key, handshake)

    def _flush(self, key: _Key, handshake: _Handshake) -> None:
        for each in handshake.session.outgoing():
            self._send(handshake.sock, key, each)

    def _send(self, sock: socket.socket, key: _Key, data: bytes) -> None:
        try:
            sock.sendto(data, key[1])
        except OSError as error:
            self._listener.refuse("datagrams_unsent", "", key[1][:2], error.strerror or "")

    def _fail(self, key: _Key, reason: str, setting: str, why: str) -> None:
        self._forget(key)
        self._listener.refuse(reason, setting, key[1][:2], why)

    def _give_up(self, key: _Key) -> bool:
        """Forget the handshake of an address, if there is one. Return whether a wrong key was counted."""
        handshake = self._of.get(key)
        error = None if handshake is None else handshake.session.wrong_key()
        if error is None:
            self._forget(key)
            return False
        self._fail(key, error.reason, error.setting, error.why)
        return True

    def _forget(self, key: _Key) -> None:
        handshake = self._of.pop(key, None)
        if handshake is not None and handshake.timer is not None:
            handshake.timer.cancel()

    def end(self) -> None:
        """Give all handshakes up."""
        for key in list(self._of):
            self._forget(key)
