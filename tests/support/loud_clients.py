"""A node whose top lists have very many clients behind them: what they are fed with, without the sockets."""

from types import SimpleNamespace
from typing import Any

from taipan.broker.client_sweep import PART
from taipan.broker.server import Server
from taipan.broker.transport.connection import Connection


class Loud:
    """What ``ClientSweep`` reads of a channel: some kilobytes less for each than a whole channel."""

    __slots__ = (
        "client", "connection", "received_messages", "swept_bytes_in", "swept_bytes_out", "swept_received", "swept_sent"
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.client = SimpleNamespace(client_id=f"client-{number}", username=f"user-{number % 100}")
        self.connection = Connection.__new__(Connection)
        self.connection.writer = SimpleNamespace(sent_messages=0, sent_bytes=0)  # type: ignore[assignment]
        self.connection.received_bytes = 0
        self.received_messages = 0
        self.swept_bytes_in = self.swept_bytes_out = self.swept_received = self.swept_sent = 0

    def move(self, messages: int) -> None:
        """Send so many messages of 100 bytes, and receive some."""
        self.received_messages += messages
        self.connection.received_bytes += 100 * messages
        written: Any = self.connection.writer
        written.sent_messages += messages % 97
        written.sent_bytes += 100 * (messages % 97)


def add_clients(server: Server, count: int) -> list[Loud]:
    """Clients for the sweep; nothing but the sweep may meet them."""
    clients = [Loud(number) for number in range(count)]
    channels: Any = server.context.channels
    channels.update((f"\0loud-{number}", client) for number, client in enumerate(clients))
    return clients


def sweep(server: Server, now: float, clients: int) -> float:
    """One whole sweep; the time at its end."""
    for _ in range(clients // PART + 2):
        now += 0.1
        server.client_sweep.tick(now)
    return now
