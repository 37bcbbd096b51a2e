"""Email: one message by SMTP.

Python's smtplib speaks the protocol, in a thread, because it blocks; the node sends a few emails an hour at most, so
an asynchronous package would be a dependency without a use. The socket is connected here, to an address that was
checked, and has two limits that smtplib lacks: of all the bytes that the server sends, and of the whole time."""

import asyncio
import contextlib
import smtplib
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import format_datetime, localtime, make_msgid
from functools import partial
from typing import Any, Final, TypeVar

from taipan.broker.observability.log_text import one_line
from taipan.ruleengine.network.allowed_networks import Networks
from taipan.ruleengine.network.tls import client_context

from .kinds import EmailConfig
from .notice import Notice

_MAX_RECEIVED: Final = 65_536
"""Maximum number of bytes that the server may send in one conversation."""
_QUIT_TIMEOUT: Final = 2.0
"""Seconds that the answer to QUIT may take."""
_MAX_SUBJECT: Final = 200
_MAX_DETAIL: Final = 1000

# Threads of its own, more than there are targets: servers that do not answer must not use up the threads of the loop,
# which resolve names and write files. A thread starts when it is needed.
_threads: Final = ThreadPoolExecutor(64, thread_name_prefix="alarm_mail")

S = TypeVar("S", bound=type[socket.socket])


class _Limits:
    """The time and the bytes that a conversation may still use."""

    def __init__(self, timeout: float) -> None:
        self.end = time.monotonic() + timeout
        self.bytes = _MAX_RECEIVED


def _limited(kind: S, limits: _Limits) -> S:
    """Return a kind of socket that keeps the limits whenever it reads."""

    class Limited(kind):  # type: ignore[misc, valid-type]
        def recv_into(self, *args: Any, **kwargs: Any) -> int:
            left = limits.end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if limits.bytes <= 0:
                raise OSError(f"the server has sent more than {_MAX_RECEIVED} bytes")
            self.settimeout(left)
            count: int = super().recv_into(*args, **kwargs)
            limits.bytes -= count
            return count

    return Limited  # type: ignore[return-value]


class _Connected(smtplib.SMTP):
    """An SMTP client on a socket that is connected already. It verifies certificates against ``host``."""

    def __init__(self, host: str, connected: socket.socket) -> None:
        self._connected = connected
        # Its own name for EHLO is an address literal: looking up a name could block.
        name = connected.getsockname()[0]
        super().__init__(host, local_hostname=f"[IPv6:{name}]" if ":" in name else f"[{name}]")

    def connect(self, *_: Any, **__: Any) -> tuple[int, bytes]:
        """Use the connected socket instead of opening one."""
        self.sock = self._connected
        self.file = None
        return self.getreply()


async def send_mail(config: EmailConfig, networks: Networks, notice: Notice, timeout: float) -> str:
    """Send one notice. Return a warning if the server has refused some of the recipients. Raises OSError, including
    smtplib's errors, and ValueError."""
    message = message_of(config, notice)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        made = await _connect(config, networks)
        try:
            conversation = partial(_converse, config, made, message, timeout)
            return await loop.run_in_executor(_threads, conversation)
        except BaseException:
            _end(made)  # the thread then ends at once
            raise


async def _connect(config: EmailConfig, networks: Networks) -> socket.socket:
    """Return a connected socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for address in await networks.addresses(config.host, config.port):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = networks.make_socket((family, socket.SOCK_STREAM, 0, "", (address, config.port)))
        try:
            await loop.sock_connect(made, (address, config.port))
        except OSError as error:
            failure = error
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure or OSError(f"{config.host} has no address")


def _end(made: socket.socket) -> None:
    try:
        made.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was closed
    made.close()


def _converse(config: EmailConfig, made: socket.socket, message: EmailMessage, timeout: float) -> str:
    """Do it, in a thread. Raises OSError and ValueError."""
    limits = _Limits(timeout)
    # A second descriptor: the thread closes its own, and the loop may shut down the connection at any time.
    plain = _limited(socket.socket, limits)(fileno=made.dup().detach())
    plain.settimeout(timeout)
    context: ssl.SSLContext | None = None
    connected: socket.socket = plain
    try:
        if config.security != "none":
            context = client_context({"verify": config.verify, "cacertfile": config.cacertfile})
            context.sslsocket_class = _limited(ssl.SSLSocket, limits)
        if context is not None and config.security == "tls":
            connected = context.wrap_socket(plain, server_hostname=config.host)
        smtp = _Connected(config.host, connected)
        try:
            if context is not None and config.security == "starttls":
                smtp.starttls(context=context)
            if config.username:
                smtp.login(config.username, config.password)
            refused = smtp.send_message(message, config.sender, config.recipients)
        finally:
            _quit(smtp, limits)
    finally:
        connected.close()
        plain.close()
        made.close()
    # The others have the message, and another attempt would repeat it.
    return f"the server has refused {', '.join(refused)}" if refused else ""


def _quit(smtp: smtplib.SMTP, limits: _Limits) -> None:
    """Say goodbye. Whatever the server answers, it has the message or not."""
    limits.end = min(limits.end, time.monotonic() + _QUIT_TIMEOUT)
    with contextlib.suppress(OSError, ValueError):  # all errors of smtplib are OSErrors
        smtp.quit()
    smtp.close()


def reply_of(error: smtplib.SMTPException) -> str:
    """Return what the server has answered, in one line."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code, answer = next(iter(error.recipients.values()))
        text = answer.decode("utf-8", "replace")
    elif isinstance(error, smtplib.SMTPResponseException):
        code, given = error.smtp_code, error.smtp_error
        text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    else:
        return one_line(str(error)[:_MAX_SUBJECT])
    return one_line(f"SMTP {code}: {text[:_MAX_SUBJECT]}")


def message_of(config: EmailConfig, notice: Notice) -> EmailMessage:
    """Return the email of a notice. Raises ValueError for an address that cannot be in a header."""
    message = EmailMessage()
    message["Subject"] = f"[taipan] {notice.text}"[:_MAX_SUBJECT]
    message["From"] = config.sender
    message["To"] = ", ".join(config.recipients)
    message["Date"] = format_datetime(localtime())
    message["Message-ID"] = make_msgid(domain="taipan.invalid")
    message["Auto-Submitted"] = "auto-generated"
    details = notice.alarm.get("details") or {}
    lines = [notice.text, ""]
    lines += [one_line(f"{name}: {value}"[:_MAX_DETAIL]) for name, value in details.items()]
    message.set_content("\n".join(lines) + "\n")
    return message
