"""The packet table: for each Control Packet the bytes, the version, and the packet or error they are.

Read by the tests of decoder and encoder, by the fuzz target as its corpus, and by the live test that sends each row
to a running node. It decides nothing itself: a row says what the standard, or the checklist where it is open, wants.
"""

from collections.abc import Iterator

from . import acks, auth, connack, connect, disconnect, framing, ping, publish, suback, subscribe, unsuback, unsubscribe
from .table import ALL, CLIENT, SERVER, Bad, Row, comparable, wire

__all__ = ["ALL", "CLIENT", "SERVER", "Bad", "Row", "comparable", "rows", "wire"]

_FILES = (
    connect,
    connack,
    publish,
    acks,
    subscribe,
    suback,
    unsubscribe,
    unsuback,
    ping,
    disconnect,
    auth,
    framing,
)


def rows(sender: str | None = None) -> Iterator[Row]:
    """All rows, or those of packets that ``sender`` (``"client"``, ``"server"``) sends."""
    for file in _FILES:
        for row in file.ROWS:
            if sender is None or row.sender == sender:
                yield row
