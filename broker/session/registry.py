"""Client Identifier -> Session: at most one session for each identifier [MQTT-3.1.4-3]."""

from collections.abc import Iterator, KeysView
from itertools import chain
from sys import getsizeof
from typing import Final

from .session import Session

_SHORT_NAMES: Final = 400
"""Bytes of a session's names that are included in the fixed size of a session."""


class SessionRegistry:
    """All sessions of the node, connected or not.

    ``internal``: those whose client is a part of the node, such as its link to another one; their Client Identifiers
    begin with U+0000, which no string of MQTT has. No method except ``all`` counts or finds them. ``names``: bytes of
    long Client Identifiers and usernames.
    """

    __slots__ = ("_sessions", "internal", "names")

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self.internal: dict[str, Session] = {}
        self.names = 0

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def add(self, session: Session) -> None:
        """:raises ValueError: a session with this Client Identifier already exists."""
        sessions = self._of(session)
        if session.client_id in sessions:
            raise ValueError(f"a session of {session.client_id!r} exists")
        sessions[session.client_id] = session
        self.count_names(session)

    def count_names(self, session: Session) -> None:
        """Update the size of the names for a session with another client."""
        size = getsizeof(session.client_id) + getsizeof(session.client.username) + getsizeof(session.owner)
        size = max(0, size - _SHORT_NAMES)
        self.names += size - session.names_size
        session.names_size = size

    def remove(self, session: Session) -> bool:
        """Remove a session. Return False if another session has replaced it, or it does not exist."""
        sessions = self._of(session)
        if sessions.get(session.client_id) is not session:
            return False
        del sessions[session.client_id]
        self.names -= session.names_size
        session.names_size = 0
        return True

    def _of(self, session: Session) -> dict[str, Session]:
        return self.internal if session.internal else self._sessions

    def all(self) -> Iterator[Session]:
        """Iterate over all sessions, including internal ones. Copy the result if sessions may be created or ended
        during the iteration."""
        return chain(self._sessions.values(), self.internal.values())

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Iterate in the order of creation. Copy the result if sessions may be created or ended during the
        iteration."""
        return iter(self._sessions.values())

    def client_ids(self) -> KeysView[str]:
        """Return the identifiers of these sessions, in the same order, as a live view."""
        return self._sessions.keys()
