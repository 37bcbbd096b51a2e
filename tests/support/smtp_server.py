"""An SMTP server that keeps the messages it is sent: the other side of e-mails."""

import asyncio
import base64
import email.policy
import ssl
from email.message import EmailMessage
from typing import cast

from .node import free_port


class SmtpServer:
    """``messages``: those that it has accepted, each with its recipients. ``answers``: replies in place of its own,
    by command; ``""`` is the greeting. ``refused``: recipients. ``connections``: how many there were."""

    def __init__(self, tls: ssl.SSLContext | None = None, implicit: bool = False) -> None:
        """``implicit``: TLS from the first byte, otherwise STARTTLS."""
        self.port = free_port()
        self.messages: list[tuple[list[str], EmailMessage]] = []
        self.logins: list[str] = []
        self.refused: set[str] = set()
        self.answers: dict[str, bytes] = {}
        self._tls = tls
        self._implicit = implicit
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> "SmtpServer":
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls if self._implicit else None
        )
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def disconnect(self) -> None:
        """End the connections that there are."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            await self._talk(reader, writer)
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recipients: list[str] = []
        writer.write(self.answers.get("", b"220 test\r\n"))
        while line := await reader.readline():
            words = line.decode().split()
            command = words[0].upper()
            if command in self.answers:
                writer.write(self.answers[command])
            elif command == "EHLO":
                offers = "AUTH PLAIN\r\n250-STARTTLS" if self._tls and not self._implicit else "AUTH PLAIN"
                writer.write(f"250-test\r\n250-{offers}\r\n250 8BITMIME\r\n".encode())
            elif command == "STARTTLS":
                assert self._tls is not None
                writer.write(b"220 go\r\n")
                await writer.start_tls(self._tls)
            elif command == "AUTH":
                self.logins.append(base64.b64decode(words[2]).decode())
                writer.write(b"235 in\r\n")
            elif command == "DATA":
                writer.write(b"354 go\r\n")
                data = await reader.readuntil(b"\r\n.\r\n")
                message = cast(EmailMessage, email.message_from_bytes(data[:-5], policy=email.policy.default))
                self.messages.append((recipients, message))
                recipients = []
                writer.write(b"250 taken\r\n")
            elif command == "QUIT":
                writer.write(b"221 bye\r\n")
                return
            else:
                recipient = line.decode().partition("<")[2].partition(">")[0] if command == "RCPT" else ""
                if recipient in self.refused:
                    writer.write(b"550 nobody\r\n")
                    continue
                if recipient:
                    recipients.append(recipient)
                writer.write(b"250 ok\r\n")
