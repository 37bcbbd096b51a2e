"""NatsConnection: one connection of nats-py to one server, until it breaks. Nothing else imports nats-py.

nats-py sends later what it could not send while it was away, and is closed for ever after most errors of a server. Here
each connection is a client of its own: what is not sent when it breaks is gone, and ``nats_client`` makes the next one.
"""

import asyncio
import errno
import logging
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import nats.errors
import nkeys
from nats.aio.client import Client
from nats.aio.msg import Msg as Msg  # of every handler
from nats.aio.subscription import Subscription

from ..config import ClusterSettings
from .nats import NatsRefused, NoAnswer, NoResponders, Unavailable

logger = logging.getLogger(__name__)

MAX_UNSENT: Final = 268_435_456
"""Bytes that wait for the server; links hold back far below it."""
_POLL: Final = 0.1


class ConnectionLost(Exception):
    """The connection broke while something was waited for."""


class Unreachable(Exception):
    """No NATS server answers there; one line."""


class Server(NamedTuple):
    """``name``: what its certificate must be for, where that is not the host of ``url``."""

    url: str
    name: str | None = None


class WatchedTls(ssl.SSLContext):
    """Tells whether a handshake was begun: nats-py goes on in plain text where the server does not ask for TLS."""

    begun = False

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        self.begun = True
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def tls_context(settings: ClusterSettings) -> WatchedTls:
    """For servers of ``tls://``, and those of ``nats://`` that want it all the same.

    :raises NatsRefused: a file cannot be used.
    """
    context = WatchedTls(ssl.PROTOCOL_TLS_CLIENT)
    if settings.tls_ca:
        try:
            context.load_verify_locations(settings.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise NatsRefused(f"cannot use {settings.tls_ca}: {error}", "cluster.tls_ca") from error
    else:
        context.load_default_certs()
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.tls_cert:
        try:
            context.load_cert_chain(settings.tls_cert, settings.tls_key or None, lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise NatsRefused(f"cannot use {settings.tls_cert}: {error}", "cluster.tls_cert") from error
    return context


def check_credentials(settings: ClusterSettings) -> None:
    """Whether the files can be read and hold what they should.

    :raises NatsRefused: one does not.
    """
    for key, marks in (
        ("nkey_file", ()),
        ("credentials_file", (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")),
    ):
        path = getattr(settings, key)
        if not path:
            continue
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise NatsRefused(f"cannot read {path}: {error.strerror}", f"cluster.{key}") from error
        try:
            if marks:
                if not all(mark in text for mark in marks):
                    raise ValueError("no JWT and seed of a user")
                lines = text.partition(marks[1])[2].splitlines()
                nkeys.from_seed(bytearray(lines[1].strip())).wipe()
            else:
                nkeys.from_seed(bytearray(text.strip())).wipe()
        except (ValueError, IndexError, nkeys.NkeysError) as error:
            what = "credentials as nsc makes them" if marks else "the seed of an NKey"
            raise NatsRefused(f"{path} does not hold {what}", f"cluster.{key}") from error


def credential_of(settings: ClusterSettings) -> str:
    """The setting that says who we are."""
    for key in ("credentials_file", "nkey_file", "token", "user"):
        if getattr(settings, key):
            return f"cluster.{key}"
    return "cluster.user"


class NatsConnection:
    """A connection to one server, until it breaks."""

    def __init__(self, settings: ClusterSettings, server: Server) -> None:
        self.server = server
        self.lost = asyncio.Event()
        self.error = ""  # the latest that the server said
        self._settings = settings
        self._nc = Client()
        self._opened = self._closing = False
        self._subscriptions: list[Subscription] = []
        self._requests: dict[str, asyncio.Future[Msg]] = {}
        self._inbox = ""
        self._next = 0
        self._outbox: list[tuple[str, bytes]] = []
        self._unsent = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------- connection

    async def open(self, tls: WatchedTls) -> "NatsConnection":
        """Connect.

        :raises NatsRefused: the server does not let us in.
        :raises Unreachable: nobody answers.
        """
        url, settings = self.server.url, self._settings
        secure = url.startswith("tls://")
        tls.begun = False

        def token() -> str:
            # nats-py asks for it just before it sends who we are.
            if secure and not tls.begun:
                raise NatsRefused(f"{url} does not speak TLS; nats:// is for a server without", "cluster.servers")
            return settings.token

        try:
            async with asyncio.timeout(4 * settings.connect_timeout):
                await self._nc.connect(
                    [url],
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    name=settings.name,
                    connect_timeout=settings.connect_timeout,  # type: ignore[arg-type]  # any number of seconds
                    ping_interval=1,
                    max_outstanding_pings=2,
                    tls=tls,
                    tls_hostname=self.server.name,
                    user=settings.user or None,
                    password=settings.password if settings.user else None,
                    token=token if secure or settings.token else None,
                    user_credentials=settings.credentials_file or None,
                    nkeys_seed=settings.nkey_file or None,
                    pending_size=-1,
                )
                if not self._nc.is_connected:  # the server has closed without a word
                    raise ConnectionResetError(errno.ECONNRESET, "closed")
        except NatsRefused:
            await self.close()
            raise
        except Exception as error:
            await self.close()
            raise self._why(error, tls.begun) from error
        self._opened = True
        self._inbox = self._nc.new_inbox()
        try:
            if secure and not tls.begun:
                raise NatsRefused(f"{url} does not speak TLS; nats:// is for a server without", "cluster.servers")
            await self._subscribe(f"{self._inbox}.*", self._on_reply)
        except NatsRefused:
            await self.close()
            raise
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._watch_over())]
        return self

    def _why(self, error: Exception, tls: bool) -> Exception:
        """What is told of a connection that could not be made. ``tls``: a handshake was begun."""
        url = self.server.url
        while error.__cause__ is not None and isinstance(error, Unreachable):
            error = error.__cause__  # type: ignore[assignment]  # what _on_error was called with
        text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
        if tls and not url.startswith("tls://"):
            return NatsRefused(f"{url} wants TLS: its address begins with tls://", "cluster.servers")
        if isinstance(error, (ssl.SSLCertVerificationError, ssl.CertificateError)):
            what = getattr(error, "verify_message", "") or text
            return NatsRefused(f"the certificate of {url} cannot be trusted: {what}", "cluster.tls_ca")
        if isinstance(error, ssl.SSLError):
            return NatsRefused(f"no TLS with {url}: {error.reason or text}", "cluster.tls_cert")
        if "uthorization" in text or "uthentication" in text:
            return NatsRefused(f"{url} does not let this node in: {text}", credential_of(self._settings))
        if isinstance(error, ConnectionError) and tls and not self._settings.tls_cert:
            # TLS 1.3: a server says after the handshake that it wants a certificate, or only closes.
            what = "ended the connection after the TLS handshake: it seems to want a certificate of this node"
            return NatsRefused(f"{url} {what}", "cluster.tls_cert")
        if "ertificate" in text:
            return NatsRefused(f"{url}: {text}", "cluster.tls_cert")
        if isinstance(error, OSError) and error.errno:
            text = os.strerror(error.errno)
        if isinstance(error, (TimeoutError, nats.errors.TimeoutError)):
            text = f"no answer within {self._settings.connect_timeout:g} s"
        return Unreachable(f"{url}: {text}")

    async def _on_error(self, error: Exception) -> None:
        if self._closing:
            return
        if not self._opened:
            raise Unreachable(str(error)) from error  # ends connect(), which would try again
        if isinstance(error, nats.errors.UnexpectedEOF):
            return  # _on_disconnected follows
        if isinstance(error, nats.errors.SlowConsumerError):
            logger.warning("nats_messages_dropped server=%s subject=%s reason=unread", self.server.url, error.subject)
            return
        self.error = str(error).removeprefix("nats: ")
        logger.warning(
            "nats_error server=%s error=%s setting=%s", self.server.url, self.error, credential_of(self._settings)
        )

    async def _on_disconnected(self) -> None:
        self.lost.set()

    async def _watch_over(self) -> None:
        """nats-py calls nobody where a server that hangs takes no more bytes, not even those of the close."""
        while self._nc.is_connected:
            await asyncio.sleep(_POLL)
        self.lost.set()

    async def close(self) -> None:
        self._closing = True
        self.lost.set()
        for future in self._requests.values():
            if not future.done():
                future.set_exception(ConnectionLost())
        for task in self._tasks:
            task.cancel()
        for subscription in self._subscriptions:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
        with suppress(Exception):  # whatever it says of a connection that is given up
            async with asyncio.timeout(1.0 if self._opened else 0.2):
                await self._nc.close()

    async def finish(self) -> None:
        """Close when all that was published has been sent, if the server takes it."""
        if self._nc.is_connected:
            with suppress(nats.errors.Error, TimeoutError):
                await self._send_all()
                await self._nc.flush(timeout=1)
        await self.close()

    @property
    def max_payload(self) -> int:
        return self._nc.max_payload

    @property
    def version(self) -> tuple[int, int, int]:
        found = self._nc.connected_server_version
        try:
            return (found.major, found.minor, found.patch)
        except ValueError:
            return (0, 0, 0)

    @property
    def servers(self) -> list[Server]:
        """The others of its cluster that it has told of, with the host that their certificate is for."""
        here = urlsplit(self.server.url)
        return [
            Server(f"{here.scheme}://{each.netloc}", self.server.name or here.hostname)
            for each in self._nc.discovered_servers
        ]

    # ---------------------------------------------------------- core messages

    def publish(self, subject: str, data: bytes) -> bool:
        """Whether it was taken."""
        if self._unsent + self._nc.pending_data_size + len(data) > MAX_UNSENT or self.lost.is_set():
            return False
        self._outbox.append((subject, data))
        self._unsent += len(data)
        self._wake.set()
        return True

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._send_all()
            except nats.errors.Error:
                if not self._nc.is_connected:
                    self.lost.set()
                    return
                logger.exception("nats_publish_failed server=%s", self.server.url)

    async def _send_all(self) -> None:
        batch, self._outbox, self._unsent = self._outbox, [], 0
        for subject, data in batch:
            await self._nc.publish(subject, data)

    async def subscribe(self, subject: str, handler: Callable[[Msg], None]) -> Subscription:
        """:raises ConnectionLost: the connection is gone."""
        try:
            return await self._subscribe(subject, handler)
        except nats.errors.Error as error:
            raise ConnectionLost from error

    async def _subscribe(self, subject: str, handler: Callable[[Msg], None]) -> Subscription:
        async def call(message: Msg) -> None:
            if self._closing:
                return
            try:
                handler(message)
            except Exception:
                logger.exception("nats_handler_failed subject=%s", message.subject)

        made = await self._nc.subscribe(subject, cb=call)
        self._subscriptions.append(made)
        return made

    async def unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    def inbox(self) -> str:
        return self._nc.new_inbox()

    async def settle(self) -> None:
        """Until the server has taken every subscription. :raises ConnectionLost: the connection is gone."""
        try:
            await self._nc.flush(timeout=2)
        except (nats.errors.Error, TimeoutError) as error:
            raise ConnectionLost from error

    async def request(self, subject: str, data: bytes, timeout: float, headers: dict[str, str] | None = None) -> bytes:
        """
        :raises NoResponders: nobody listens.
        :raises NoAnswer: none in time.
        :raises Unavailable: it was not sent.
        :raises ConnectionLost: the connection broke before the answer.
        """
        if self.lost.is_set():
            raise Unavailable("not connected")
        self._next += 1
        reply = f"{self._inbox}.{self._next}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._requests[reply] = answer
        try:
            try:
                await self._nc.publish(subject, data, reply, headers)
            except nats.errors.Error as error:
                raise Unavailable(str(error).removeprefix("nats: ")) from error
            async with asyncio.timeout(timeout):
                message = await answer
        except TimeoutError:
            raise NoAnswer(subject) from None
        finally:
            del self._requests[reply]
        if message.headers is not None and message.headers.get("Status") == "503":
            raise NoResponders(subject)
        return message.data

    def _on_reply(self, message: Msg) -> None:
        answer = self._requests.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)
