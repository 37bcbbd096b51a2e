"""ClientEvents: the latest events of each client, each with its reason and setting, for ``explain``.

The log is throttled; here all events are kept, in limited memory: the latest events of a client, and the clients with
the latest events.
"""

from collections import OrderedDict
from typing import Final

MAX_CLIENTS: Final = 4096
MAX_NAMES: Final = 4_194_304
"""Maximum total length of Client Identifiers in characters: unauthenticated clients choose them, and each may have
65,535."""
MAX_EVENTS: Final = 16
_MAX_TEXT: Final = 128
_CLIENT_BYTES: Final = 1_000
"""Approximate memory of a client with a few events, without its name."""


class ClientEvent:
    """An event. ``at`` and ``last_at``: Unix seconds of the first and the latest of ``count`` equal events in a row.
    ``before``: the previous event of the client."""

    __slots__ = ("at", "before", "count", "detail", "event", "last_at", "reason", "setting", "topic")

    def __init__(
        self,
        at: float,
        event: str,
        reason: str,
        setting: str,
        topic: str,
        detail: str,
        before: "ClientEvent | None" = None,
    ) -> None:
        self.at = self.last_at = at
        self.event = event
        self.reason = reason
        self.setting = setting
        self.topic = topic
        self.detail = detail
        self.count = 1
        self.before = before


class ClientEvents:
    """The latest events by client ID. The client without an event for the longest time comes first."""

    __slots__ = ("_clients", "_names")

    def __init__(self) -> None:
        self._clients: OrderedDict[str, ClientEvent] = OrderedDict()
        self._names = 0

    def add(
        self, client_id: str, at: float, event: str, reason: str, setting: str, topic: str = "", detail: str = ""
    ) -> None:
        """Add an event; if it equals the latest one, only the count of that one grows."""
        last = self._clients.get(client_id)
        if last is None:
            if not client_id:
                return
            self._names += len(client_id)
            while self._clients and (len(self._clients) >= MAX_CLIENTS or self._names > MAX_NAMES):
                self._names -= len(self._clients.popitem(last=False)[0])
        else:
            self._clients.move_to_end(client_id)
            if last.event == event and last.reason == reason and last.setting == setting:
                last.count += 1
                last.last_at = at
                last.topic = topic[:_MAX_TEXT]
                return
            _keep(last, MAX_EVENTS - 1)
        self._clients[client_id] = ClientEvent(at, event, reason, setting, topic[:_MAX_TEXT], detail[:_MAX_TEXT], last)

    def of(self, client_id: str) -> list[ClientEvent]:
        """Return the events of a client, latest first."""
        found: list[ClientEvent] = []
        event = self._clients.get(client_id)
        while event is not None:
            found.append(event)
            event = event.before
        return found

    @property
    def size(self) -> int:
        """Return approximately how many bytes of memory the events use."""
        return self._names + _CLIENT_BYTES * len(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return f"ClientEvents({len(self._clients)} clients)"


def _keep(last: ClientEvent, count: int) -> None:
    """Remove all events before the last ``count``."""
    for _ in range(count - 1):
        if last.before is None:
            return
        last = last.before
    last.before = None
