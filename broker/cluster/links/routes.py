"""Routes: announces topic filters with subscribers on this node, and adds those of other nodes to this node's router.

Each route is a key of bucket ``routes``, ``<node>.<filter>`` as hashes. This node also watches its own keys in the
bucket, and corrects them when they differ: after a start, after a write without an answer, after a loss of the bucket.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from ...core.cluster import RUNNING, CallFailed, NodeUnreachable
from ...mqtt.topics import is_shared, parse_filter
from ...session.subscription import Subscription, VolatileSubscription
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..nats.interface import BucketEntry, NoAnswer, Unavailable, Unknown, Watch, WrongRevision
from ..wire import MALFORMED, Header, NodeRoute, node_key, thing_key

logger = logging.getLogger(__name__)

BUCKET: Final = "routes"
REACHED: Final = "routes.reached"
MAX_WRITES: Final = 256
"""The limit of writes that are not answered yet."""
RETRY: Final = 0.5
_SLICE: Final = 2000
"""The number of filters of a removed node that are deleted from the router at a time."""
_MAX_MEMBERS: Final = 2**31
"""The limit of a group's members on one node: more than there can be, and safe to calculate with."""
VOLATILE: Final = 1
DURABLE: Final = 2
"""The number of bits of each node in the router's masks: one for filters without a durable session, one for filters
with one."""


def _valid(record: NodeRoute) -> bool:
    """Return whether a node can have such subscribers."""
    try:
        group, _ = parse_filter(record.filter)
    except ValueError:
        return False
    if group is None:
        return not record.members and not record.connected
    return 0 < record.members <= _MAX_MEMBERS and 0 <= record.connected <= record.members


class RemoteNode:
    """The routes of another node. ``filters`` has its filters by the hash in their keys. ``bit`` is the first of its
    two bits in the router's masks. ``stale`` contains keys that the bucket has lost and that the node has not written
    again yet."""

    __slots__ = ("bit", "filters", "groups", "key", "stale")

    def __init__(self, key: str, bit: int) -> None:
        self.key = key
        self.bit = bit
        self.filters: dict[bytes, str] = {}
        self.groups: dict[bytes, NodeRoute] = {}
        self.stale: set[bytes] = set()


class ClusterRoutes:
    """The routes of this node and of all others. The router calls it as ``routing.router.RouteWatcher`` when this
    node's subscriptions change. ``changes`` counts the changes of other nodes' routes.

    Callbacks::

        on_group       a Shared Subscription has other members on a node: the node's key, the ``$share/...`` filter,
                       the number of members, and how many of them are connected
        on_own_group   a Shared Subscription has other members on this node
        on_target      messages for a node go to another link, or to none
    """

    def __init__(self, context: ClusterContext, membership: Members, calls: Calls) -> None:
        self._context = context
        self._nats = context.nats
        self._membership = membership
        self._calls = calls
        self._router = context.broker.router
        self._reader = context.wire.reader(NodeRoute)
        self._key = node_key(context.node)
        self._nodes: dict[str, RemoteNode] = {}
        self.changes = 0
        self._leaving: list[RemoteNode] = []
        self._targets: dict[str, Subscription] = {}
        self._watch: Watch | None = None
        # This node's routes in the bucket: filter -> revision; for groups also the value.
        self._ours: dict[str, int] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        # This node's filters that durable sessions have or had; and those with this mark in the bucket.
        self._durable: set[str] = set()
        self._durable_told: set[str] = set()
        # This node's filters that stay in the bucket without a subscriber, and how many callers need that.
        self._held: dict[str, int] = {}
        # This node's deleted filters and the revision of the deletion, until the watch has reported it.
        self._deleted: dict[str, int] = {}
        # This node's filters with a write that was not answered or found another revision: the bucket is read first.
        self._doubtful: set[str] = set()
        # This node's filters that may have to be written or deleted, and those whose write is under way.
        self._pending: dict[str, None] = {}
        self._active: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[tuple[set[str], asyncio.Future[None]]] = []
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False
        self._current = asyncio.Event()
        self.on_group: list[Callable[[str, str, int, int], None]] = []
        self.on_own_group: list[Callable[[str], None]] = []
        self.on_target: list[Callable[[str, Subscription | None], None]] = []
        calls.serve(REACHED, self._reached)

    # -------------------------------------------------------------- start, stop

    def start(self) -> None:
        """Announce the filters of this node's sessions, and read the routes of other nodes. Called when the sessions
        are restored."""
        self._router.watcher = self
        self._nats.on_lost.append(self._lost)
        self._nats.on_connected.append(self._pump)
        self._membership.on_joined.append(self.offer)
        self._membership.on_removed.append(lambda peer: self.forget(peer.key))
        self._membership.on_change.append(self._changed)

    async def stop(self) -> None:
        self._stopped = True
        self._router.watcher = None
        if self._watch is not None:
            self._watch.stop()
        if self._retry is not None:
            self._retry.cancel()
        tasks = list(self._active.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def current(self) -> bool:
        """Whether the routes that the bucket had at the start are in the router."""
        return self._current.is_set()

    async def wait_until_current(self, timeout: float) -> bool:
        """Wait until the routes that the bucket had at the start are in the router; return False after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._current.wait()
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------- ours

    def added(self, topic_filter: str) -> None:
        self._touch(topic_filter)

    def durable(self, filter: str) -> None:
        if filter not in self._durable:
            self._durable.add(filter)
            self._touch(filter)

    def removed(self, topic_filter: str) -> None:
        self._durable.discard(topic_filter)
        self._touch(topic_filter)

    def group_changed(self, filter: str) -> None:
        self._touch(filter)
        for call in self.on_own_group:
            call(filter)

    def recount(self, filter: str) -> None:
        """Announce a group of this node again, because the set of its connected members has changed."""
        self._touch(filter)

    def hold(self, filter: str) -> None:
        """Keep the route of a filter, although it may have no subscriber on this node: other nodes continue to send
        matching messages here."""
        self._held[filter] = self._held.get(filter, 0) + 1
        self._touch(filter)

    def release(self, filter: str) -> None:
        left = self._held[filter] = self._held[filter] - 1
        if not left:
            del self._held[filter]
        self._touch(filter)

    def _touch(self, filter: str) -> None:
        self._pending[filter] = None
        if self._watch is not None and self._watch.current:
            self._pump()

    def _wanted(self, filter: str) -> NodeRoute | None:
        """Return the value that the bucket should have for a filter of this node."""
        if not is_shared(filter):
            if filter in self._held:
                return NodeRoute(filter, durable=True)
            return NodeRoute(filter, durable=filter in self._durable) if self._router.has(filter) else None
        group = self._router.group(filter)
        if group is None or not len(group):
            return None
        members = group.members()
        return NodeRoute(filter, len(members), sum(each.session.connected for each in members))

    def _differs(self, filter: str, wanted: NodeRoute | None) -> bool:
        if wanted is None or filter not in self._ours:
            return (wanted is None) != (filter not in self._ours)
        if wanted.members:
            return self._counts.get(filter) != (wanted.members, wanted.connected)
        return wanted.durable != (filter in self._durable_told)

    def _pump(self) -> None:
        """Start as many writes as may be under way."""
        if self._stopped or not self._membership.joined or self._retry is not None:
            return
        loop = asyncio.get_running_loop()
        for filter in list(islice(self._pending, MAX_WRITES)):
            if len(self._active) >= MAX_WRITES:
                return
            if filter in self._active:
                continue  # its task checks again at its end
            del self._pending[filter]
            if filter in self._doubtful or self._differs(filter, self._wanted(filter)):
                self._active[filter] = loop.create_task(self._write(filter))
            else:
                self._settled(filter)

    async def _write(self, filter: str) -> None:
        try:
            await self._put_right(filter)
        except (Unavailable, Unknown, NoAnswer) as error:
            logger.debug("route_not_written filter=%s error=%s", filter, error)
            self._pending[filter] = None
            if self._retry is None:
                self._retry = asyncio.get_running_loop().call_later(RETRY, self._try_again)
        finally:
            del self._active[filter]
        self._settled(filter)
        self._pump()

    def _try_again(self) -> None:
        self._retry = None
        self._pump()

    async def _put_right(self, filter: str) -> None:
        key = f"{self._key}.{thing_key(filter)}"
        while True:
            doubtful = filter in self._doubtful
            if doubtful:
                self._take(filter, await self._nats.read(BUCKET, key))
            wanted = self._wanted(filter)
            # An unanswered write may still delete the route. Writing it again gives it another revision, so that the
            # deletion fails. The watch reports a route that is written late.
            if not self._differs(filter, wanted) and (wanted is None or not doubtful):
                self._doubtful.discard(filter)
                return
            value = None if wanted is None else self._context.wire.write(wanted)
            try:
                revision = await self._nats.write(BUCKET, key, value, self._ours.get(filter, 0), self._context.nonce())
            except WrongRevision:
                # An earlier write of this node, whose answer was lost.
                self._doubtful.add(filter)
                continue
            except Unknown:
                self._doubtful.add(filter)
                raise
            self._doubtful.discard(filter)
            self._note(filter, revision, wanted)

    def _take(self, filter: str, entry: BucketEntry | None) -> None:
        """Note the value that the bucket has for a filter of this node."""
        found = None if entry is None or entry.value is None else self._reader.value(entry.value)
        if found is None and entry is not None and entry.value is not None:
            self._ours[filter] = entry.revision  # the value is not readable, but can be overwritten
            return
        self._note(filter, 0 if entry is None else entry.revision, None if found is None else found[1])

    def _note(self, filter: str, revision: int, record: NodeRoute | None) -> None:
        if record is None:
            self._ours.pop(filter, None)
            self._counts.pop(filter, None)
            self._durable_told.discard(filter)
            self._deleted[filter] = revision
            return
        self._ours[filter] = revision
        if record.members:
            self._counts[filter] = (record.members, record.connected)
        elif record.durable:
            self._durable_told.add(filter)
        else:
            self._durable_told.discard(filter)

    def _settled(self, filter: str) -> None:
        if not self._waiting or filter in self._pending or filter in self._active:
            return
        left = []
        for filters, future in self._waiting:
            filters.discard(filter)
            if filters:
                left.append((filters, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = left

    async def written(self, filters: Iterable[str]) -> int:
        """Wait until the bucket has the right values for these filters of this node, and return the revision by which
        it has them."""
        waited = set(filters)
        open_ones = {each for each in waited if each in self._pending or each in self._active}
        if open_ones:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((open_ones, future))
            await future
        return max((self._ours.get(each, 0) for each in waited), default=0)

    # ----------------------------------------------------------------- theirs

    def _entry(self, entry: BucketEntry) -> None:
        node, _, hashed = entry.key.partition(".")
        try:
            key = bytes.fromhex(hashed)
        except ValueError:
            return
        if entry.value is None:
            if node == self._key:
                self._forget_deleted(entry.revision)
            elif node in self._nodes:
                self._remove(self._nodes[node], key)
            return
        found = self._reader.value(entry.value)
        if found is None:
            return
        header, record = found
        # A wrong value for this node is overwritten.
        if thing_key(record.filter) != hashed or (node != self._key and not _valid(record)):
            self._context.refusals.add(MALFORMED, header.node, "-")
            return
        if node == self._key:
            self._forget_deleted(entry.revision - 1)
            self._own_entry(header, record, entry.revision)
        else:
            self._add(self._node(node), key, record)

    def _node(self, key: str) -> RemoteNode:
        node = self._nodes.get(key)
        if node is None:
            used = {each.bit for each in [*self._nodes.values(), *self._leaving]}
            bit = next(bit for bit in range(0, 2 * len(used) + 2, 2) if bit not in used)
            node = self._nodes[key] = RemoteNode(key, bit)
            self._set_targets(node)
        return node

    def _own_entry(self, header: Header, record: NodeRoute, revision: int) -> None:
        filter = record.filter
        if revision <= max(self._ours.get(filter, 0), self._deleted.get(filter, 0)):
            return
        self._note(filter, revision, record)
        if header.uid != self._context.wire.uid:
            # An earlier node of this name wrote it. Writing it again keeps it from the deletion of that node's keys.
            self._doubtful.add(filter)
        if filter not in self._active and (filter in self._doubtful or self._differs(filter, self._wanted(filter))):
            self._touch(filter)

    def _forget_deleted(self, upto: int) -> None:
        while self._deleted:
            filter = next(iter(self._deleted))
            if self._deleted[filter] > upto:
                return
            del self._deleted[filter]

    def _add(self, node: RemoteNode, key: bytes, record: NodeRoute) -> None:
        self.changes += 1
        node.stale.discard(key)
        if is_shared(record.filter):
            node.groups[key] = record
            self._tell_group(node, record.filter, record.members, record.connected)
            return
        node.filters[key] = record.filter
        self._set_bits(record.filter, node.bit, DURABLE if record.durable else VOLATILE)

    def _remove(self, node: RemoteNode, key: bytes) -> None:
        self.changes += 1
        node.stale.discard(key)
        filter = node.filters.pop(key, None)
        if filter is not None:
            self._set_bits(filter, node.bit, 0)
            return
        group = node.groups.pop(key, None)
        if group is not None:
            self._tell_group(node, group.filter, 0, 0)

    def _set_bits(self, filter: str, bit: int, bits: int) -> None:
        mask = self._router.remote_mask(filter)
        wanted = mask & ~((VOLATILE | DURABLE) << bit) | bits << bit
        if wanted != mask:
            self._router.set_remote(filter, wanted)

    def _tell_group(self, node: RemoteNode, filter: str, members: int, connected: int) -> None:
        for call in self.on_group:
            call(node.key, filter, members, connected)

    def groups(self) -> Iterator[tuple[str, NodeRoute]]:
        """Iterate over the Shared Subscriptions of other nodes, each with the node's key."""
        for node in self._nodes.values():
            for record in node.groups.values():
                yield node.key, record

    def _set_targets(self, node: RemoteNode) -> None:
        target = self._targets.get(node.key)
        volatile = None
        if target is not None:
            volatile = VolatileSubscription(target.session, target.filter, target.qos, retain_as_published=True)
        self._router.set_remote_target(node.bit, volatile)
        self._router.set_remote_target(node.bit + 1, target)

    def attach(self, key: str, target: Subscription) -> None:
        """Deliver messages for a node's subscribers to ``target``. ``key`` is the key of the node."""
        self._targets[key] = target
        for call in self.on_target:
            call(key, target)
        self._set_targets(self._node(key))

    def restore(self, key: str, records: list[NodeRoute]) -> None:
        """Add the last known routes of a node. Those that the bucket no longer has are deleted later."""
        node = self._node(key)
        for record in records:
            hashed = bytes.fromhex(thing_key(record.filter))
            if _valid(record) and hashed not in node.filters and hashed not in node.groups:
                self._add(node, hashed, record)
                node.stale.add(hashed)

    def known(self) -> Iterator[tuple[str, list[NodeRoute]]]:
        """Iterate over the keys of other nodes, each with the node's routes."""
        for key, node in self._nodes.items():
            masks = [(filter, self._router.remote_mask(filter) >> node.bit) for filter in node.filters.values()]
            plain = [NodeRoute(filter, durable=mask & DURABLE > 0) for filter, mask in masks]
            yield key, [*plain, *node.groups.values()]

    def target(self, key: str) -> Subscription | None:
        """Return the subscription that messages for a node are delivered to."""
        return self._targets.get(key)

    def forget(self, key: str) -> None:
        """Stop routing messages to a node, because it is no longer a member."""
        self._targets.pop(key, None)
        for call in self.on_target:
            call(key, None)
        node = self._nodes.pop(key, None)
        if node is None:
            return
        self.changes += 1
        self._set_targets(node)
        for group in node.groups.values():
            self._tell_group(node, group.filter, 0, 0)
        self._leaving.append(node)
        if len(self._leaving) == 1:
            self._take_out()

    def _take_out(self) -> None:
        """Delete the filters of removed nodes from the router, some at a time."""
        node = self._leaving[0]
        for key in list(islice(node.filters, _SLICE)):
            self._set_bits(node.filters.pop(key), node.bit, 0)
        if not node.filters:
            self._leaving.pop(0)
        if self._leaving:
            asyncio.get_running_loop().call_soon(self._take_out)

    async def keys_of(self, node: str) -> dict[str, int]:
        """Return the keys of another node in the bucket, with their revisions.

        :raises Unavailable, NoAnswer: the bucket cannot be read at present.
        """
        name = node_key(node)
        found = self._nodes.get(name)
        keys = [] if found is None else [f"{name}.{each.hex()}" for each in (*found.filters, *found.groups)]
        revisions: dict[str, int] = {}
        for at in range(0, len(keys), MAX_WRITES):
            some = keys[at : at + MAX_WRITES]
            entries = await asyncio.gather(*(self._nats.read(BUCKET, key) for key in some))
            revisions |= {each.key: each.revision for each in entries if each is not None and each.value is not None}
        return revisions

    async def withdraw(self) -> None:
        """Delete this node's keys from the bucket, because it leaves."""
        await self.delete({f"{self._key}.{thing_key(filter)}": None for filter in self._ours})

    async def delete(self, keys: Mapping[str, int | None]) -> None:
        """Delete the keys of a removed node that still have these revisions: a replacement may have written its own
        values since."""
        left = list(keys.items())
        for at in range(0, len(left), MAX_WRITES):
            some = left[at : at + MAX_WRITES]
            writes = [self._nats.write(BUCKET, key, None, revision, self._context.nonce()) for key, revision in some]
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, (Unavailable, Unknown)):
                    logger.warning("routes_left error=%s", result)
                    return
                if isinstance(result, BaseException) and not isinstance(result, WrongRevision):
                    raise result

    # -------------------------------------------------------- the whole bucket

    def _is_current(self) -> None:
        """Correct this node's keys after the watch has reported the whole bucket."""
        self._current.set()
        for filter in [*self._ours, *self._held]:
            self._pending[filter] = None
        for filter in self._router.filters():
            if any(each.session.durable for each in self._router.subscriptions(filter)):
                self._durable.add(filter)
            self._pending[filter] = None
        loop = asyncio.get_running_loop()
        for node in self._nodes.values():
            if node.stale:
                loop.call_later(self._context.settings.stopped_after, self._drop_stale, node)
        self._pump()

    def _lost(self, bucket: str) -> None:
        """Write this node's keys again, because NATS has lost the bucket. Every running node does this; until then, the
        routes of the others do not change."""
        if bucket != BUCKET:
            return
        self._ours.clear()
        self._counts.clear()
        self._durable_told.clear()
        self._deleted.clear()
        for node in self._nodes.values():
            node.stale.update(node.filters, node.groups)

    def _changed(self, peer: Peer, before: str) -> None:
        node = self._nodes.get(peer.key)
        if node is not None and node.stale and peer.status == RUNNING:
            asyncio.get_running_loop().call_later(self._context.settings.stopped_after, self._drop_stale, node)

    def _drop_stale(self, node: RemoteNode) -> None:
        peer = next((each for each in self._membership.peers.values() if each.key == node.key), None)
        if self._nodes.get(node.key) is node and peer is not None and peer.status == RUNNING:
            for key in list(node.stale):
                self._remove(node, key)

    def offer(self) -> None:
        """Write this node's keys that have been deleted, because it becomes a member or stays one."""
        if self._watch is not None:
            self._watch.stop()
        self._lost(BUCKET)
        self._watch = self._nats.watch(BUCKET, self._entry, self._is_current)

    # ------------------------------------------------------------------- reached

    async def _reached(self, node: str, argument: bytes) -> bytes:
        """Answer another node that has changed a filter, as soon as the change applies to this node's routing."""
        revision = int(argument)
        if not await self.reached(revision):
            raise CallFailed(f"revision {revision} of the routes is not reached")
        return b""

    async def reached(self, revision: int) -> bool:
        """Wait until the bucket's state at this revision applies to this node's routing; return False after the
        timeout."""
        watch = self._watch
        return watch is not None and await watch.reached(revision, self._context.settings.call_timeout)

    async def reached_everywhere(self, revision: int) -> bool:
        """Wait until the bucket's state at this revision applies to the routing of every running node; return False if
        a node has not answered."""
        peers = [each.name for each in self._membership.running()]
        asked = [self._calls.call(name, REACHED, b"%d" % revision) for name in peers]
        results = await asyncio.gather(*asked, return_exceptions=True)
        done = True
        for name, result in zip(peers, results, strict=True):
            if isinstance(result, (CallFailed, NodeUnreachable)):
                logger.info("routes_not_reached node=%s error=%s", name, result)
                done = False
            elif isinstance(result, BaseException):
                raise result
        return done

    async def known_everywhere(self, filters: Iterable[str]) -> None:
        """Wait until these filters of this node apply to the routing of every running node."""
        revision = await self.written(filters)
        while not await self.reached_everywhere(revision):
            await asyncio.sleep(RETRY)
