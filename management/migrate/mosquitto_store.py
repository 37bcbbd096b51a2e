"""Write the store of a node from a mosquitto.db: retained messages, sessions, queues, messages in flight."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.topics import EXCLUSIVE_PREFIX, QUEUE_PREFIX, parse_filter
from taipan.broker.persistence.log import batch, records
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.session.client_info import USERNAME_OWNER
from taipan.broker.store.store import FILE

from . import mosquitto_db as db
from .report import MigrationReport

_RECORDS: Final = 2000
_OTHER_MEANING: Final = (EXCLUSIVE_PREFIX, QUEUE_PREFIX)
_SENT: Final = (db.PUBLISH_QOS1, db.WAIT_FOR_PUBACK, db.PUBLISH_QOS2, db.WAIT_FOR_PUBREC)
_RELEASED: Final = (db.RESEND_PUBREL, db.WAIT_FOR_PUBCOMP)
_MAX_TOLD: Final = 20
"""Number of lines of one kind in the report; further ones are only counted."""


class MosquittoListener(msgspec.Struct, frozen=True):
    """Properties that a session inherits from the listener of its client. ``proves_names``: the listener
    authenticates every username."""

    label: str
    mountpoint: str = ""
    proves_names: bool = False


class StoreCounts(msgspec.Struct):
    retained: int = 0
    sessions: int = 0
    subscriptions: int = 0
    queued: int = 0
    in_flight: int = 0


def write_store(directory: Path, written: Iterator[records.Record]) -> None:
    """Create a store with these records, in this order."""
    log = SqliteLog(directory / FILE)
    log.open()
    try:
        sequence = 0
        encoded = (records.encode(each) for each in written)
        while some := list(islice(encoded, _RECORDS)):
            sequence += 1
            log.append(sequence, batch.encode(some))
    finally:
        log.checkpoint_and_close()


class MosquittoRecords:
    """Converts the contents of the file to records. ``counts`` is correct after all records have been read."""

    def __init__(
        self,
        found: db.MosquittoDb,
        file: str,
        report: MigrationReport,
        now: float,
        saved_at: float,
        listener_at: Callable[[int], MosquittoListener],
        longest_session: int,
    ) -> None:
        """``saved_at``: when the file was written. ``listener_at``: data of a listener by its port, 0 for an unknown
        port. ``longest_session``: seconds that a session of 3.x may wait, 0xFFFFFFFF for no limit."""
        self.counts = StoreCounts()
        self._db = found
        self._file = file
        self._report = report
        self._now = now
        self._saved_at = min(saved_at, now)
        self._listener_at = listener_at
        self._longest_session = longest_session
        self._told: dict[str, int] = {}
        self._numbers = {client_id: number for number, client_id in enumerate(found.clients, 1)}

    def __iter__(self) -> Iterator[records.Record]:
        for damage in self._db.damage:
            self._left_out(damage.offset, damage.what, damage.why)
        yield from self._sessions()
        yield from self._deliveries()
        yield from self._retained()
        self._tell_the_rest()

    # ---------------------------------------------------------------- sessions

    def _sessions(self) -> Iterator[records.Record]:
        for client in self._db.clients.values():
            facts = self._listener_at(client.port)
            interval, left_at = self._expiry(client)
            owner = USERNAME_OWNER + client.username if client.username and facts.proves_names else ""
            yield records.SessionStored(
                self._numbers[client.client_id],
                client.client_id,
                client.username,
                c.V4 if client.interval == db.NEVER else c.V5,
                "",
                0,
                "external",
                facts.label,
                facts.mountpoint,
                left_at,
                left_at,
                left_at,
                interval,
                0,
                False,
                False,
                client.last_packet_id,
                owner,
            )
            self.counts.sessions += 1
        for each in self._db.subscriptions:
            client = self._db.clients[each.client_id]
            if each.filter.startswith(_OTHER_MEANING):
                why = "an ordinary filter in Mosquitto, which would be an exclusive or a shared subscription here"
                self._left_out(each.place, f"subscription {each.filter}", why)
                continue
            group, inner = parse_filter(each.filter)
            mountpoint = self._listener_at(client.port).mountpoint
            if mountpoint and not inner.startswith(mountpoint):
                self._left_out(each.place, f"subscription {each.filter}", f"it is outside the mount point {mountpoint}")
                continue
            yield records.SubscriptionStored(
                self._numbers[each.client_id],
                each.filter,
                inner,
                group,
                each.qos,
                each.no_local,
                each.retain_as_published,
                each.retain_handling,
                (each.identifier,) if each.identifier else (),
            )
            self.counts.subscriptions += 1

    def _expiry(self, client: db.DbClient) -> tuple[int, float]:
        """Return how many seconds the session outlives its client, and when the client disconnected."""
        interval = client.interval if client.interval != db.NEVER else self._longest_session
        left_at = self._saved_at
        if client.expires and interval != db.NEVER:
            left_at = min(client.expires - interval, self._now)
            if client.expires <= self._now:
                self._left_out(client.place, f"session of {client.client_id}", "it expired before the migration")
        return interval, max(left_at, 1.0)

    # ----------------------------------------------------------------- messages

    def _deliveries(self) -> Iterator[records.Record]:
        """Yield messages in the order of publication, each with its holders; then the messages in flight from clients.

        A store has one order of messages for all sessions. If a session needs a message in another order, the message
        is stored a second time, after the others."""
        numbers = {store_id: number for number, store_id in enumerate(sorted(self._db.messages), 1)}
        holders: dict[int, list[records.Holder]] = {}
        copies: list[tuple[int, records.Holder]] = []
        latest: dict[str, int] = {}
        others: list[records.Record] = []
        expired = self._expired()
        for each in self._db.deliveries:
            session = self._numbers[each.client_id]
            if each.direction == db.IN:
                if each.state in (db.WAIT_FOR_PUBREL, db.SEND_PUBREC, db.RESEND_PUBCOMP):
                    others += self._received(each, session, 1 + len(others))
                    self.counts.in_flight += 1
                continue
            if each.state in _RELEASED:
                others.append(records.Released(session, each.packet_id, 0, ""))
                self.counts.in_flight += 1
                continue
            if each.store_id in expired:
                continue
            packet_id = each.packet_id if each.state in _SENT else 0
            holder = (session, "", each.qos, each.retain, each.identifiers, packet_id)
            number = numbers[each.store_id]
            if number > latest.get(each.client_id, 0):
                latest[each.client_id] = number
                holders.setdefault(each.store_id, []).append(holder)
            else:
                latest[each.client_id] = len(numbers) + 1
                copies.append((each.store_id, holder))
            if packet_id:
                self.counts.in_flight += 1
            else:
                self.counts.queued += 1
        for store_id in sorted(holders):
            yield records.MessageStored(numbers[store_id], self._body(store_id), holders[store_id])
        for number, (store_id, holder) in enumerate(copies, len(numbers) + 1):
            yield records.MessageStored(number, self._body(store_id), [holder])
        yield from others

    def _expired(self) -> set[int]:
        """Report the messages that have expired, and return their ids."""
        found = {each.store_id for each in self._db.messages.values() if 0 < each.expires <= self._now}
        if found:
            self._report.left_out(self._file, f"{len(found)} messages", "their expiry interval has passed")
        return found

    def _received(self, each: db.DbDelivery, session: int, number: int) -> list[records.Record]:
        """Convert a QoS 2 message from a client, which Mosquitto kept until PUBREL. It is published now, and its
        identifier is stored until PUBREL."""
        made: list[records.Record] = [records.Received(session, each.packet_id, self._now)]
        if each.state != db.RESEND_PUBCOMP:
            made.append(records.DelayedStored(number, self._body(each.store_id), self._now))
        return made

    def _retained(self) -> Iterator[records.Record]:
        expired = {each.store_id for each in self._db.messages.values() if 0 < each.expires <= self._now}
        for place, store_id in self._db.retained:
            message = self._db.messages[store_id]
            if store_id in expired:
                continue
            if message.topic.startswith("$SYS"):
                continue  # messages of the node itself are created by the node
            if not message.payload:
                self._left_out(place, f"retained message {message.topic}", "it is empty")
                continue
            body = msgspec.structs.replace(self._body(store_id), retain=True)
            yield records.RetainedStored(body, self._listener_at(message.source_port).mountpoint)
            self.counts.retained += 1

    def _body(self, store_id: int) -> records.StoredBody:
        message = self._db.messages[store_id]
        properties: dict[int, Any] = dict(message.properties)
        if message.expires:
            properties[c.MESSAGE_EXPIRY_INTERVAL] = max(1, int(message.expires - self._now))
        return records.StoredBody(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            properties,
            self._now,
            message.source or None,
            message.username or None,
            os.urandom(16).hex().upper(),
            bool(message.username) and self._listener_at(message.source_port).proves_names,
        )

    # ------------------------------------------------------------------- report

    def _left_out(self, offset: int, what: str, why: str) -> None:
        kind = f"{what.split()[0]}: {why}"
        self._told[kind] = self._told.get(kind, 0) + 1
        if sum(self._told.values()) <= _MAX_TOLD:
            self._report.left_out(f"{self._file}:byte {offset}", what, why)

    def _tell_the_rest(self) -> None:
        more = sum(self._told.values()) - _MAX_TOLD
        if more > 0:
            kinds = sorted(self._told.items(), key=lambda each: -each[1])[:5]
            words = "; ".join(f"{count} times {kind}" for kind, count in kinds)
            self._report.left_out(self._file, f"{more} more", f"all together {words}")
