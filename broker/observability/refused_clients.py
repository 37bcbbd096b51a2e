"""RefusedClients: the clients that were refused most recently at CONNECT, for an operator who does not know their
names.

A device that retries every ten seconds is one row with a count, and displaces no other row. Memory is limited: the
number of rows is fixed, and long names are cut.
"""

from collections import OrderedDict
from typing import Final

MAX_ROWS: Final = 256
MAX_ROWS_OF_HOST: Final = 64
"""Maximum rows for one address, so that a client that tries many Client Identifiers does not replace all other rows."""
MAX_NAME: Final = 256
"""Maximum length of a stored Client Identifier or username in characters."""
_MAX_DETAIL: Final = 128


class RefusedClient:
    """A refused client. ``at`` and ``last_at``: Unix seconds of the first and the latest of ``count`` equal
    refusals. ``is_cut``: the client ID was longer. ``username``: None if the client gave none, or if its CONNECT was
    not read."""

    __slots__ = (
        "at",
        "client_id",
        "count",
        "detail",
        "is_cut",
        "last_at",
        "listener",
        "peer_host",
        "reason",
        "setting",
        "username",
    )

    def __init__(
        self,
        at: float,
        client_id: str,
        username: str | None,
        peer_host: str,
        listener: str,
        reason: str,
        setting: str,
        detail: str,
    ) -> None:
        self.at = self.last_at = at
        self.client_id = client_id[:MAX_NAME]
        self.is_cut = len(client_id) > MAX_NAME
        self.username = username if username is None else username[:MAX_NAME]
        self.peer_host = peer_host
        self.listener = listener
        self.reason = reason
        self.setting = setting
        self.detail = detail[:_MAX_DETAIL]
        self.count = 1


class RefusedClients:
    """The most recent refusals by client ID, username, address, reason and setting."""

    __slots__ = ("_of_host", "_rows")

    def __init__(self) -> None:
        # The least recently refused one first.
        self._rows: OrderedDict[tuple[str, str | None, str, str, str], RefusedClient] = OrderedDict()
        self._of_host: dict[str, int] = {}

    def add(self, refused: RefusedClient) -> None:
        """Add a refusal. If an equal refusal exists, only its count grows."""
        key = (refused.client_id, refused.username, refused.peer_host, refused.reason, refused.setting)
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
            row.count += 1
            row.last_at = refused.at
            row.listener = refused.listener
            row.detail = refused.detail
            return
        if self._of_host.get(refused.peer_host, 0) >= MAX_ROWS_OF_HOST:
            self._forget(next(each for each in self._rows if each[2] == refused.peer_host))
        elif len(self._rows) >= MAX_ROWS:
            self._forget(next(iter(self._rows)))
        self._of_host[refused.peer_host] = self._of_host.get(refused.peer_host, 0) + 1
        self._rows[key] = refused

    def _forget(self, key: tuple[str, str | None, str, str, str]) -> None:
        del self._rows[key]
        host = key[2]
        left = self._of_host.pop(host) - 1
        if left:
            self._of_host[host] = left

    def latest(self) -> list[RefusedClient]:
        """Return the refusals, latest first."""
        return list(reversed(self._rows.values()))

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"RefusedClients({len(self._rows)} rows)"
