"""NatsProtocol: NATS's client protocol, from bytes to messages and back. It does not interpret subjects and decides
nothing."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

logger = logging.getLogger(__name__)

_MAX_LINE: Final = 1_048_576
"""Maximum size of a line; an INFO lists all servers of a cluster."""
_MAX_MESSAGE: Final = 67_108_864
"""Maximum size of a message: the largest that a server can be configured for."""
_STATUS: Final = b"NATS/1.0 "
_COPIED: Final = 4096
"""Size up to which a message is joined with the data around it; a longer one is passed on without a copy."""


class Msg:
    """A message. ``head`` has its headers in encoded form, and is empty if it has none."""

    __slots__ = ("data", "head", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, head: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.head = head

    @property
    def headers(self) -> dict[str, str] | None:
        """Return the headers, with the code in the first line as ``Status``, or ``None`` if there are none."""
        return headers_of(self.head) if self.head else None

    @property
    def has_status(self) -> bool:
        """Whether the server reports a state with this message."""
        return self.head.startswith(_STATUS)


def published(subject: str, reply: str, headers: bytes, data: bytes) -> list[bytes]:
    """Return a message to the server in pieces. ``headers`` is the result of ``header_lines``, or empty."""
    to = (f"{subject} {reply}" if reply else subject).encode()
    if headers:
        head = b"HPUB %s %d %d\r\n%s" % (to, len(headers), len(headers) + len(data), headers)
    else:
        head = b"PUB %s %d\r\n" % (to, len(data))
    return [head, data, b"\r\n"] if len(data) > _COPIED else [b"%s%s\r\n" % (head, data)]


def compared(subject: str, inbox: str, first: int, requests: Sequence[tuple[str, int, bytes]]) -> bytes:
    """Return messages to a stream. Each has the end of its subject, the number that the last message of that subject
    must have, and data. The reply subjects are ``inbox`` with numbers from ``first`` on."""
    to, reply = subject.encode(), inbox.encode()
    parts = []
    for each in requests:
        head = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % each[1]
        data = each[2]
        size = len(head)
        parts.append(
            b"HPUB %s%s %s%d %d %d\r\n%s%s\r\n"
            % (to, each[0].encode(), reply, first, size, size + len(data), head, data)
        )
        first += 1
    return b"".join(parts)


class Answers:
    """Answers to requests that were sent together. ``found`` has the answer to each request, or ``None``. ``left`` is
    the number of answers that are still missing, and ``complete`` is done when none is missing."""

    def __init__(self, first: int, count: int, complete: "asyncio.Future[None]") -> None:
        self.first = first
        self.end = first + count
        self.left = count
        self.complete = complete
        self.found: list[bytes | None] = [None] * count

    def take(self, number: int, message: Msg) -> None:
        """Note the answer with this number. An empty answer means that there is no subscriber."""
        if self.found[number - self.first] is None:
            self.found[number - self.first] = message.data
            self.left -= 1
            if not self.left:
                self.end_waiting()

    def end_waiting(self) -> None:
        """End the wait, because no more answers will come."""
        if not self.complete.done():
            self.complete.set_result(None)


def delivered(reply: str) -> tuple[int, int, int]:
    """Return the contents of the reply subject of a consumer's message: the number in the stream, the number at the
    consumer, and how many messages follow."""
    # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>
    parts = reply.split(".")
    first = 5 if len(parts) == 9 else 7
    return int(parts[first]), int(parts[first + 1]), int(parts[first + 3])


def header_lines(headers: dict[str, str]) -> bytes:
    return b"NATS/1.0\r\n%s\r\n" % "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()


def headers_of(data: bytes) -> dict[str, str]:
    """Parse ``NATS/1.0 503 No Responders``, and lines of ``name: value``."""
    first, *lines = data.decode("utf-8", "replace").splitlines()
    _, _, status = first.partition(" ")
    headers = {"Status": status.split(" ")[0]} if status else {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


class ConnectionEvents(Protocol):
    """The connection that uses the protocol."""

    def on_connected(self, transport: asyncio.Transport) -> None: ...
    def on_lost(self, error: Exception | None) -> None: ...
    def on_info(self, data: bytes) -> None: ...
    def on_error(self, text: str) -> None: ...
    def on_malformed(self, text: str) -> None: ...
    def on_unreadable(self) -> None: ...
    def on_ping(self) -> None: ...
    def on_pong(self) -> None: ...


class NatsProtocol:
    """Receives data of a server in pieces of any size, and calls the handlers of its messages immediately.

    It has all methods of ``asyncio.Protocol``, but does not inherit from it, because that class is not compiled."""

    def __init__(self, events: ConnectionEvents) -> None:
        self._events = events
        self._handlers: dict[bytes, Callable[[Msg], None]] = {}
        self._next = 0
        # The incomplete data: its pieces, their size, and how many bytes are needed at least.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed = 0
        self._dead = False

    def subscribe(self, handler: Callable[[Msg], None]) -> int:
        """Return the number of the new subscription."""
        self._next += 1
        self._handlers[b"%d" % self._next] = handler
        return self._next

    def unsubscribe(self, number: int) -> bool:
        """Remove a subscription; return whether it existed."""
        return self._handlers.pop(b"%d" % number, None) is not None

    def forget_subscriptions(self) -> None:
        self._handlers.clear()

    # ------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one in everything but name.
        self._events.on_connected(cast(asyncio.Transport, transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._dead = True
        self._held.clear()
        self._events.on_lost(exc)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Do nothing: ``nats_connection.MAX_UNSENT`` limits waiting data, and links stop far below that."""

    def resume_writing(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed:
                return
            data = b"".join(self._held)
            self._held.clear()
        at = 0
        try:
            while at < len(data) and not self._dead:
                after = self._one(data, at)
                if not after:
                    self._held.append(data[at:])
                    self._held_bytes = len(data) - at
                    return
                at = after
        except ValueError as error:
            self._dead = True
            self._events.on_malformed(str(error))

    def _one(self, data: bytes, at: int) -> int:
        """Process the item at ``at``, and return its end, or 0 if it is incomplete and needs ``_needed`` bytes.

        :raises ValueError: it is not valid.
        """
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > _MAX_LINE:
                raise ValueError("a line without an end")
            self._needed = len(data) - at + 1
            return 0
        body = end + 2
        if data.startswith(b"MSG ", at):
            parts = data[at + 4 : end].split()
            if not 3 <= len(parts) <= 4:
                raise ValueError("MSG")
            return self._message(data, at, body, parts, 0)
        if data.startswith(b"HMSG ", at):
            parts = data[at + 5 : end].split()
            if not 4 <= len(parts) <= 5:
                raise ValueError("HMSG")
            return self._message(data, at, body, parts, int(parts.pop(-2)))
        if data.startswith(b"PING", at):
            self._events.on_ping()
        elif data.startswith(b"PONG", at):
            self._events.on_pong()
        elif data.startswith(b"INFO ", at):
            self._events.on_info(data[at + 5 : end])
        elif data.startswith(b"-ERR", at):
            self._events.on_error(data[at + 4 : end].decode("utf-8", "replace").strip().strip("'"))
        elif not data.startswith(b"+OK", at):
            raise ValueError("an unknown operation")
        return body

    def _message(self, data: bytes, at: int, body: int, parts: list[bytes], headers: int) -> int:
        """Process the first line of a message. ``parts`` are its subject, the number of the subscription, the reply
        subject if there is one, and the size. ``headers`` is the size of the encoded headers."""
        size = int(parts[-1])
        if not 0 <= headers <= size <= _MAX_MESSAGE:
            raise ValueError("a message too large")
        end = body + size
        if end + 2 > len(data):
            self._needed = end + 2 - at
            return 0
        handler = self._handlers.get(parts[1])
        if handler is not None:
            try:
                subject, reply = parts[0].decode(), parts[2].decode() if len(parts) == 4 else ""
            except UnicodeDecodeError:  # the server passes on anything that a client sends
                self._events.on_unreadable()
                return end + 2
            try:
                handler(Msg(subject, reply, data[body + headers : end], data[body : body + headers]))
            except Exception:
                logger.exception("nats_handler_failed subject=%s", subject)
        return end + 2
