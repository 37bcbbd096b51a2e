"""RetainedValues: encodes and decodes retained messages for bucket ``retained``.

Everything in an entry that depends on a node's clock is sent as a date, and is converted here: ``Message.timestamp`` is
by ``Clock.now`` of this node.
"""

from typing import Final

import msgspec

from ...config import ZoneSettings
from ...mqtt.message import Message
from ...mqtt.properties import memory_size
from ...persistence.log import records
from ...persistence.record_mapping import retained_record
from ...session.client_info import ClientInfo
from ...session.limits import Limits
from ...store.restored import restored_client, restored_message
from ..context import ClusterContext
from ..nats.interface import BucketEntry, fits
from ..wire import MALFORMED, Header, thing_key, valid_body, valid_time
from .bucket_life import RECORD, Version
from .retained_order import EntryOrigin
from .settling import BEFORE, Moment
from .values import Deletion, RetainedValue

_BESIDE: Final = 2048
"""Upper limit in bytes for everything in a message except its topic, payload, properties and names."""
_PUBLISHERS: Final = 1000
"""Maximum number of publishers that are remembered, so that their messages share one object."""


class RetainedValues:
    """Converts between this node's messages and the entries of the bucket."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._broker = context.broker
        self._clock = context.clock
        self._wire = context.wire
        self._values = context.wire.reader(RetainedValue)
        self._deletion = context.wire.reader(Deletion)
        zones = context.node_settings.listener_zones
        self._zone = zones[0] if zones else ZoneSettings()
        self._publishers: dict[tuple[str, str | None, bool, str], ClientInfo] = {}

    # ------------------------------------------------------------------- written

    def encoded(self, message: Message, version: Version | None, at: float = 0.0, moment: Moment = BEFORE) -> bytes:
        """Return the value of a message. The other arguments are the fields of ``RetainedValue``."""
        if not message.id:
            message.id = self._context.nonce().upper()
        record = retained_record(message, self._clock.skew)
        return self._wire.write(RetainedValue(record.body, record.mountpoint, version, at, moment))

    def deletion(self, at: float, until: dict[str, Moment]) -> bytes:
        """Return the value of a deletion."""
        return self._wire.write(Deletion(at, until))

    def fits(self, message: Message, most: int) -> bool:
        """Return whether the encoded value of a message has at most ``size`` bytes."""
        size = message.payload_size + 4 * len(message.topic) + _BESIDE
        if message.has_properties:
            size += memory_size(message.properties)
        publisher = message.publisher
        if publisher is not None:
            size += 4 * (len(publisher.client_id) + len(publisher.username or "") + len(publisher.mountpoint))
        if not most or size <= most:
            return True
        return fits(self.encoded(message, None, self._clock.wall()), most)

    # ---------------------------------------------------------------------- read

    def value(self, data: bytes) -> tuple[Header, RetainedValue] | None:
        """Decode the header and the value, without checking their contents."""
        return self._values.value(data)

    def read(self, entry: BucketEntry, topic: str | None) -> tuple[str, RetainedValue] | None:
        """Return the node that wrote an entry, and its value, or ``None`` if the entry has no valid one. ``topic`` is
        the topic of an earlier valid entry with this key, if there was one."""
        read = None if entry.value is None or entry.key == RECORD else self._values.value(entry.value)
        if read is None:
            return None
        header, value = read
        found = value.body.topic
        valid = valid_body(value.body) and valid_time(value.at)
        if topic != found and (thing_key(found) != entry.key or found.startswith("$SYS")):
            valid = False
        if not valid:
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None
        return header.node, value

    def origin(self, entry: BucketEntry, topic: str | None) -> EntryOrigin:
        """Return the origin of an entry. If anything other than a node has deleted the key, nothing is known.
        ``topic`` is that of ``read``."""
        if entry.value is None:
            deleted = self._deletion.value(entry.about) if entry.about else None
            if deleted is None or not valid_time(deleted[1].at):
                return EntryOrigin(0.0, "")
            return EntryOrigin(deleted[1].at, deleted[0].node, until=deleted[1].until)
        read = self._values.value(entry.value)
        if read is None or self.read(entry, topic) is None:
            return EntryOrigin(0.0, "")
        header, value = read
        return EntryOrigin(value.at or value.body.timestamp, header.node, header.uid, value.moment)

    def message(self, value: RetainedValue) -> Message:
        """Return the message of a value."""
        body = value.body
        publisher = None
        if body.client_id is not None:
            publisher = self._publisher(body.client_id, body.username, body.proved, value.mountpoint)
        known = self._broker.retained.get(body.topic)
        topic = body.topic if known is None else known.topic
        skew = self._clock.skew
        if skew:
            body = msgspec.structs.replace(body, timestamp=body.timestamp - skew)
        return restored_message(body, topic, publisher, self._clock.now())

    def _publisher(self, client_id: str, username: str | None, proved: bool, mountpoint: str) -> ClientInfo:
        """Return the publisher of a message from the bucket. Messages of the same publisher share one object."""
        known = self._publishers.get((client_id, username, proved, mountpoint))
        if known is None:
            if len(self._publishers) >= _PUBLISHERS:
                self._publishers.clear()
            zone = self._zone
            known = restored_client(self._broker, lambda _: (zone, Limits()), client_id, username, proved)
            known.mountpoint = mountpoint
            self._publishers[client_id, username, proved, mountpoint] = known
        return known


def is_same(message: Message, body: records.StoredBody) -> bool:
    """Return whether this node's message is the one in this value."""
    return message.id == body.id and message.payload == body.payload and message.qos == body.qos
