"""Compaction: what is true is written again as records, then the older batches are dropped."""

from collections.abc import Iterator

from ..core.broker import Broker
from ..persistence.durability import Durability
from ..persistence.log import records
from ..persistence.record_mapping import Entry, retained_record, session_record, subscription_record
from ..session.session import Session


def live_octets(durability: Durability, broker: Broker) -> int:
    """About how many bytes everything that is true now takes."""
    small = len(broker.sessions) + broker.router.subscription_count
    return durability.recorded_octets() + broker.retained.bytes + broker.router.filter_bytes + 400 * small


def live(durability: Durability, broker: Broker, before: int) -> Iterator[Entry]:
    """Everything that is true, as records: what a log without its older batches must still say.

    Much may happen between two of them: each says what is true when it is asked for. Messages that were written in
    batch ``before`` or later are left out.
    """
    for session in list(broker.sessions):
        if session.durable:
            yield session_record(session, durability.skew())
            yield from _live_of(session)
    for topic in list(broker.retained.topics()):
        message = broker.retained.get(topic)
        if message is not None and not topic.startswith("$SYS"):
            yield retained_record(message, durability.skew())
    for number in list(durability.messages):
        stored = durability.messages.get(number)
        if stored is not None and 0 < stored.seq < before and not stored.key:
            yield stored
    for table in (durability.wills, durability.delayed):
        for number in list(table):
            record = table.get(number)
            if record is not None:
                yield record
    for table_name, key, value in durability.tables.rows():
        yield records.RowStored(table_name, key, value)


def _live_of(session: Session) -> Iterator[records._Record]:
    for filter in list(session.subscriptions):
        subscription = session.subscriptions.get(filter)
        if subscription is not None:
            yield subscription_record(session, subscription)
    for packet_id in list(session.inflight):
        if packet_id in session.inflight and session.inflight[packet_id] is None:
            yield records.Released(session.number, packet_id, 0, "")
    for packet_id in list(session.awaiting_rel or ()):
        at = (session.awaiting_rel or {}).get(packet_id)
        if at is not None:
            yield records.Received(session.number, packet_id, at)
