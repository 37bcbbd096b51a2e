"""Top: the clients that send and receive most between two calls."""

import time
from typing import Final

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.observability.log_text import shorten
from taipan.broker.server import Server

from .clients import Clients

SORTS: Final = ("messages", "in", "out", "bytes", "queue", "inflight", "dropped", "clientid")
ROWS: Final = 50


class TopClient(msgspec.Struct, kw_only=True):
    """``in``, ``out``: messages a second; ``in_oct``, ``out_oct``: bytes a second; ``dropped``: messages that the
    client missed since it connected."""

    clientid: str
    connected: bool
    in_: float = msgspec.field(name="in")
    out: float
    in_oct: float
    out_oct: float
    queue: int
    inflight: int
    dropped: int


class TopClients(msgspec.Struct, kw_only=True):
    """``clients``: number of all clients; ``rows``: the first of them."""

    clients: int
    rows: list[TopClient]


class Top:
    """The view of one reader, who calls ``look`` repeatedly, on the clients of this node."""

    def __init__(self, server: Server, clients: Clients, sort: str) -> None:
        self._server = server
        self._clients = clients
        self._sort = sort
        self._before: dict[str, tuple[int, int, int, int]] = {}
        self._looked_at = 0.0

    async def look(self) -> TopClients:
        """Return the rates since the last call; 0 at the first call."""
        now = time.monotonic()
        seconds = now - self._looked_at
        first, self._looked_at = not self._looked_at, now
        before, totals = self._before, dict[str, tuple[int, int, int, int]]()
        found: list[TopClient] = []
        sessions = list(self._server.broker.sessions)
        work = CooperativeSlice()
        for session in sessions:
            record = self._clients.record(session)
            total = (record.recv_msg, record.send_msg, record.recv_oct, record.send_oct)
            totals[record.clientid] = total
            # A client that has connected since then started at 0; the counters of a new connection start again from 0.
            then = total if first else before.get(record.clientid, (0, 0, 0, 0))
            rates = [round(max(0, new - old) / seconds, 1) for new, old in zip(total, then, strict=True)]
            row = TopClient(
                clientid=shorten(record.clientid), connected=record.connected, in_=rates[0], out=rates[1],
                in_oct=rates[2], out_oct=rates[3], queue=record.mqueue_len, inflight=record.inflight,
                dropped=record.send_msg_dropped,
            )  # fmt: skip
            found.append(row)
            if len(found) >= 4 * ROWS:
                found = self._first(found)
            await work.checkpoint()
        self._before = totals
        return TopClients(clients=len(sessions), rows=self._first(found))

    def _first(self, rows: list[TopClient]) -> list[TopClient]:
        if self._sort == "clientid":
            return sorted(rows, key=lambda row: row.clientid)[:ROWS]
        return sorted(rows, key=lambda row: (-self._value(row), row.clientid))[:ROWS]

    def _value(self, row: TopClient) -> float:
        match self._sort:
            case "messages":
                return row.in_ + row.out
            case "in":
                return row.in_
            case "out":
                return row.out
            case "bytes":
                return row.in_oct + row.out_oct
            case "queue":
                return row.queue
            case "inflight":
                return row.inflight
            case _:
                return row.dropped
