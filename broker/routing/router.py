"""Router: Topic Name -> subscriptions that receive it."""

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ..mqtt.topics import has_wildcard
from ..session.subscription import Subscription, merge
from .filter_index import FilterIndex
from .shared import SharedGroup
from .strategy import STRATEGIES

if TYPE_CHECKING:
    from ..session.session import Session

MAX_CACHED_TOPIC: Final = 256  # characters; longer topics are not cached
TARGETS_PER_TOPIC: Final = 16  # average number of targets and groups per cached topic that the cache may hold
# 1 in N: when there are more topics than the cache holds, it adds one of N new ones, at random. Frequent topics are
# soon cached, and rare ones mostly cost nothing and remove no other topic.
ADMISSION_ODDS: Final = 8

_EVEN_BITS: Final = int("55" * 64, 16)  # of masks of remote nodes: 256 nodes

_Subscribers: TypeAlias = "Subscription | dict[Session, Subscription]"
_Groups: TypeAlias = SharedGroup | dict[str, SharedGroup]


class Route:
    """The receivers of a topic. Immutable, so that subscriptions may change during a delivery.

    ``targets`` has at most one Subscription per session; for each of ``groups``, one member has to be selected.
    ``remote``: those of the sessions whose clients are other nodes. ``no_local``: one of the targets has No Local."""

    __slots__ = ("groups", "no_local", "remote", "targets")

    def __init__(
        self,
        targets: tuple[Subscription, ...],
        groups: tuple[SharedGroup, ...],
        remote: tuple[Subscription, ...] = (),
    ) -> None:
        self.targets = targets
        self.groups = groups
        self.remote = remote
        self.no_local = False
        for subscription in targets:
            if subscription.no_local:
                self.no_local = True

    def __repr__(self) -> str:
        return f"Route({len(self.targets)} targets, {len(self.groups)} groups)"


EMPTY: Final = Route((), ())
"""The route of every topic without a subscription."""


class RouteWatcher(Protocol):
    """Receives changes of the filters that have subscribers on this node (``cluster.routes``)."""

    def durable(self, filter: str) -> None:
        """A durable session has subscribed to this filter; it need not be the first one."""

    def added(self, topic_filter: str) -> None:
        """The filter has its first subscriber, not counting Shared Subscriptions."""

    def removed(self, topic_filter: str) -> None:
        """The filter's last subscriber was removed."""

    def group_changed(self, filter: str) -> None:
        """The members of a Shared Subscription (``$share/...``) have changed; there may be none."""


class Router:
    """All subscriptions of the node, by Topic Filter.

    ``strategy`` (of ``STRATEGIES``) and ``rng`` apply to every Shared Subscription; ``cache_size`` is the number of
    topics whose routes are cached, 0 for none. ``recent`` contains the routes of recent topics: publishers check it
    first, and call ``match`` for any other topic.

    ``judge`` is called for each ``judged`` subscription and returns whether it receives a topic; the result is cached
    with the route, until ``forget_judgements``. It is ``None`` while there are no such subscriptions.

    ``remote``, ``None`` without a cluster: filter -> the nodes that have subscribers of it, as a mask of bits; bit n
    means ``remote_targets[n]``, a Subscription of the session whose client is that node. Bits are in pairs: the odd one
    replaces the even one before it if that node has durable sessions with the filter. ``watcher`` receives changes."""

    __slots__ = (
        "_capacity",
        "_groups",
        "_groups_by_filter",
        "_heavy",
        "_older",
        "_rng",
        "_strategy",
        "_subscribers",
        "_targets_of_mask",
        "_weight",
        "filter_bytes",
        "judge",
        "recent",
        "remote",
        "remote_targets",
        "shared_count",
        "subscription_count",
        "watcher",
    )

    def __init__(self, strategy: str = "random", rng: random.Random | None = None, cache_size: int = 65536) -> None:
        self._strategy = STRATEGIES[strategy]
        self._rng = random.Random() if rng is None else rng
        # A Subscription if a filter has only one, otherwise a dict by session: most filters have one.
        self._subscribers: FilterIndex[_Subscribers] = FilterIndex()
        self._groups_by_filter: FilterIndex[_Groups] = FilterIndex()
        self._groups: dict[str, SharedGroup] = {}  # by the whole "$share/..." filter
        # Two halves: when the recent one is full, it becomes the older one, and a route that is used again moves back.
        # So old topics are removed together, frequent ones stay, and a hit is one lookup.
        self.recent: dict[str, Route] = {}
        self._older: dict[str, Route] = {}
        self._capacity = (cache_size + 1) // 2
        self._heavy = self._capacity * TARGETS_PER_TOPIC
        self._weight = 0  # targets and groups in all of recent
        self.subscription_count = 0  # including shared ones
        self.filter_bytes = 0  # approximate number of characters in the filters of all subscriptions
        self.shared_count = 0
        self.watcher: RouteWatcher | None = None
        self.judge: Callable[[Subscription, str], bool] | None = None
        self.remote: FilterIndex[int] | None = None
        self.remote_targets: list[Subscription | None] = []
        self._targets_of_mask: dict[int, tuple[Subscription, ...]] = {}

    # Changes

    def subscribe(self, subscription: Subscription) -> Subscription | None:
        """Add a subscription; return the one of the same session and filter that it replaced [MQTT-3.8.4-3]."""
        session = subscription.session
        topic_filter = subscription.topic_filter
        old: Subscription | None = None
        if subscription.group is not None:
            group = self.group_of(subscription.filter, subscription.group, topic_filter)
            old = group.add(subscription)
            if old is None:
                self.shared_count += 1
                self.subscription_count += 1
                self.filter_bytes += len(subscription.filter)
            if self.watcher is not None:
                self.watcher.group_changed(subscription.filter)
            return old
        held = self._subscribers.get(topic_filter)
        if held is None:
            self._subscribers.put(topic_filter, subscription)
            if self.watcher is not None:
                self.watcher.added(topic_filter)
        elif isinstance(held, dict):
            old = held.get(session)
            held[session] = subscription
        elif held.session is session:
            old = held
            self._subscribers.put(topic_filter, subscription)
        else:
            self._subscribers.put(topic_filter, {held.session: held, session: subscription})
        if old is None:
            self.subscription_count += 1
            self.filter_bytes += len(topic_filter)
        if self.watcher is not None and session.durable:
            self.watcher.durable(topic_filter)
        self._forget(topic_filter)
        return old

    def unsubscribe(self, subscription: Subscription) -> bool:
        """Remove the subscription of this session to this filter; return ``False`` if there is none [MQTT-3.10.4-1]."""
        session = subscription.session
        topic_filter = subscription.topic_filter
        if subscription.group is not None:
            group = self._groups.get(subscription.filter)
            if group is None or not group.remove(session):
                return False
            self.shared_count -= 1
            self.subscription_count -= 1
            self.filter_bytes -= len(subscription.filter)
            self.drop_if_empty(group)
            if self.watcher is not None:
                self.watcher.group_changed(subscription.filter)
            return True
        held = self._subscribers.get(topic_filter)
        if held is None:
            return False
        if isinstance(held, dict):
            if held.pop(session, None) is None:
                return False
            if len(held) == 1:
                for left in held.values():
                    self._subscribers.put(topic_filter, left)
        elif held.session is session:
            self._subscribers.remove(topic_filter)
            if self.watcher is not None:
                self.watcher.removed(topic_filter)
        else:
            return False
        self.subscription_count -= 1
        self.filter_bytes -= len(topic_filter)
        self._forget(topic_filter)
        return True

    def set_remote(self, topic_filter: str, mask: int) -> None:
        """Set which other nodes have subscribers of this filter; 0: none."""
        remote = self.remote
        if remote is None:
            remote = self.remote = FilterIndex()
        if mask:
            remote.put(topic_filter, mask)
        else:
            remote.remove(topic_filter)
        self._forget(topic_filter)

    def remote_mask(self, topic_filter: str) -> int:
        """Return which other nodes have subscribers of exactly this filter."""
        return 0 if self.remote is None else self.remote.get(topic_filter) or 0

    def set_remote_target(self, bit: int, target: Subscription | None) -> None:
        """Set the target of messages for a node; ``None``: there is none, whatever filters have this bit."""
        targets = self.remote_targets
        while len(targets) <= bit:
            targets.append(None)
        targets[bit] = target
        self._targets_of_mask.clear()
        self.forget_judgements()

    def forget_judgements(self) -> None:
        """Discard all cached routes, because the answers of ``judge`` may have changed."""
        self.recent = {}
        self._older = {}
        self._weight = 0

    def _remote_of(self, topic: str) -> tuple[Subscription, ...]:
        remote = self.remote
        if remote is None:
            return ()
        mask = 0
        for each in remote.match(topic):
            mask |= each
        if not mask:
            return ()
        found = self._targets_of_mask.get(mask)
        if found is None:
            alone = mask & ~(mask >> 1 & _EVEN_BITS)
            targets = enumerate(self.remote_targets)
            found = tuple([target for bit, target in targets if target is not None and alone >> bit & 1])
            self._targets_of_mask[mask] = found
        return found

    def group_of(self, filter: str, name: str, topic_filter: str) -> SharedGroup:
        """Return the Shared Subscription with this whole ``$share/...`` filter; if there is none, a new one without
        members."""
        group = self._groups.get(filter)
        if group is not None:
            return group
        group = SharedGroup(name, topic_filter, filter, self._strategy, self._rng)
        self._groups[filter] = group
        held = self._groups_by_filter.get(topic_filter)
        if held is None:
            self._groups_by_filter.put(topic_filter, group)
        elif isinstance(held, dict):
            held[group.filter] = group
        else:
            self._groups_by_filter.put(topic_filter, {held.filter: held, group.filter: group})
        self._forget(topic_filter)
        return group

    def drop_if_empty(self, group: SharedGroup) -> None:
        """Remove a Shared Subscription without members on any node."""
        if not len(group) and group.remote is None and self._groups.get(group.filter) is group:
            self._drop_group(group)

    def _drop_group(self, group: SharedGroup) -> None:
        del self._groups[group.filter]
        held = self._groups_by_filter.get(group.topic_filter)
        if isinstance(held, dict):
            del held[group.filter]
            if len(held) == 1:
                for left in held.values():
                    self._groups_by_filter.put(group.topic_filter, left)
        else:
            self._groups_by_filter.remove(group.topic_filter)
        self._forget(group.topic_filter)

    def _forget(self, topic_filter: str) -> None:
        """Remove the cached routes that a change of this filter may affect.

        Clearing the cache costs as much as filling it did, so a change costs O(1) in addition to the earlier matches. A
        generation number in each route would cost a comparison for every hit, and keep ended sessions in memory."""
        if has_wildcard(topic_filter):
            if self.recent:
                self.recent = {}
                self._weight = 0
            if self._older:
                self._older = {}
        else:
            route = self.recent.pop(topic_filter, None)
            if route is not None:
                self._weight -= len(route.targets) + len(route.groups)
            elif self._older:
                self._older.pop(topic_filter, None)

    # Queries

    def match(self, topic: str) -> Route:
        """Return the receivers of this (valid) Topic Name. For a recent topic this is one lookup."""
        route = self.recent.get(topic)
        if route is None:
            route = self._match(topic)
        return route

    @property
    def has_system_filters(self) -> bool:
        """Whether any filter, including those of other nodes, can match a Topic Name that begins with $."""
        return self._subscribers.system > 0 or self._groups_by_filter.system > 0

    def reaches(self, topic: str) -> bool:
        """Return whether a session of this node receives this Topic Name. The result is not cached: this is for topics
        that rarely recur."""
        route = self._find(topic)
        return bool(route.targets or route.groups)

    def _match(self, topic: str) -> Route:
        route = self._older.pop(topic, None) if self._older else None
        if route is None:
            route = self._find(topic)
            if self._older and self._rng.random() * ADMISSION_ODDS >= 1:
                return route
        weight = len(route.targets) + len(route.groups)
        if len(topic) > MAX_CACHED_TOPIC or weight > self._heavy or not self._capacity:
            return route
        if len(self.recent) >= self._capacity or self._weight + weight > self._heavy:
            self._older = self.recent
            self.recent = {}
            self._weight = 0
        self.recent[topic] = route
        self._weight += weight
        return route

    def _find(self, topic: str) -> Route:
        found = self._subscribers.match(topic)
        if self.judge is not None and found:
            found = _judged(found, topic, self.judge)
        targets: tuple[Subscription, ...] = ()
        if len(found) == 1:
            held = found[0]
            targets = tuple(held.values()) if isinstance(held, dict) else (held,)
        elif found:
            targets = _joined(found)
        groups: tuple[SharedGroup, ...] = ()
        if self._groups:
            matched: list[SharedGroup] = []
            for some in self._groups_by_filter.match(topic):
                if isinstance(some, dict):
                    matched.extend(some.values())
                else:
                    matched.append(some)
            groups = tuple(matched)
        remote = self._remote_of(topic)
        if not targets and not groups and not remote:
            return EMPTY
        return Route(targets, groups, remote)

    def route_count(self) -> int:
        """The number of distinct filters with subscribers; each ``$share/...`` filter counts as one."""
        if self.remote is None:
            return len(self._subscribers) + len(self._groups)
        return len(self._subscribers) + sum([len(group) > 0 for group in self._groups.values()])

    def filters(self) -> Iterator[str]:
        """Iterate over every filter with subscribers, including shared ones as ``$share/...``. Changes during the
        iteration may or may not be included."""
        yield from self._subscribers.filters()
        yield from [filter for filter, group in self._groups.items() if len(group)]

    def known_filters(self) -> Iterator[str]:
        """Iterate once over every Topic Filter with subscribers on any node, without ``$share/...``. Changes during the
        iteration may or may not be included."""
        yield from self._subscribers.filters()
        for filter in self._groups_by_filter.filters():
            if not self.has(filter):
                yield filter
        if self.remote is not None:
            for filter in self.remote.filters():
                if not self.has(filter) and self._groups_by_filter.get(filter) is None:
                    yield filter

    def knows(self, topic_filter: str) -> bool:
        """Return whether ``known_filters`` contains the filter."""
        return (
            self.has(topic_filter)
            or self._groups_by_filter.get(topic_filter) is not None
            or self.remote_mask(topic_filter) != 0
        )

    def subscriber_count(self, topic_filter: str) -> int:
        """Return the number of subscriptions here to exactly this filter, including shared ones, plus one for each
        other node that has some."""
        held = self._subscribers.get(topic_filter)
        count = 0 if held is None else len(held) if isinstance(held, dict) else 1
        groups = self._groups_by_filter.get(topic_filter)
        if groups is not None:
            for group in groups.values() if isinstance(groups, dict) else (groups,):
                count += len(group) + (group.remote is not None)
        mask = self.remote_mask(topic_filter)
        return count + ((mask | mask >> 1) & _EVEN_BITS).bit_count() if mask else count

    def group(self, filter: str) -> SharedGroup | None:
        """Return the Shared Subscription with this whole ``$share/...`` filter, ``None`` if it has no members on any
        node."""
        return self._groups.get(filter)

    def has(self, topic_filter: str) -> bool:
        """Return whether exactly this filter has subscribers, not counting Shared Subscriptions."""
        return self._subscribers.get(topic_filter) is not None

    def groups_of(self, topic_filter: str) -> list[SharedGroup]:
        """Return the Shared Subscriptions of exactly this filter, without ``$share/...``, that have members here."""
        held = self._groups_by_filter.get(topic_filter)
        if held is None:
            return []
        return [group for group in (held.values() if isinstance(held, dict) else (held,)) if len(group)]

    def groups(self) -> Iterator[SharedGroup]:
        """Iterate over every Shared Subscription that has members on any node. Nothing may change during the
        iteration."""
        yield from self._groups.values()

    def subscriptions(self, filter: str) -> list[Subscription]:
        """Return the subscriptions to exactly this filter (not to matching ones), in the order of their creation."""
        group = self._groups.get(filter)
        if group is not None:
            return group.members()
        held = self._subscribers.get(filter)
        if held is None:
            return []
        return list(held.values()) if isinstance(held, dict) else [held]


def _judged(found: list[_Subscribers], topic: str, judge: Callable[[Subscription, str], bool]) -> list[_Subscribers]:
    """Return the subscriptions that receive this topic, before those of one session are merged."""
    left: list[_Subscribers] = []
    for held in found:
        if isinstance(held, dict):
            denied = [each.session for each in held.values() if each.judged and not judge(each, topic)]
            if not denied:
                left.append(held)
                continue
            some = dict(held)
            for session in denied:
                del some[session]
            if some:
                left.append(some)
        elif not held.judged or judge(held, topic):
            left.append(held)
    return left


def _joined(found: list[_Subscribers]) -> tuple[Subscription, ...]:
    """Return the subscriptions of several filters, merged into one per session [MQTT-3.3.4-2] [3.1.1 MQTT-3.3.5-1]."""
    total = 0
    by_session: dict[Session, Subscription] = {}
    for held in found:
        if isinstance(held, dict):
            total += len(held)
            by_session.update(held)
        else:
            total += 1
            by_session[held.session] = held
    if len(by_session) == total:
        return tuple(by_session.values())
    overlapping: dict[Session, list[Subscription]] = {}
    for held in found:
        for subscription in held.values() if isinstance(held, dict) else (held,):
            earlier = overlapping.get(subscription.session)
            if earlier is None:
                overlapping[subscription.session] = [subscription]
            else:
                earlier.append(subscription)
    return tuple([each[0] if len(each) == 1 else merge(each) for each in overlapping.values()])
