"""Client Identifier -> Session: at most one of each at a time [MQTT-3.1.4-3]."""

from collections.abc import Iterator

from .session import Session


class SessionRegistry:
    """All sessions of the node, connected or not."""

    __slots__ = ("_sessions",)

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def add(self, session: Session) -> None:
        """:raises ValueError: a session of this Client Identifier is there already."""
        if session.client_id in self._sessions:
            raise ValueError(f"a session of {session.client_id!r} exists")
        self._sessions[session.client_id] = session

    def remove(self, session: Session) -> bool:
        """Forget it. False where another session has taken its place, or it was gone."""
        if self._sessions.get(session.client_id) is not session:
            return False
        del self._sessions[session.client_id]
        return True

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """In order of creation. Take a copy before anything is created or ended meanwhile."""
        return iter(self._sessions.values())
