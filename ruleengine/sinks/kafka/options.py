"""KafkaRecord and ProduceOptions: what the action gives to the producer for each row. Needs no library of Kafka."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

ALL: Final = -1
RANDOM: Final = "random"
ROUND_ROBIN: Final = "roundrobin"
KEY_DISPATCH: Final = "key_dispatch"


class ProduceOptions(NamedTuple):
    """``acks``: how many replicas have to confirm a record, ``ALL``: all that are in sync. ``refresh``: seconds
    between two questions for the number of partitions."""

    topic: str
    acks: int
    strategy: str
    refresh: float

    def written(self) -> str:
        """Return the options as ``read_options`` reads them."""
        return f"{self.acks} {self.strategy} {self.refresh:g} {self.topic}"


@lru_cache(1000)
def read_options(text: str) -> ProduceOptions:
    """Return what ``written`` has returned."""
    acks, strategy, refresh, topic = text.split(" ")
    return ProduceOptions(topic, int(acks), strategy, float(refresh))


class KafkaRecord(NamedTuple):
    """A row in the buffer, in MessagePack. ``options``: those of its action, as text."""

    options: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


encode_record: Final = msgspec.msgpack.Encoder().encode
