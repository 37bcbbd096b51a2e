"""The Topic Names of inbound PUBLISHes. Each name is checked once."""

from typing import Final

from .data_types import utf8
from .errors import MalformedPacket
from .topics import has_wildcard

_MAX_CACHED_LENGTH: Final = 256


class TopicNames:
    """A cache of limited size for valid Topic Names, by their bytes. All connections of a node share it.

    It saves the UTF-8 and wildcard checks, and returns the same ``str`` for equal topics. Topics above 256 bytes are
    checked each time. ``strict`` refuses control characters and non-characters in every string of every packet."""

    __slots__ = ("cache", "capacity", "strict")

    def __init__(self, strict: bool = False, capacity: int = 65536) -> None:
        self.strict = strict
        self.capacity = capacity
        self.cache: dict[bytes, str] = {}

    def resolve(self, raw: bytes) -> str:
        """Return the Topic Name with the bytes ``raw``, empty if there are none (allowed only with a Topic Alias).
        Raises ``MalformedPacket``."""
        topic = self.cache.get(raw)
        if topic is not None:
            return topic
        # [MQTT-3.3.2-1] [MQTT-4.7.3-2]
        topic = utf8(raw, self.strict)
        if has_wildcard(topic):
            # [MQTT-3.3.2-2] [MQTT-4.7.0-1]; the standard also allows 0x90, but test suites expect 0x81.
            raise MalformedPacket("wildcard in a Topic Name")
        if raw and len(raw) <= _MAX_CACHED_LENGTH and self.capacity > 0:
            cache = self.cache
            if len(cache) >= self.capacity:
                # Remove the older half, in place: decoders keep references to this dict.
                for old in list(cache)[: (len(cache) + 1) // 2]:
                    del cache[old]
            cache[raw] = topic
        return topic
