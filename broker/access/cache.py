"""AclCache: a client's latest access decisions."""

from collections.abc import Iterator
from typing import Final

# A topic longer than this is decided anew each time, so that 32 entries never hold 2 MiB for one client.
_MAX_TOPIC: Final = 1024


class AclCache:
    """At most ``size`` decisions of one client, each good for ``ttl`` seconds; the oldest goes first.

    ``generation`` is the one of ``AccessControl`` when the decisions were made: others are void.
    ``hits`` counts the answers given.
    """

    __slots__ = ("_entries", "generation", "hits", "size", "ttl")

    def __init__(self, size: int, ttl: float, generation: int = 0) -> None:
        self.size = size
        self.ttl = ttl
        self.generation = generation
        self.hits = 0
        # Published topics under themselves, subscribed ones behind a U+0000, which no topic contains: one dict
        # keeps the age order of both, and the hot path (publish) builds no key.
        self._entries: dict[str, tuple[bool, float, str]] = {}

    def get(self, action: str, topic: str, now: float) -> bool | None:
        """The decision kept for this, ``None`` where there is none or it is too old."""
        entry = self._entries.get(topic if action == "publish" else "\0" + topic)
        if entry is None or now - entry[1] >= self.ttl:
            return None
        self.hits += 1
        return entry[0]

    def setting(self, action: str, topic: str) -> str:
        """The setting behind the decision that ``get`` has just given."""
        return self._entries[topic if action == "publish" else "\0" + topic][2]

    def put(self, action: str, topic: str, allowed: bool, now: float, setting: str = "") -> None:
        """Keep a decision, made because of ``setting``."""
        if len(topic) > _MAX_TOPIC:
            return
        key = topic if action == "publish" else "\0" + topic
        entries = self._entries
        if key in entries:
            del entries[key]
        entries[key] = (allowed, now, setting)
        if len(entries) > self.size:
            for oldest in entries:
                del entries[oldest]
                break

    def entries(self, now: float) -> Iterator[dict[str, str | int]]:
        """What ``/clients/{clientid}/acl_cache`` lists, oldest first; ``updated_time`` in milliseconds."""
        for key, (allowed, updated, _) in self._entries.items():
            if now - updated >= self.ttl:
                continue
            subscribe = key.startswith("\0")
            yield {
                "access": "subscribe" if subscribe else "publish",
                "topic": key[1:] if subscribe else key,
                "result": "allow" if allowed else "deny",
                "updated_time": int(updated * 1000),
            }

    def clean(self) -> None:
        """Forget every decision."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
