"""Sessions: the clients of a node as aMQTT's plugins know them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from amqtt.session import Session

from .message import Client

_MAX_ASKED: Final = 1024
"""The most accepted clients without a connection yet whose ``Session``, known to the plugins, is kept."""

_Key = tuple[str, str, int]


def _key(client: Client) -> _Key:
    return client.listener, client.peer_host, client.peer_port


class Sessions:
    """The ``Session`` objects for plugins: one for each client, from authentication to the end of its session."""

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self._asked: OrderedDict[_Key, Session] = OrderedDict()
        self._connected: dict[_Key, Session] = {}

    def make(self, client: Client, password: str | None = None) -> Session:
        """Return a new ``Session`` for a client that requests access."""
        made = Session()
        made.client_id = client.client_id
        made.username = client.username
        made.password = password
        made.remote_address, made.remote_port = client.peer_host, client.peer_port
        made.clean_session = client.clean_start
        made.keep_alive = client.keep_alive
        before = self.by_id.get(client.client_id)
        if before is not None and not client.clean_start:
            made.attributes = dict(before.attributes)
            made.parent = 1
        return made

    def let_in(self, client: Client, session: Session) -> None:
        self._asked[_key(client)] = session
        if len(self._asked) > _MAX_ASKED:
            self._asked.popitem(last=False)

    def of(self, client: Client) -> Session:
        key = _key(client)
        found = self._connected.get(key) or self._asked.get(key) or self.by_id.get(client.client_id)
        return self.make(client) if found is None else found

    def connected(self, client: Client) -> Session:
        key = _key(client)
        session = self._asked.pop(key, None)
        if session is None:
            session = self.make(client)
        session.client_id = client.client_id
        session.transitions.connect()
        self._connected[key] = self.by_id[client.client_id] = session
        return session

    def disconnected(self, client: Client, stays: bool) -> Session:
        """Mark a ``Session`` as disconnected. ``stays``: the broker still has a session with this client ID."""
        session = self._connected.pop(_key(client), None)
        if session is None:
            session = self.make(client)
        session.transitions.disconnect()
        if not stays and self.by_id.get(client.client_id) is session:
            del self.by_id[client.client_id]
        return session

    def ended(self, client_id: str) -> None:
        """Forget the ``Session``, unless it is connected: the broker no longer has a session with this client ID."""
        session = self.by_id.get(client_id)
        if session is not None and session.transitions.state != "connected":
            del self.by_id[client_id]

    def clear(self) -> None:
        self.by_id.clear()
        self._asked.clear()
        self._connected.clear()
