"""The order of a listing of clients by one field of their records, over all clients of a node.

A node finds the first clients of an order without sorting all of them: it keeps the first ones found so far, and
compares every further client with the last of these.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.server import Server
from taipan.broker.session.protocols import NO_LOCAL
from taipan.broker.session.session import Session
from taipan.broker.transport.connection import Connection

from .client_record import address_of
from .refusal import wrong

MAX_SORTED: Final = 10_000
"""The last row of a sorted listing: an order of a million clients is not sent from node to node."""
_TOGETHER: Final = 500
_MAX_TEXT: Final = 256
"""Number of characters that are compared; longer texts with an equal beginning are in the order of their client IDs."""

Value = int | float | str
Field = Callable[[Session], Any]
"""Returns the value of a session by which it is sorted: always numbers, or always texts."""
Pair = tuple[Any, str]
"""Value and client ID."""


class FirstClient(msgspec.Struct, array_like=True):
    """A client in an order: the value by which it is sorted, and its client ID."""

    value: Value
    clientid: str


class FirstClients(msgspec.Struct, array_like=True):
    """The first clients of a node in an order; ``count``: number of clients among which they were found."""

    count: int
    rows: list[FirstClient]


class ClientOrder:
    """Finds the first clients of this node by a field of the client record."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._fields: dict[str, Field] = {
            "clientid": lambda session: session.client_id[:_MAX_TEXT],
            "username": lambda session: (session.client.username or "")[:_MAX_TEXT],
            "ip_address": lambda session: address_of(session.client),
            "proto_ver": lambda session: session.client.proto_ver,
            "zone": lambda session: session.client.zone_name,
            "connected": lambda session: int(session.writer is not None),
            "connected_at": lambda session: float(session.client.connected_at),
            "disconnected_at": lambda session: 0.0 if session.connected else session.disconnected_at,
            "created_at": lambda session: session.created_at,
            "keepalive": lambda session: session.client.keep_alive,
            "expiry_interval": lambda session: session.expiry_interval,
            "subscriptions_cnt": lambda session: len(session.subscriptions),
            "inflight": lambda session: len(session.inflight),
            "mqueue_len": lambda session: 0 if session.queue is None else len(session.queue),
            "mqueue_dropped": lambda session: session.mqueue_dropped,
            "awaiting_rel": lambda session: len(session.awaiting_rel or ()),
            "recv_msg": self._received_messages,
            "recv_oct": self._received_bytes,
            "recv_msg.dropped": self._refused_messages,
            "send_msg": self._sent_messages,
            "send_oct": self._sent_bytes,
            "send_msg.dropped": _undelivered,
        }

    def parse(self, sort: str) -> tuple[str, bool]:
        """Return the field of ``-mqueue_len``, and whether the highest value comes first. Raises Refusal."""
        field = sort.removeprefix("-")
        if field not in self._fields:
            raise wrong("_sort", f"expected one of {', '.join(self._fields)}, with - before it for the highest first")
        return field, sort != field

    async def first(
        self, field: str, down: bool, wanted: int, leave: Callable[[list[Session]], list[Session]] | None
    ) -> FirstClients:
        """Return the first ``wanted`` of the clients that ``leave`` leaves over; ``down``: highest value first."""
        value = self._fields[field]
        sessions = list(self._server.broker.sessions)
        found = Firsts(wanted, down)
        count = 0
        work = CooperativeSlice()
        for start in range(0, len(sessions), _TOGETHER):
            part = sessions[start : start + _TOGETHER]
            if leave is not None:
                part = leave(part)
            count += len(part)
            found.offer([(value(session), session.client_id) for session in part])
            await work.checkpoint()
        return FirstClients(count, [FirstClient(*each) for each in found.rows()])

    # The figures of the current connection, or of the last one.

    def _connection(self, session: Session) -> Connection | None:
        channel = self._server.context.channels.get(session.client_id)
        return channel.connection if channel is not None and isinstance(channel.connection, Connection) else None

    def _received_messages(self, session: Session) -> int:
        connection = self._connection(session)
        if connection is not None:
            return connection.channel.received_messages
        traffic = session.client.traffic
        return 0 if traffic is None else traffic.received0 + traffic.received1 + traffic.received2

    def _received_bytes(self, session: Session) -> int:
        connection = self._connection(session)
        if connection is not None:
            return connection.received_bytes
        return 0 if session.client.traffic is None else session.client.traffic.received_bytes

    def _refused_messages(self, session: Session) -> int:
        connection = self._connection(session)
        if connection is not None:
            return connection.channel.refused_messages
        return 0 if session.client.traffic is None else session.client.traffic.refused

    def _sent_messages(self, session: Session) -> int:
        connection = self._connection(session)
        if connection is not None:
            return connection.writer.sent_messages
        traffic = session.client.traffic
        return 0 if traffic is None else traffic.sent0 + traffic.sent1 + traffic.sent2

    def _sent_bytes(self, session: Session) -> int:
        connection = self._connection(session)
        if connection is not None:
            return connection.writer.sent_bytes
        return 0 if session.client.traffic is None else session.client.traffic.sent_bytes


class Firsts:
    """The first ``wanted`` of many pairs of value and name; equal values are in the order of the names.

    Memory is limited to about four times ``wanted``."""

    __slots__ = ("_down", "_last", "_most", "_rows", "_wanted")

    def __init__(self, wanted: int, down: bool) -> None:
        self._wanted = wanted
        self._down = down
        self._most = 4 * wanted + _TOGETHER
        self._rows: list[Pair] = []
        # The last pair that was among the first when they were last sorted: a pair behind it is not one of them.
        self._last: Pair | None = None

    def offer(self, pairs: Iterable[Pair]) -> None:
        """Keep the pairs that may be among the first."""
        if self._last is None:
            self._rows += pairs
        else:
            last, name = self._last
            if self._down:
                self._rows += [each for each in pairs if each[0] > last or (each[0] == last and each[1] < name)]
            else:
                self._rows += [each for each in pairs if each[0] < last or (each[0] == last and each[1] < name)]
        if len(self._rows) > self._most:
            self._sort()

    def rows(self) -> list[Pair]:
        """Return the first of all pairs offered so far, in order."""
        self._sort()
        return self._rows

    def _sort(self) -> None:
        self._rows.sort(key=lambda pair: pair[1])
        self._rows.sort(key=lambda pair: pair[0], reverse=self._down)
        del self._rows[self._wanted :]
        if self._wanted and len(self._rows) == self._wanted:
            self._last = self._rows[-1]


def _undelivered(session: Session) -> int:
    drops = session.client.dropped
    return 0 if drops is None else sum(drops.values()) - drops.get(NO_LOCAL, 0)
