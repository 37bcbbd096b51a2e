"""Router: Topic Name -> who receives it."""

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

MAX_CACHED_TOPIC: Final = 256  # characters; longer topics are matched anew each time
TARGETS_PER_TOPIC: Final = 16  # the cache holds at most this many targets and groups per topic it may hold, on average
# 1 in N: once more topics come than the cache holds, it takes in one of N new ones, at random. What is asked for often
# is in it soon, and what hardly comes again mostly costs no remembering and evicts no other.
ADMISSION_ODDS: Final = 8

_EVEN_BITS: Final = int("55" * 64, 16)  # of masks of remote nodes: 256 nodes

_Subscribers: TypeAlias = "Subscription | dict[Session, Subscription]"
_Groups: TypeAlias = SharedGroup | dict[str, SharedGroup]


class Route:
    """Who receives a topic. Immutable, so that a delivery may subscribe and unsubscribe meanwhile.

    ``targets`` has at most one Subscription per session; of each of ``groups`` one member is to be picked. ``remote``:
    of the sessions whose clients are other nodes.
    """

    __slots__ = ("groups", "remote", "targets")

    def __init__(
        self,
        targets: tuple[Subscription, ...],
        groups: tuple[SharedGroup, ...],
        remote: tuple[Subscription, ...] = (),
    ) -> None:
        self.targets = targets
        self.groups = groups
        self.remote = remote

    def __repr__(self) -> str:
        return f"Route({len(self.targets)} targets, {len(self.groups)} groups)"


EMPTY: Final = Route((), ())
"""The route of every topic without a subscription."""


class RouteWatcher(Protocol):
    """Is told which filters have subscribers of this node (``cluster.routes``)."""

    def durable(self, filter: str) -> None:
        """A durable session has subscribed to this filter, the first or one more."""

    def added(self, topic_filter: str) -> None:
        """It has its first subscriber, Shared Subscriptions aside."""

    def removed(self, topic_filter: str) -> None:
        """Its last subscriber is gone."""

    def group_changed(self, filter: str) -> None:
        """A Shared Subscription (``$share/...``) has other members than before, perhaps none."""


class Router:
    """All subscriptions of the node, by Topic Filter.

    ``strategy`` (of ``STRATEGIES``) and ``rng`` are those of every Shared Subscription; ``cache_size`` is how many
    topics' routes are remembered, 0 for none. ``recent`` has the routes of topics that were asked for lately: whoever
    publishes looks there first, and calls ``match`` for any other.

    ``judge`` is asked about each ``judged`` subscription, whether it gets a topic; the answer is remembered with the
    route, until ``forget_judgements``. ``None`` while there is no such subscription.

    ``remote``, ``None`` without a cluster: filter -> the nodes that have subscribers of it, as a mask of bits; bit n is
    ``remote_targets[n]``, a Subscription of the session whose client is that node. Bits are in pairs: an odd one, where
    that node has durable sessions with the filter, takes the place of the even one before it. ``watcher`` is told of
    changes.
    """

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
        # The bare Subscription where a filter has one, a dict by session where it has more: most filters have one.
        self._subscribers: FilterIndex[_Subscribers] = FilterIndex()
        self._groups_by_filter: FilterIndex[_Groups] = FilterIndex()
        self._groups: dict[str, SharedGroup] = {}  # by the whole "$share/..." filter
        # Two halves: when the recent one is full it becomes the older one, and what is asked for again comes back.
        # So old topics go in bulk and hot ones stay, and a hit is one lookup.
        self.recent: dict[str, Route] = {}
        self._older: dict[str, Route] = {}
        self._capacity = (cache_size + 1) // 2
        self._heavy = self._capacity * TARGETS_PER_TOPIC
        self._weight = 0  # targets and groups in all of recent
        self.subscription_count = 0  # shared ones included
        self.filter_bytes = 0  # about: characters of the filters of all subscriptions
        self.shared_count = 0
        self.watcher: RouteWatcher | None = None
        self.judge: Callable[[Subscription, str], bool] | None = None
        self.remote: FilterIndex[int] | None = None
        self.remote_targets: list[Subscription | None] = []
        self._targets_of_mask: dict[int, tuple[Subscription, ...]] = {}

    # Changes

    def subscribe(self, subscription: Subscription) -> Subscription | None:
        """Add a subscription; returns the one of the same session and filter that it replaced [MQTT-3.8.4-3]."""
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
        """Remove what this subscription's session has at its filter; ``False`` if that is nothing [MQTT-3.10.4-1]."""
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
        """Which other nodes have subscribers of this filter; 0: none."""
        remote = self.remote
        if remote is None:
            remote = self.remote = FilterIndex()
        if mask:
            remote.put(topic_filter, mask)
        else:
            remote.remove(topic_filter)
        self._forget(topic_filter)

    def remote_mask(self, topic_filter: str) -> int:
        """Which other nodes have subscribers of just this filter."""
        return 0 if self.remote is None else self.remote.get(topic_filter) or 0

    def set_remote_target(self, bit: int, target: Subscription | None) -> None:
        """What gets the messages for a node; ``None``: there is none, whatever filters have this bit."""
        targets = self.remote_targets
        while len(targets) <= bit:
            targets.append(None)
        targets[bit] = target
        self._targets_of_mask.clear()
        self.forget_judgements()

    def forget_judgements(self) -> None:
        """What ``judge`` would say may be other: all routes are found anew."""
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
        """The Shared Subscription of this whole ``$share/...`` filter; where there is none, one without members."""
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
        """Forget a Shared Subscription that has no members, neither here nor elsewhere."""
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
        """Drop the cached routes that a change of this filter may alter.

        Emptying the cache costs what filling it did, so that a change costs O(1) beside the matches that
        went before. A generation number in each route would cost every hit a comparison, and keep ended sessions
        in memory.
        """
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

    # Questions

    def match(self, topic: str) -> Route:
        """Who receives this (valid) Topic Name. One lookup for a topic seen lately."""
        route = self.recent.get(topic)
        if route is None:
            route = self._match(topic)
        return route

    @property
    def has_system_filters(self) -> bool:
        """Whether any filter, also of other nodes, can match a Topic Name that begins with $."""
        return self._subscribers.system > 0 or self._groups_by_filter.system > 0

    def reaches(self, topic: str) -> bool:
        """Whether a session of this node receives this Topic Name. Not remembered: for topics that hardly come
        again."""
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
        """How many distinct filters have subscribers, each ``$share/...`` filter counting as one."""
        if self.remote is None:
            return len(self._subscribers) + len(self._groups)
        return len(self._subscribers) + sum([len(group) > 0 for group in self._groups.values()])

    def filters(self) -> Iterator[str]:
        """Every filter that has subscribers, shared ones as ``$share/...``. What changes meanwhile may be in or not."""
        yield from self._subscribers.filters()
        yield from [filter for filter, group in self._groups.items() if len(group)]

    def known_filters(self) -> Iterator[str]:
        """Every Topic Filter once that has subscribers here or on other nodes, without ``$share/...``. What changes
        meanwhile may be in or not."""
        yield from self._subscribers.filters()
        for filter in self._groups_by_filter.filters():
            if not self.has(filter):
                yield filter
        if self.remote is not None:
            for filter in self.remote.filters():
                if not self.has(filter) and self._groups_by_filter.get(filter) is None:
                    yield filter

    def knows(self, topic_filter: str) -> bool:
        """Whether ``known_filters`` has it."""
        return (
            self.has(topic_filter)
            or self._groups_by_filter.get(topic_filter) is not None
            or self.remote_mask(topic_filter) != 0
        )

    def subscriber_count(self, topic_filter: str) -> int:
        """The subscriptions here to just this filter, shared ones too, and one for each other node that has some."""
        held = self._subscribers.get(topic_filter)
        count = 0 if held is None else len(held) if isinstance(held, dict) else 1
        groups = self._groups_by_filter.get(topic_filter)
        if groups is not None:
            for group in groups.values() if isinstance(groups, dict) else (groups,):
                count += len(group) + (group.remote is not None)
        mask = self.remote_mask(topic_filter)
        return count + ((mask | mask >> 1) & _EVEN_BITS).bit_count() if mask else count

    def group(self, filter: str) -> SharedGroup | None:
        """The Shared Subscription of this whole ``$share/...`` filter, ``None`` if it has no members on any node."""
        return self._groups.get(filter)

    def has(self, topic_filter: str) -> bool:
        """Whether just this filter has subscribers, Shared Subscriptions aside."""
        return self._subscribers.get(topic_filter) is not None

    def groups_of(self, topic_filter: str) -> list[SharedGroup]:
        """The Shared Subscriptions of just this filter, without their ``$share/...``, that have members here."""
        held = self._groups_by_filter.get(topic_filter)
        if held is None:
            return []
        return [group for group in (held.values() if isinstance(held, dict) else (held,)) if len(group)]

    def groups(self) -> Iterator[SharedGroup]:
        """Every Shared Subscription that has members on some node. Nothing may change until it is left."""
        yield from self._groups.values()

    def subscriptions(self, filter: str) -> list[Subscription]:
        """The subscriptions to just this filter (not: matching it), in the order they were made."""
        group = self._groups.get(filter)
        if group is not None:
            return group.members()
        held = self._subscribers.get(filter)
        if held is None:
            return []
        return list(held.values()) if isinstance(held, dict) else [held]


def _judged(found: list[_Subscribers], topic: str, judge: Callable[[Subscription, str], bool]) -> list[_Subscribers]:
    """Without the subscriptions that do not get this topic: before those of a session are joined."""
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
    """The subscriptions of several filters, one per session [MQTT-3.3.4-2] [3.1.1 MQTT-3.3.5-1]."""
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
