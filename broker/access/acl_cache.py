"""AclCache: the latest access decisions for a client."""

from collections.abc import Iterator
from typing import Final

from .decision import Decision

# Topics longer than this are not cached, so that 32 entries never use 2 MiB for one client.
_MAX_TOPIC: Final = 1024


class AclCache:
    """At most ``size`` decisions for one client, each valid for ``ttl`` seconds; the oldest is removed first.

    ``generation`` is that of ``Authorization`` at the time of the decisions: others are invalid. ``hits`` counts the
    decisions that were found."""

    __slots__ = ("_entries", "generation", "hits", "size", "ttl")

    def __init__(self, size: int, ttl: float, generation: int = 0) -> None:
        self.size = size
        self.ttl = ttl
        self.generation = generation
        self.hits = 0
        # Published topics as they are, subscribed ones after a U+0000, which no topic contains: so one dict keeps the
        # age order of both, and the publish path builds no key.
        self._entries: dict[str, tuple[Decision, float]] = {}

    def get(self, action: str, topic: str, now: float) -> Decision | None:
        """Return the cached decision, ``None`` if there is none or it is too old."""
        decision = self.look(action, topic, now)
        if decision is not None:
            self.hits += 1
        return decision

    def look(self, action: str, topic: str, now: float) -> Decision | None:
        """As ``get``, without counting."""
        entry = self._entries.get(topic if action == "publish" else "\0" + topic)
        return None if entry is None or now - entry[1] >= self.ttl else entry[0]

    def put(self, action: str, topic: str, decision: Decision, now: float) -> None:
        """Store a decision."""
        if len(topic) > _MAX_TOPIC:
            return
        key = topic if action == "publish" else "\0" + topic
        entries = self._entries
        if key in entries:
            del entries[key]
        entries[key] = (decision.as_cached(), now)
        if len(entries) > self.size:
            for oldest in entries:
                del entries[oldest]
                break

    def entries(self, now: float) -> Iterator[dict[str, str | int]]:
        """Return the entries for ``/clients/{clientid}/acl_cache``, oldest first; ``updated_time`` in milliseconds."""
        for key, (decision, updated) in self._entries.items():
            if now - updated >= self.ttl:
                continue
            subscribe = key.startswith("\0")
            yield {
                "access": "subscribe" if subscribe else "publish",
                "topic": key[1:] if subscribe else key,
                "result": "allow" if decision.allowed else "deny",
                "updated_time": int(updated * 1000),
            }

    def clean(self) -> None:
        """Remove every decision."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
