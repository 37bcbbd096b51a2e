"""NatsConnection: one connection to one NATS server, until it breaks; unsent data is lost then.

It implements NATS's client protocol itself: messages between nodes pass here frame by frame. One read of the socket is
split and passed on in one call, and the output of an iteration is one write (docs/decisions/0070)."""

import asyncio
import base64
import errno
import logging
import os
import re
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
import nkeys

from ...config import ClusterSettings
from ...loop.regular_file import MAX_CREDENTIALS, read_regular
from ..wire import UNREADABLE
from .interface import NatsRefused, NoAnswer, NoResponders, Unavailable
from .protocol import Answers, NatsProtocol, compared, header_lines, published
from .protocol import Msg as Msg  # of every handler

logger = logging.getLogger(__name__)

MAX_UNSENT: Final = 268_435_456
"""Maximum number of bytes that wait for the server; links stop sending far below it."""
_PORT: Final = 4222
_PING_EVERY: Final = 1.0
_MAX_PINGS: Final = 2
"""Maximum number of unanswered pings; after one more, the server is considered unresponsive."""
_INBOX: Final = "_INBOX"
_JWT: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")
_CREDENTIALS: Final = {
    "credentials_file": "the credentials in {}",
    "nkey_file": "the NKey in {}",
    "token": "the token that is set",
    "user": "user {} and its password",
}
"""The settings for the node's identity, with a description of each."""
# Of OpenSSL: X509_V_ERR_...
_OF_ANOTHER_ADDRESS: Final = (62, 64)
_OF_AN_UNKNOWN_AUTHORITY: Final = (2, 18, 19, 20, 21)


class ConnectionLost(Exception):
    """The connection broke during a wait."""


class NatsUnreachable(Exception):
    """No NATS server answers at the configured addresses; the message is one line."""


class _Refused(Exception):
    """The server's reason for rejecting the connection."""


class NatsServer(NamedTuple):
    """``name`` is the name that the server's certificate must contain, if it differs from the host of ``url``."""

    url: str
    name: str | None = None


class _Info(msgspec.Struct):
    """The server's description of itself."""

    version: str = ""
    max_payload: int = 0
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    cluster: str = ""
    connect_urls: list[str] | None = None


_decode_info = msgspec.json.Decoder(_Info).decode


def tls_context(settings: ClusterSettings) -> ssl.SSLContext:
    """Return the context for servers with ``tls://``, and for those with ``nats://`` that require TLS.

    :raises NatsRefused: a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.tls_ca:
        _load_certificates(context, "tls_ca", settings.tls_ca)
    else:
        context.load_default_certs()
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.tls_cert:
        key = settings.tls_key or settings.tls_cert
        _read("tls_key", key)
        _read("tls_cert", settings.tls_cert)
        try:
            context.load_cert_chain(settings.tls_cert, key, lambda: "")
        except (OSError, ssl.SSLError) as error:
            _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "tls_cert", settings.tls_cert)
            raise NatsRefused(
                f"cannot use {key}: it is not the private key of the certificate", "cluster.tls_key"
            ) from error
    return context


def _load_certificates(context: ssl.SSLContext, key: str, path: str) -> None:
    _read(key, path)
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise NatsRefused(f"cannot use {path}: it contains no PEM certificate", f"cluster.{key}") from error


def _read(key: str, path: str) -> bytes:
    try:
        return read_regular(path, MAX_CREDENTIALS)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NatsRefused(f"cannot read {path}: {reason}", f"cluster.{key}") from error


def file_faults(settings: ClusterSettings) -> Iterator[NatsRefused]:
    """Yield the faults that a start would report in the files named by these settings."""
    for read in (check_credentials, tls_context):
        try:
            read(settings)
        except NatsRefused as error:
            yield error


def check_credentials(settings: ClusterSettings) -> None:
    """Check that the files can be read and contain valid credentials.

    :raises NatsRefused: one does not."""
    for key in ("nkey_file", "credentials_file"):
        path = getattr(settings, key)
        if path:
            _signed(key, path, "")


def _signed(key: str, path: str, nonce: str) -> dict[str, str]:
    """Return the identity from the file of this setting as fields of CONNECT: a signed nonce of the server.

    :raises NatsRefused: the file cannot be used."""
    text = _read(key, path)
    fields: dict[str, str] = {}
    try:
        if key == "credentials_file":
            token, text = (text.partition(mark)[2].splitlines()[1].strip() for mark in _JWT)
            fields["jwt"] = token.decode()
        pair = nkeys.from_seed(bytearray(text.strip()))
        if not fields:
            fields["nkey"] = pair.public_key.decode()
        fields["sig"] = base64.b64encode(pair.sign(nonce.encode())).decode()
        pair.wipe()
    except (ValueError, IndexError, nkeys.NkeysError) as error:
        what = "credentials in the format of nsc" if key == "credentials_file" else "the seed of an NKey"
        raise NatsRefused(f"{path} does not hold {what}", f"cluster.{key}") from error
    return fields


def credential_of(settings: ClusterSettings) -> str:
    """Return the setting for the node's identity."""
    return f"cluster.{next(_credentials(settings), 'user')}"


def _credentials(settings: ClusterSettings) -> Iterator[str]:
    return (key for key in _CREDENTIALS if getattr(settings, key))


def _refused_credential(url: str, settings: ClusterSettings, text: str) -> NatsRefused:
    """Return the error for a server that rejects the node's credentials."""
    key = next(_credentials(settings), None)
    if key is None:
        tried = ", and no user, token, nkey_file or credentials_file is set"
    else:
        tried = f" with {_CREDENTIALS[key].format(getattr(settings, key))}"
    return NatsRefused(f"{url} rejects this node{tried}: {text}", credential_of(settings))


def _refused_certificate(url: str, settings: ClusterSettings, error: ssl.SSLCertVerificationError) -> NatsRefused:
    """Return the error for a server whose certificate the node rejects."""
    what = (error.verify_message or str(error)).rstrip(".")
    if error.verify_code in _OF_ANOTHER_ADDRESS:
        return NatsRefused(f"the certificate of {url} is for other addresses: {what}", "cluster.servers")
    if error.verify_code in _OF_AN_UNKNOWN_AUTHORITY and not settings.tls_ca:
        what += "; no tls_ca is set: only the authorities of the system are trusted"
    return NatsRefused(f"the certificate of {url} cannot be trusted: {what}", "cluster.tls_ca")


class NatsConnection:
    """A connection to one server, until it breaks. ``NatsProtocol`` calls it for the server's messages.

    ``on_unreadable``: as in ``nats.Nats``."""

    def __init__(
        self, settings: ClusterSettings, server: NatsServer, on_unreadable: Callable[[], None] = lambda: None
    ) -> None:
        self.server = server
        self.on_unreadable = on_unreadable
        self.lost = asyncio.Event()
        self.error = ""  # the latest information from the server
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._protocol = NatsProtocol(self)
        self._transport: asyncio.Transport | None = None
        self._info = _Info()
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._opened = self._closing = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._why_lost: Exception | None = None
        # Waiters for PONG; None: there is no waiter, and the ping only checks that the server is alive.
        self._pings: deque[asyncio.Future[None] | None] = deque()
        self._pinging: asyncio.TimerHandle | None = None
        # By reply subject: the subject and the answer.
        self._requests: dict[str, tuple[str, asyncio.Future[bytes]]] = {}
        self._batches: list[Answers] = []
        self._next = 0
        self._inbox = self.inbox()
        self._outbox: list[bytes] = []
        self._unsent = 0

    # ------------------------------------------------------------- connection

    async def open(self, tls: ssl.SSLContext) -> "NatsConnection":
        """Connect.

        :raises NatsRefused: the server rejects the node. :raises NatsUnreachable: no server answers."""
        begun = False
        url = urlsplit(self.server.url)
        secure = url.scheme == "tls"
        protocol = cast(asyncio.Protocol, self._protocol)  # it is one in everything but name
        try:
            async with asyncio.timeout(4 * self._settings.connect_timeout):
                async with asyncio.timeout(self._settings.connect_timeout):
                    await self._loop.create_connection(lambda: protocol, url.hostname or "", url.port or _PORT)
                    await self._greeted
                if self._info.tls_required or (secure and self._info.tls_available):
                    begun = True
                    transport = self._transport
                    assert transport is not None
                    name = self.server.name or url.hostname
                    self._transport = await self._loop.start_tls(transport, protocol, tls, server_hostname=name)
                elif secure:
                    raise NatsRefused(
                        f"{self.server.url} does not speak TLS; nats:// is for a server without", "cluster.servers"
                    )
                self._write([b"CONNECT " + msgspec.json.encode(self._who()) + b"\r\n"])
                await self._ping()
        except NatsRefused:
            await self.close()
            raise
        except asyncio.CancelledError:
            self._closing = True
            self._lose(None)
            self._abort()
            raise
        except Exception as error:
            await self.close()
            raise self._why(self._why_lost or error, begun) from error
        self._opened = True
        self._subscribe(f"{self._inbox}.*", self._on_reply)
        self._pinging = self._loop.call_later(_PING_EVERY, self._look)
        return self

    def _who(self) -> dict[str, object]:
        """Return the identity fields of CONNECT."""
        settings, info = self._settings, self._info
        fields: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python3",
            "version": "taipan",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": settings.name,
        }
        if not info.auth_required:
            return fields
        url = urlsplit(self.server.url)
        if info.nonce and settings.credentials_file:
            fields |= _signed("credentials_file", settings.credentials_file, info.nonce)
        elif info.nonce and settings.nkey_file:
            fields |= _signed("nkey_file", settings.nkey_file, info.nonce)
        elif settings.user:
            fields |= {"user": settings.user, "pass": settings.password}
        elif settings.token:
            fields["auth_token"] = settings.token
        elif url.username and url.password is None:
            fields["auth_token"] = url.username
        elif url.username:
            fields |= {"user": url.username, "pass": url.password}
        return fields

    def _why(self, error: Exception, tls: bool) -> Exception:
        """Return why a connection failed. ``tls`` is set if a handshake was started."""
        url = self.server.url
        text = str(error) or type(error).__name__
        if tls and not url.startswith("tls://"):
            return NatsRefused(f"{url} requires TLS: its address must begin with tls://", "cluster.servers")
        if isinstance(error, ssl.SSLCertVerificationError):
            return _refused_certificate(url, self._settings, error)
        wanted = isinstance(error, ssl.SSLError) and "CERTIFICATE_REQUIRED" in (error.reason or text)
        if tls and not self._settings.tls_cert and (wanted or isinstance(error, ConnectionError)):
            # TLS 1.3: a server reports after the handshake that it requires a certificate, or just closes.
            what = "ended the connection after the TLS handshake: it seems to require a certificate of this node"
            return NatsRefused(f"{url} {what}", "cluster.tls_cert")
        if isinstance(error, ssl.SSLError):
            return NatsRefused(f"no TLS with {url}: {error.reason or text}", "cluster.tls_cert")
        if "uthorization" in text or "uthentication" in text:
            return _refused_credential(url, self._settings, text)
        if "ertificate" in text:
            return NatsRefused(f"{url}: {text}", "cluster.tls_cert")
        if isinstance(error, socket.gaierror):
            text = error.strerror or text
        elif isinstance(error, OSError) and error.errno:
            text = os.strerror(error.errno)
        if isinstance(error, TimeoutError) and not error.errno:
            text = f"no answer within {self._settings.connect_timeout:g} s"
        return NatsUnreachable(f"{url}: {text}")

    async def close(self) -> None:
        """Close the connection; waiting data is sent if the server accepts it immediately."""
        self._closing = True
        self._lose(None)
        self._protocol.forget_subscriptions()
        transport = self._transport
        if transport is None:
            return
        self._flush()
        transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0 if self._opened else 0.2):
                await asyncio.shield(self._closed)
        self._abort()

    def _abort(self) -> None:
        # asyncio's TLS transport of Python 3.11 cannot be aborted once it is closed.
        if self._transport is not None and not self._closed.done():
            self._transport.abort()

    async def finish(self) -> None:
        """Close when all published messages have been sent, if the server accepts them."""
        if not self.lost.is_set():
            with suppress(ConnectionLost):
                await self._pong_within(1.0)
        await self.close()

    def _lose(self, error: Exception | None) -> None:
        """Give up the connection, and end all waits for answers."""
        if self.lost.is_set():
            return
        self.lost.set()
        self._why_lost = error
        if self._pinging is not None:
            self._pinging.cancel()
        requests = [answer for _, answer in self._requests.values()]
        waiting = [each for each in (self._greeted, *self._pings, *requests) if each is not None]
        self._pings.clear()
        for answers in self._batches:
            answers.end_waiting()
        for future in waiting:
            if not future.done():
                _fail(future, ConnectionLost())

    @property
    def max_payload(self) -> int:
        return self._info.max_payload

    @property
    def version(self) -> tuple[int, int, int]:
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", self._info.version)
        return (0, 0, 0) if found is None else (int(found[1]), int(found[2]), int(found[3]))

    @property
    def clustered(self) -> bool:
        """Whether the server belongs to a cluster of NATS servers, according to its information."""
        return bool(self._info.cluster)

    @property
    def servers(self) -> list[NatsServer]:
        """Return the other servers of its cluster, with the hostname for their certificates."""
        here = urlsplit(self.server.url)
        return [
            NatsServer(f"{here.scheme}://{each}", self.server.name or here.hostname)
            for each in self._info.connect_urls or ()
            if each != here.netloc
        ]

    # ----------------------------------------------------- messages from the server

    def on_connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def on_lost(self, error: Exception | None) -> None:
        self._lose(error or ConnectionResetError(errno.ECONNRESET, "closed"))
        if not self._closed.done():
            self._closed.set_result(None)

    def on_info(self, data: bytes) -> None:
        try:
            self._info = _decode_info(data)
        except UNREADABLE as error:
            self.on_malformed(f"INFO: {error}")
            return
        if not self._greeted.done():
            self._greeted.set_result(None)

    def on_error(self, text: str) -> None:
        """Handle an error that the server reports. It closes the connection after most errors."""
        if self._closing:
            return
        self.error = text
        if not self._opened:
            self._lose(_Refused(text))
            return
        logger.warning("nats_error server=%s error=%s setting=%s", self.server.url, text, credential_of(self._settings))

    def on_malformed(self, text: str) -> None:
        """Close the connection, because the received data violates NATS's protocol."""
        self.error = f"malformed: {text}"
        self._lose(ValueError(self.error))
        self._abort()

    def on_ping(self) -> None:
        self._send(b"PONG\r\n")

    def on_pong(self) -> None:
        if self._pings:
            future = self._pings.popleft()
            if future is not None and not future.done():
                future.set_result(None)

    def _look(self) -> None:
        """Check that the server is alive."""
        if len(self._pings) > _MAX_PINGS:
            self.error = "no answer to PING"
            self._lose(None)
            self._abort()
            return
        self._pinging = self._loop.call_later(_PING_EVERY, self._look)
        self._pings.append(None)
        self._send(b"PING\r\n")

    async def _ping(self) -> None:
        """:raises ConnectionLost: the connection broke before the answer."""
        if self.lost.is_set():
            raise ConnectionLost
        future = self._loop.create_future()
        self._pings.append(future)
        self._send(b"PING\r\n")
        await future

    async def _pong_within(self, timeout: float) -> None:
        """:raises ConnectionLost: there is no answer in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._ping()
        except TimeoutError:
            raise ConnectionLost from None

    # ---------------------------------------------------------- core messages

    def publish(self, subject: str, data: bytes) -> bool:
        """Publish a message; return whether it was accepted."""
        transport = self._transport
        assert transport is not None
        if self._unsent + transport.get_write_buffer_size() + len(data) > MAX_UNSENT or self.lost.is_set():
            return False
        self._send(*published(subject, "", b"", data))
        return True

    def _send(self, *pieces: bytes) -> None:
        """Send together with all other output of this iteration."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox += pieces
        self._unsent += sum(map(len, pieces))

    def _flush(self) -> None:
        if self._outbox:
            pieces, self._outbox = self._outbox, []
            self._unsent = 0
            self._write(pieces)

    def _write(self, pieces: list[bytes]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    async def subscribe(self, subject: str, handler: Callable[[Msg], None]) -> int:
        """:raises ConnectionLost: the connection is closed."""
        if self.lost.is_set():
            raise ConnectionLost
        return self._subscribe(subject, handler)

    def _subscribe(self, subject: str, handler: Callable[[Msg], None]) -> int:
        number = self._protocol.subscribe(handler)
        self._send(f"SUB {subject} {number}\r\n".encode())
        return number

    async def unsubscribe(self, subscription: int) -> None:
        if self._protocol.unsubscribe(subscription):
            self._send(b"UNSUB %d\r\n" % subscription)

    def inbox(self) -> str:
        """Return a unique subject."""
        return f"{_INBOX}.{secrets.token_hex(11)}"

    async def settle(self) -> None:
        """Wait until the server has processed every subscription. :raises ConnectionLost: the connection is closed."""
        await self._pong_within(2.0)

    async def request(self, subject: str, data: bytes, timeout: float, headers: dict[str, str] | None = None) -> bytes:
        return await self.send_request(subject, data, timeout, headers)

    def send_request(
        self, subject: str, data: bytes, timeout: float, headers: dict[str, str] | None = None
    ) -> asyncio.Future[bytes]:
        """Send a request now. Return the future of its answer, whose errors are ``NoResponders``, ``NoAnswer`` and
        ``ConnectionLost``.

        :raises Unavailable: it was not sent."""
        if self.lost.is_set():
            raise Unavailable("not connected")
        self._next += 1
        reply = f"{self._inbox}.{self._next}"
        answer: asyncio.Future[bytes] = self._loop.create_future()
        lines = b"" if headers is None else header_lines(headers)
        if len(lines) + len(data) > self.max_payload:
            raise Unavailable(f"{len(data)} bytes are more than max_payload of the NATS server allows")
        timer = self._loop.call_later(timeout, self._end_request, reply)

        def ended(_: asyncio.Future[bytes]) -> None:
            timer.cancel()
            del self._requests[reply]

        answer.add_done_callback(ended)
        self._requests[reply] = (subject, answer)
        self._send(*published(subject, reply, lines, data))
        return answer

    def _end_request(self, reply: str) -> None:
        subject, answer = self._requests[reply]
        if not answer.done():
            by = " from NATS" if subject.startswith("$") else ""
            _fail(answer, NoAnswer(f"no answer{by} to {subject}"))

    async def request_many(
        self, subject: str, requests: Sequence[tuple[str, int, bytes]], timeout: float
    ) -> list[bytes | None]:
        """Send writes to a stream together. Each write is the rest of the subject, the number of its last message, and
        the data. Return the answers; a missing answer is ``None``. ``timeout`` is the longest time in
        seconds without any answer.

        :raises Unavailable: nothing was sent.
        """
        if self.lost.is_set():
            raise Unavailable("not connected")
        first, self._next = self._next + 1, self._next + len(requests)
        answers = Answers(first, len(requests), self._loop.create_future())
        self._batches.append(answers)
        self._send(compared(subject, f"{self._inbox}.", first, requests))
        left = answers.left
        try:
            while not answers.complete.done():
                await asyncio.wait([answers.complete], timeout=timeout)
                if answers.left == left:
                    break
                left = answers.left
        finally:
            self._batches.remove(answers)
        return answers.found

    def _on_reply(self, message: Msg) -> None:
        subject = message.subject
        request = self._requests.get(subject)
        if request is None:
            number = int(subject[subject.rindex(".") + 1 :])
            for answers in self._batches:
                if answers.first <= number < answers.end:
                    answers.take(number, message)
        elif not request[1].done():
            if message.has_status and (message.headers or {}).get("Status") == "503":
                _fail(request[1], NoResponders(f"nothing listens on {request[0]}"))
            else:
                request[1].set_result(message.data)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Complete a future with an error, which is not logged if nothing waits for the future."""
    future.set_exception(error)
    future.exception()
