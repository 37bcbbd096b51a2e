"""ClientSweep: the clients and Shared Subscriptions with the most messages at present.

Every connection counts its messages and bytes in any case. The sweep reads these counters, and remembers in each
channel what it has read: the difference to the next sweep is a rate. It looks at ``PART`` clients a tick, so that no
tick is long, and at all of them every ``PERIOD`` seconds, or less often if they are very many.
"""

from collections.abc import Iterator
from typing import Final

from .channel.context import ChannelContext
from .observability.top.loudest import Loudest
from .routing.shared import SharedGroup
from .transport.connection import Connection

PERIOD: Final = 5.0
PART: Final = 1_000
_SHORTEST: Final = 0.5
"""Seconds between two readings of a client's counters, from which a rate is computed."""


class ClientLoad:
    """A connected client: messages and bytes per second that it sends (``messages_in``) and receives."""

    __slots__ = ("bytes_in", "bytes_out", "client_id", "messages_in", "messages_out", "username")

    def __init__(self, client_id: str, username: str | None, values: tuple[float, float, float, float]) -> None:
        self.client_id = client_id
        self.username = username
        self.messages_in, self.messages_out, self.bytes_in, self.bytes_out = values

    @property
    def values(self) -> tuple[float, ...]:
        return (
            self.messages_in, self.messages_out, self.bytes_in, self.bytes_out, self.messages_in + self.messages_out
        )  # fmt: skip


class GroupLoad:
    """A Shared Subscription: its whole filter, and the messages per second that its members here receive."""

    __slots__ = ("filter", "members", "messages_out")

    def __init__(self, filter: str, members: int, messages_out: float) -> None:
        self.filter = filter
        self.members = members
        self.messages_out = messages_out

    @property
    def values(self) -> tuple[float, ...]:
        return (self.messages_out,)


MEASURES: Final = ("in", "out", "in_oct", "out_oct", "messages")
"""Names of ``ClientLoad.values``."""


class ClientSweep:
    """``clients`` and ``groups``: the results of the last complete sweep, which took place at ``at`` and covers the
    ``seconds`` before."""

    __slots__ = ("_begun", "_context", "_steps", "at", "clients", "groups", "seconds")

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._steps: Iterator[None] | None = None
        self._begun = 0.0
        self.at = 0.0
        self.seconds = 0.0
        self.clients: Loudest[ClientLoad] = Loudest(len(MEASURES))
        self.groups: Loudest[GroupLoad] = Loudest(1)

    def tick(self, now: float) -> None:
        """Continue the sweep, or begin the next one if it is due."""
        if self._steps is None:
            if now - self._begun < PERIOD:
                return
            first, seconds, self._begun = not self._begun, now - self._begun, now
            self._steps = self._sweep(now, 0.0 if first else seconds)
        if next(self._steps, self) is self:
            self._steps = None

    def _sweep(self, now: float, seconds: float) -> Iterator[None]:
        """Sweep all clients, in parts. ``seconds``: since the last sweep; 0: there was none."""
        clients: Loudest[ClientLoad] = Loudest(len(MEASURES))
        looked = 0
        for channel in list(self._context.channels.values()):
            connection = channel.connection
            if isinstance(connection, Connection):
                written = connection.writer
                got, sent = channel.received_messages, written.sent_messages
                bytes_in, bytes_out = connection.received_bytes, written.sent_bytes
                if channel.swept_bytes_in != bytes_in or channel.swept_bytes_out != bytes_out:
                    if seconds >= _SHORTEST:
                        per = 1 / seconds
                        messages_in = (got - channel.swept_received) * per
                        messages_out = (sent - channel.swept_sent) * per
                        octets_in = (bytes_in - channel.swept_bytes_in) * per
                        octets_out = (bytes_out - channel.swept_bytes_out) * per
                        floors = clients.floors
                        if (
                            messages_in > floors[0] or messages_out > floors[1] or octets_in > floors[2]
                            or octets_out > floors[3] or messages_in + messages_out > floors[4]
                        ):  # fmt: skip
                            values = (messages_in, messages_out, octets_in, octets_out)
                            clients.offer(ClientLoad(channel.client.client_id, channel.client.username, values))
                    channel.swept_received, channel.swept_sent = got, sent
                    channel.swept_bytes_in, channel.swept_bytes_out = bytes_in, bytes_out
            looked += 1
            if looked % PART == 0:
                yield
        groups: Loudest[GroupLoad] = Loudest(1)
        for group in list(self._context.broker.router.groups()):
            self._look_at(group, groups, seconds)
            looked += 1
            if looked % PART == 0:
                yield
        self.clients, self.groups = clients, groups
        self.at, self.seconds = now, seconds

    @staticmethod
    def _look_at(group: SharedGroup, groups: Loudest[GroupLoad], seconds: float) -> None:
        delivered, before = group.delivered, group.swept
        group.swept = delivered
        if seconds >= _SHORTEST and delivered > before:
            groups.offer(GroupLoad(group.filter, len(group), (delivered - before) / seconds))
