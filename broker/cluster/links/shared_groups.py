"""Shared Subscriptions across nodes: selection of the node whose member receives a message.

The publisher's node selects a node by the number of its connected members. That node selects the member, as for its own
messages; if its members have disconnected in the meantime, it passes the message on."""

import asyncio
import logging
from collections.abc import Collection
from random import Random
from typing import Final

from ...core.broker import Broker
from ...core.cluster import RUNNING
from ...mqtt.message import Message
from ...mqtt.topics import is_shared, parse_filter
from ...routing.group_address import GroupAddress
from ...routing.shared import SharedGroup
from ...routing.strategy import Strategy
from ...session.acceptance import would_refuse
from ...session.client_info import ClientInfo
from ...session.session import Session
from ...session.subscription import Subscription
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..wire import MALFORMED, MessageRecord, node_key
from .link_receiver import LinkReceiver
from .routes import ClusterRoutes

logger = logging.getLogger(__name__)

RECOUNT: Final = 0.05
"""Seconds within which other nodes are informed how many members are connected."""
MAX_HOPS: Final = 4
"""Maximum number of nodes that a message passes through in search of a member."""
LEFT: Final = "group_left"


class Share:
    """The part of a group on one node. ``running``: whether messages for its connected members can be sent to it."""

    __slots__ = ("connected", "key", "members", "running", "target")

    def __init__(self, key: str) -> None:
        self.key = key
        self.members = 0
        self.connected = 0
        self.running = False
        self.target: Subscription | None = None


class GroupShares:
    """The members of one Shared Subscription by node, including this node. The router uses it as
    ``routing.shared.RemoteMembers``."""

    __slots__ = ("_broker", "_group", "_key", "_order", "_strategy", "shares")

    def __init__(self, group: SharedGroup, key: str, broker: Broker, rng: Random) -> None:
        """``key``: the key of this node."""
        self._group = group
        self._key = key
        self._broker = broker
        self.shares: dict[str, Share] = {}
        # By key, so that a hash selects the same node wherever the publisher is. None: this node.
        self._order: list[Share | None] = [None]
        self._strategy = Strategy(group.strategy.kind, rng)

    def put(self, share: Share) -> None:
        self.shares[share.key] = share
        self._sort()

    def remove(self, key: str) -> None:
        if self.shares.pop(key, None) is not None:
            self._sort()

    def _sort(self) -> None:
        keys = sorted([*self.shares, self._key])
        self._order = [self.shares.get(key) for key in keys]

    # --------------------------------------------------------- RemoteMembers

    def deliver(self, message: Message, exclude: Collection[Session]) -> bool:
        return self.search(message, exclude, ())

    def search(self, message: Message, exclude: Collection[Session], hops: tuple[str, ...]) -> bool:
        """Deliver to a member on a node that is not in ``hops``: to a connected member if there is one, otherwise to an
        offline one. The nodes in ``hops``, including this one after its turn, have no connected members."""
        refused: list[Share] = []
        while len(hops) <= MAX_HOPS:
            weights = [self._connected(each, hops, refused) for each in self._order]
            total = sum(weights)
            if not total:
                break
            share = self._choose(message, weights, total)
            if share is None:
                if self._broker.deliver_shared(message, self._group, exclude, True):
                    return True
                hops = (*hops, self._key)
            elif self._takes(share, message):
                self._send(share, message, hops)
                return True
            else:
                refused.append(share)
        if len(self._group) and self._broker.deliver_shared(message, self._group, exclude):
            return True
        if self._key not in hops:
            hops = (*hops, self._key)
        offline = [each for each in self.shares.values() if each.members and each.target and each.key not in hops]
        for share in sorted(offline, key=lambda each: (each in refused, not each.running, each.key)):
            if len(hops) <= MAX_HOPS:
                self._send(share, message, hops)
                return True
        return False

    def would_refuse(self, message: Message) -> bool:
        return not any(each.target and self._takes(each, message) for each in self.shares.values())

    @staticmethod
    def _takes(share: Share, message: Message) -> bool:
        target = share.target
        return target is not None and not would_refuse(target.session, message, target)

    def _connected(self, share: Share | None, hops: tuple[str, ...], refused: list[Share]) -> int:
        if share is None:
            return 0 if self._key in hops else self._group.connected
        if not share.running or share.target is None or share.key in hops or share in refused:
            return 0
        return share.connected

    def _send(self, share: Share, message: Message, hops: tuple[str, ...]) -> None:
        assert share.target is not None
        self._broker.deliver_addressed(message, share.target, GroupAddress(self._group.filter, hops).text)

    def _choose(self, message: Message, weights: list[int], total: int) -> Share | None:
        """Select a node by the strategy of the group. Each connected member, on any node, is equally likely."""
        publisher = message.publisher
        publisher_id = "" if publisher is None else publisher.client_id
        strategy = self._strategy
        favourite = strategy.favourite(publisher_id)
        if favourite is not None:
            for share, weight in zip(self._order, weights, strict=True):
                if weight and favourite == self._name(share):
                    return share
        place = strategy.place(publisher_id, message.topic, total)
        share = self._at(place, weights)
        if strategy.remembers:
            strategy.gave(publisher_id, place, self._name(share))
        return share

    def _name(self, share: Share | None) -> str:
        return self._key if share is None else share.key

    def _at(self, place: int, weights: list[int]) -> Share | None:
        """Return the node at this position of a list that contains each node as often as its weight, in the order of
        the nodes."""
        index = 0
        while place >= weights[index]:
            place -= weights[index]
            index += 1
        return self._order[index]


class ClusterSharedGroups:
    """Keeps ``SharedGroup.remote`` and ``connected`` up to date, and receives messages that other nodes send for a
    group."""

    def __init__(
        self, context: ClusterContext, membership: Members, routes: ClusterRoutes, receiver: LinkReceiver
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._router = context.broker.router
        self._membership = membership
        self._routes = routes
        self._receiver = receiver
        self._key = node_key(context.node)
        self._recounted: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._routes.on_group.append(self._theirs)
        self._routes.on_target.append(self._target)
        self._routes.on_own_group.append(self._count)
        self._membership.on_change.append(self._changed)
        self._receiver.on_addressed = self._came
        hooks = self._context.broker.hooks
        hooks.client_connected.add(self._connected)
        hooks.client_disconnected.add(self._disconnected)
        for group in self._router.groups():
            self._count(group.filter)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        hooks = self._context.broker.hooks
        if self._connected in hooks.client_connected:  # not stopped earlier
            hooks.client_connected.remove(self._connected)
            hooks.client_disconnected.remove(self._disconnected)

    # ------------------------------------------------------------ members of this node

    def _connected(self, client: ClientInfo) -> None:
        self._recount(client.client_id)

    def _disconnected(self, client: ClientInfo, reason: str) -> None:
        self._recount(client.client_id)

    def _recount(self, client_id: str) -> None:
        session = self._broker.sessions.get(client_id)
        if session is None:
            return
        for subscription in session.subscriptions.values():
            if subscription.group is not None:
                self._recounted.add(subscription.filter)
        if self._recounted and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECOUNT, self._tell)

    def _tell(self) -> None:
        self._timer = None
        filters, self._recounted = self._recounted, set()
        for filter in filters:
            self._count(filter)
            self._routes.recount(filter)

    def _count(self, filter: str) -> None:
        group = self._router.group(filter)
        if group is not None:
            group.connected = sum([each.session.connected for each in group.members()])

    # ---------------------------------------------------------- members of other nodes

    def _theirs(self, node: str, filter: str, members: int, connected: int) -> None:
        group = self._router.group(filter)
        if group is None:
            if not members:
                return
            name, topic_filter = parse_filter(filter)
            group = self._router.group_of(filter, name or "", topic_filter)
        shares = group.remote
        if shares is None:
            if not members:
                return
            shares = group.remote = GroupShares(group, self._key, self._broker, self._context.rng)
            self._count(filter)
        assert isinstance(shares, GroupShares)
        if not members:
            shares.remove(node)
            if not shares.shares:
                group.remote = None
                self._router.drop_if_empty(group)
            return
        share = shares.shares.get(node)
        if share is None:
            share = Share(node)
            share.target = self._routes.target(node)
            share.running = self._runs(node)
            shares.put(share)
        share.members = members
        share.connected = connected

    def _runs(self, node: str) -> bool:
        return any(peer.key == node and peer.status == RUNNING for peer in self._membership.peers.values())

    def _target(self, node: str, target: Subscription | None) -> None:
        for share in self._shares_of(node):
            share.target = target

    def _changed(self, peer: Peer, before: str) -> None:
        for share in self._shares_of(peer.key):
            share.running = peer.status == RUNNING

    def _shares_of(self, node: str) -> list[Share]:
        found = []
        for group in self._router.groups():
            if isinstance(group.remote, GroupShares) and node in group.remote.shares:
                found.append(group.remote.shares[node])
        return found

    # ---------------------------------------------------------------- received messages

    def _came(self, message: Message, record: MessageRecord, node: str) -> None:
        """Deliver a message for a group whose member another node has selected on this node."""
        filter, hops = GroupAddress.parse(record.group)
        if not is_shared(filter):
            self._context.refusals.add(MALFORMED, node, "-")
            return
        group = self._router.group(filter)
        if group is None:
            passed = False
        elif self._broker.deliver_shared(message, group, (), True):
            return
        elif isinstance(group.remote, GroupShares):
            remote = group.remote
            passed = remote.search(message, (), (*hops, self._key))
            # Members may now exist where there were none before.
            passed = passed or (bool(hops) and remote.search(message, (), (self._key,) * (len(hops) + 1)))
        else:
            passed = self._broker.deliver_shared(message, group)
        target = None if passed or self._routes.current else self._routes.target(node_key(node))
        if target is not None and len(hops) < MAX_HOPS:
            # This node has started and does not know yet where members are; the other node does.
            self._broker.deliver_addressed(message, target, GroupAddress(filter, (*hops, self._key)).text)
        elif not passed:
            self._context.refusals.add(LEFT, node, "-")
            self._broker.metrics.messages_dropped_no_subscribers += 1
