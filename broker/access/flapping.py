"""Flapping: clients that repeatedly lose their connection, and are banned for a while."""

import logging
from typing import Final

from ..loop.clock import Clock
from ..session.client_info import ClientInfo
from .banned import CLIENT_ID, Ban, Banned

logger = logging.getLogger(__name__)

_MAX_CLIENTS: Final = 100_000
_MAX_NAME_CHARACTERS: Final = 16_777_216
"""Maximum total length of the counted identifiers in characters: clients choose them, and each may have 65,535."""


class Flapping:
    """Counts disconnects by client ID, in windows that begin with the first of them.

    At most ``max_clients`` identifiers are counted at the same time; beyond that, the identifier with the oldest window
    is forgotten."""

    def __init__(self, banned: Banned, clock: Clock, max_clients: int = _MAX_CLIENTS) -> None:
        self._banned = banned
        self._clock = clock
        self._max_clients = max_clients
        # client ID -> number of disconnects, beginning of the window; in the order in which the windows began
        self._ends: dict[str, tuple[int, float]] = {}
        self._names = 0

    def client_disconnected(self, client: ClientInfo, reason: str) -> None:
        """Callback of the hook with this name."""
        zone = client.zone
        if not zone.flapping_threshold or reason == "server_shutting_down":
            return
        now = self._clock.now()
        client_id = client.client_id
        count, since = self._ends.get(client_id, (0, now))
        if now - since >= zone.flapping_window:
            self._forget(client_id)
            count, since = 0, now
        count += 1
        if count < zone.flapping_threshold:
            if client_id not in self._ends:
                self._names += len(client_id)
            self._ends[client_id] = (count, since)
            while len(self._ends) > self._max_clients or self._names > _MAX_NAME_CHARACTERS:
                self._forget(next(iter(self._ends)))
            return
        self._forget(client_id)
        today = self._clock.wall()
        told = f"{count} connections ended within {zone.flapping_window:g} s"
        logger.warning(
            "client_flapping client_id=%s peer=%s ended=%s setting=flapping_threshold", client_id, client.peer, count
        )
        self._banned.put(
            Ban(CLIENT_ID, client_id, "flapping detector", f"flapping: {told}", today, today + zone.flapping_ban)
        )

    def _forget(self, client_id: str) -> None:
        if self._ends.pop(client_id, None) is not None:
            self._names -= len(client_id)

    def __len__(self) -> int:
        return len(self._ends)
