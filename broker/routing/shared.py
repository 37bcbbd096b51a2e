"""SharedGroup: the members of one Shared Subscription, and the selection of the member for the next message."""

import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Protocol

from ..session.subscription import Subscription
from .strategy import STICKY, Strategy

if TYPE_CHECKING:
    from ..mqtt.message import Message
    from ..session.session import Session

SEARCH: Final = 256  # members checked per message to find a connected one
SEARCH_READY: Final = 64  # of these, members checked to find a ready one after a connected one was found


class RemoteMembers(Protocol):
    """The members of a group on other nodes: ``cluster.shared_groups``."""

    def deliver(self, message: "Message", exclude: "Collection[Session]") -> bool:
        """Deliver the message to one member, on this node (except ``exclude``) or on another. Return False if there is
        none."""

    def would_refuse(self, message: "Message") -> bool:
        """Return whether no other node accepts the message at present."""


class SharedGroup:
    """All members of one ShareName and Topic Filter; one of them receives each message.

    Groups with the same name and different filters are different groups.

    ``name`` is the ShareName, ``topic_filter`` the filter that is matched, ``filter`` the whole ``$share/...`` string.

    ``remote``: its members on other nodes, ``None`` while there are none. If there are some, ``connected`` is the
    number of this node's members that were connected a moment ago.

    ``delivered``: messages that all members received so far; ``swept``: how many at the last ``ClientSweep``."""

    __slots__ = (
        "_by_client",
        "_cursor",
        "_delivered",
        "_hint",
        "_members",
        "_places",
        "connected",
        "delivered",
        "filter",
        "name",
        "remote",
        "strategy",
        "swept",
        "topic_filter",
    )

    def __init__(self, name: str, topic_filter: str, filter: str, strategy: int, rng: random.Random) -> None:
        self.name = name
        self.topic_filter = topic_filter
        self.filter = filter
        self.strategy = Strategy(strategy, rng)
        self.remote: RemoteMembers | None = None
        self.connected = 0
        self.delivered = self.swept = 0
        self._members: list[Subscription] = []
        self._places: dict[Session, int] = {}  # session -> its index in _members
        self._delivered: list[int] = []  # number of messages delivered to each of _members
        self._cursor = 0  # where the search for a connected member continues
        self._hint = 0  # where the last one was found
        # By Client Identifier instead of session, so that ended sessions do not stay in memory.
        self._by_client: dict[str, Subscription] | None = {} if strategy == STICKY else None

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"SharedGroup({self.filter!r}, {len(self._members)} members)"

    def members(self) -> list[Subscription]:
        """The subscriptions of all members."""
        return list(self._members)

    def get(self, session: "Session") -> Subscription | None:
        """Return the subscription of this member, ``None`` if it is not one."""
        place = self._places.get(session)
        return None if place is None else self._members[place]

    def add(self, subscription: Subscription) -> Subscription | None:
        """Add a member; return its former subscription, whose place in the round the new one takes."""
        session = subscription.session
        if self._by_client is not None:
            self._by_client[session.client_id] = subscription
        place = self._places.get(session)
        if place is not None:
            old = self._members[place]
            self._members[place] = subscription
            return old
        self._places[session] = self._hint = len(self._members)
        self._members.append(subscription)
        self._delivered.append(0)
        return None

    def remove(self, session: "Session") -> bool:
        """Remove a member; return ``False`` if it was not one."""
        place = self._places.pop(session, None)
        if place is None:
            return False
        if self._by_client is not None:
            known = self._by_client.get(session.client_id)
            if known is not None and known.session is session:
                del self._by_client[session.client_id]
        last = self._members.pop()
        delivered = self._delivered.pop()
        if place < len(self._members):
            self._members[place] = last
            self._delivered[place] = delivered
            self._places[last.session] = place
        return True

    def count_delivery(self, session: "Session") -> None:
        """Count a message that this member received."""
        place = self._places.get(session)
        if place is not None:
            self._delivered[place] += 1
            self.delivered += 1

    def delivered_to(self, session: "Session") -> int:
        """Return how many messages this member received since it became one."""
        place = self._places.get(session)
        return 0 if place is None else self._delivered[place]

    def pick(self, publisher_id: str, topic: str, exclude: "Collection[Session]" = ()) -> Subscription | None:
        """Select the member that receives this message; ``None`` if all are excluded.

        A member that can receive it now is preferred to a connected one, and a connected one to an offline one; in a
        group of more than ``SEARCH`` members, as far as a limited search finds them."""
        count = len(self._members)
        if count == 0:
            return None
        strategy = self.strategy
        if self._by_client is not None:
            favourite = self._by_client.get(strategy.favourite(publisher_id) or "")
            if favourite is not None and favourite.session not in exclude and favourite.session.connected:
                return favourite
        start = strategy.place(publisher_id, topic, count)
        chosen = self._members[start]
        place = start
        takes = chosen.session.connected if strategy.hashed else chosen.session.ready
        if not takes or (exclude and chosen.session in exclude):
            place = self._search(start, exclude)
            if place < 0:
                return None
            chosen = self._members[place]
        if strategy.remembers:
            strategy.gave(publisher_id, place, chosen.session.client_id)
        return chosen

    def _search(self, start: int, exclude: "Collection[Session]") -> int:
        """Return the index of the best member from ``start`` on, -1 if all are excluded.

        The search is limited, so that a large group with few connected members costs a message no more than a small
        one. If no nearby member is connected, the one that was found last is tried, and each message moves the search
        forward."""
        count = len(self._members)
        connected = -1
        offline = -1
        left = SEARCH
        place = start
        for _ in range(min(count, SEARCH)):
            session = self._members[place].session
            if not exclude or session not in exclude:
                if session.ready:
                    self._hint = place
                    return place
                if connected < 0:
                    if session.connected:
                        connected = place
                        left = min(left, SEARCH_READY)
                    elif offline < 0:
                        offline = place
            left -= 1
            if left == 0:
                break
            place = place + 1 if place + 1 < count else 0
        if connected >= 0:
            self._hint = connected
            return connected
        if count <= SEARCH:
            return offline
        hint = self._hint
        if hint < count and self._members[hint].session.connected and self._members[hint].session not in exclude:
            return hint
        place = self._cursor
        for _ in range(SEARCH):
            place = place + 1 if place + 1 < count else 0
            session = self._members[place].session
            if session.connected and session not in exclude:
                self._hint = self._cursor = place
                return place
            if offline < 0 and session not in exclude:
                offline = place
        self._cursor = place
        if offline >= 0:
            return offline
        for place in range(count):  # more than SEARCH are excluded: their number limits the loop
            if self._members[place].session not in exclude:
                return place
        return -1
