"""Wills of nodes that die: another node publishes each Will once.

Bucket ``wills`` has a key for each active Will, ``<node key>.<key of the client ID>``. The node writes it in the
background after CONNACK. A node that dies before that publishes the Will when it restarts, as does a node that restarts
within ``cluster.will_grace``. A node that publishes another node's Will marks the key first, by compare-and-set. A node
that restarts finds the mark and does not publish the Will again. If the publishing node dies after the mark, the Will
is lost: it is never published twice. A node that others may regard as Stopped deletes its key first, also by
compare-and-set, and then publishes.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from ..channel.closing import as_message, authorize_will
from ..core.cluster import STOPPED, ChangeRefused
from ..core.outcome import Outcome
from ..loop.timers import Timer
from ..mqtt.constants import NEVER_EXPIRES, WILL_DELAY_INTERVAL
from ..mqtt.message import Message
from ..persistence.log import records
from ..persistence.record_mapping import body_of
from ..session.session import Session
from .changes import Changes, until
from .context import ClusterContext
from .members.members import Members
from .members.peer import Peer
from .moving.session_nodes import SessionNodes
from .moving.session_transfer import SessionReceiver
from .nats.interface import (
    MAX_PAYLOAD,
    BucketEntry,
    NoAnswer,
    TooLarge,
    Unavailable,
    Unknown,
    Watch,
    WrongRevision,
    fits,
)
from .tasks import Tasks
from .wire import MALFORMED, Header, WillRecord, thing_key, valid_body, valid_time

logger = logging.getLogger(__name__)

BUCKET: Final = "wills"
RETRY: Final = 1.0
TOO_LARGE: Final = "will_too_large"
_WRITES: Final = 100
"""Maximum number of writes in progress."""

RefusalOf = Callable[[Message, bool], Outcome | None]
"""Returns why the owner of a Will may not publish it. The flag is set if the owner was allowed to when the record was
written."""


class Wills:
    """The Wills of this node in bucket ``wills``, and those of nodes that die. The broker calls ``changed`` when a
    client's Will becomes active, starts its delay, or is deleted; recovery calls ``hold`` with a Will from the
    store."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        nodes: SessionNodes,
        receiver: SessionReceiver,
        refusal: RefusalOf,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._nats = context.nats
        self._members = members
        self._nodes = nodes
        self._receiver = receiver
        self._refusal = refusal
        self._reader = context.wire.reader(WillRecord)
        self._watch: Watch | None = None
        self._prefix = members.key + "."
        # Client ID -> the revision of its key. Client IDs whose key has to be checked.
        self._ours: dict[str, int] = {}
        self._pending: dict[str, None] = {}
        self._active: set[str] = set()
        # Node key -> its keys, except those that are marked.
        self._theirs: dict[str, set[str]] = {}
        # From the store: client ID, number, Will, when it is due, its session.
        self._held: list[tuple[str, int, Message, float, Session | None]] = []
        # Wills that are due and that another node may have published, with their numbers in the store: their keys are
        # deleted first.
        self._unclaimed: dict[str, tuple[Message, int]] = {}
        # Clients whose key still has a Will that has ended here.
        self._over: set[str] = set()
        # Clients whose key has a Will of this node's earlier data, which is not published yet.
        self._earlier: set[str] = set()
        # Wills of this node that another one has published; those about which a program is still asked.
        self._marked: set[str] = set()
        self._elsewhere: set[str] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._timers: set[asyncio.TimerHandle] = set()
        self._current = False
        self._withdrawn = False
        # Of the Wills of this node that the bucket has.
        self._changes = Changes()
        self._stopped = False

    def start(self) -> None:
        """Start, after the node's sessions are restored and it knows which node has each session."""
        self._nats.on_connected.append(self._pump)
        self._nats.on_lost.append(self._lost)
        self._members.on_joined.append(self._pump)
        self._members.on_change.append(self._changed_status)
        self._members.on_removed.append(self._removed)
        self._watch = self._nats.watch(BUCKET, self._entry, self._is_current)

    async def stop(self) -> None:
        self._stopped = True
        if self._watch is not None:
            self._watch.stop()
        for handle in self._timers:
            handle.cancel()
        if self._retry is not None:
            self._retry.cancel()
        await self._tasks.stop()

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        def due() -> None:
            self._timers.discard(handle)
            call()

        handle = asyncio.get_running_loop().call_later(seconds, due)
        self._timers.add(handle)

    async def withdraw(self) -> None:
        """Delete this node's keys, because it leaves: then no other node publishes its Wills.

        :raises ChangeRefused: not all keys could be deleted.
        """
        self._withdrawn = True
        for client_id in (*self._ours, *self._active):
            self._pending[client_id] = None
        self._pump()
        timeout = self._context.settings.call_timeout
        if not await until(lambda: self._current and not self._has_any(), self._changes, timeout=timeout):
            self.offer()
            raise ChangeRefused("NATS accepts no writes now: the Wills of this node are still stored")

    def _has_any(self) -> bool:
        return bool(self._ours or self._active or self._unclaimed)

    def offer(self) -> None:
        """Write this node's Wills, because it is or remains a member: the others publish them when it dies."""
        self._withdrawn = False
        self._look_at_all()
        self._pump()

    # --------------------------------------------------------------------- ours

    def changed(self, client_id: str) -> None:
        """Check the key of a client whose Will is active now, waits for its delay, or was deleted."""
        if self._current and client_id in self._ours and client_id not in self._unclaimed:
            if not self._has_will(client_id):
                self._over.add(client_id)
        if self._stopped or client_id in self._pending:
            return
        if not self._pending and self._current:
            asyncio.get_running_loop().call_soon(self._pump)
        self._pending[client_id] = None

    def hold_due(self, client_id: str, will: Message, number: int) -> bool:
        """Implement ``core.cluster.Cluster.hold_will``."""
        if client_id in self._elsewhere:
            self._elsewhere.discard(client_id)
            if number and self._broker.durability is not None:
                self._broker.durability.node.will_gone(number)
            self.changed(client_id)
            return True
        if self._stopped or not self._has_key(client_id) or not self._members.check.others_may_act:
            return False
        self._hold(client_id, will, number)
        return True

    def _has_key(self, client_id: str) -> bool:
        """Return whether the bucket may have the client's present Will. If it does not, no other node publishes that
        Will."""
        if client_id in self._unclaimed or client_id in self._over or client_id in self._earlier:
            return False  # the key has an earlier Will
        return client_id in self._ours or client_id in self._active

    def _hold(self, client_id: str, will: Message, number: int) -> None:
        self._unclaimed[client_id] = (will, number)
        self.changed(client_id)

    def _has_will(self, client_id: str) -> bool:
        channel = self._context.channels.channels.get(client_id)
        session = self._broker.sessions.get(client_id)
        return (
            (channel is not None and channel.will is not None)
            or (session is not None and session.will is not None)
            or self._broker.life.asks_about_will(client_id)
        )

    def _wanted(self, client_id: str) -> records.WillStored | None:
        """Return the value that the bucket should have for a client's Will."""
        if self._withdrawn or client_id in self._unclaimed:
            return None
        now, skew = self._context.clock.now(), self._context.clock.skew
        channel = self._context.channels.channels.get(client_id)
        if channel is not None:
            will = channel.will
            if will is None or channel.writer.session is None:
                return None
            message = as_message(channel, will, now)
            approved = authorize_will(channel, will.topic, now) is None
            delay = int(will.properties.get(WILL_DELAY_INTERVAL, 0))
            client = channel.client
            if channel.session is not None:
                delay = min(delay, channel.session.expiry_interval)
            return records.WillStored(
                0, body_of(message, skew), delay, 0.0, client.mountpoint, client.listener, approved
            )
        session = self._broker.sessions.get(client_id)
        if session is None or session.will is None or not isinstance(session.will_timer, Timer):
            return None
        publisher = session.will.publisher
        mountpoint, listener = ("", "") if publisher is None else (publisher.mountpoint, publisher.listener)
        due = session.will_timer.when + skew
        return records.WillStored(0, body_of(session.will, skew), 0, due, mountpoint, listener, True)

    def _pump(self) -> None:
        self._changes.tell()
        if self._stopped or not self._current or self._retry is not None:
            return
        if not (self._members.joined and self._nats.connected):
            return
        for client_id in list(self._pending):
            if len(self._active) >= _WRITES:
                return
            if client_id in self._active:
                continue
            del self._pending[client_id]
            wanted = self._wanted(client_id)
            if wanted is not None or self._withdrawn:
                self._earlier.discard(client_id)
            elif client_id in self._earlier:
                continue
            elif client_id not in self._unclaimed and self._broker.life.asks_about_will(client_id):
                continue  # the key stays until there is an answer
            if wanted is not None or client_id in self._ours or client_id in self._unclaimed:
                self._active.add(client_id)
                self._tasks.run(self._put(client_id, wanted))

    async def _put(self, client_id: str, wanted: records.WillStored | None) -> None:
        value = None if wanted is None else self._context.wire.write(WillRecord(client_id, wanted))
        key = self._prefix + thing_key(client_id)
        if value is not None and not fits(value, self._nats.max_payload):
            self._context.refusals.add(TOO_LARGE, self._context.node, MAX_PAYLOAD)
            wanted = value = None  # an earlier Will must not be published in its place
        try:
            made = await self._nats.write(BUCKET, key, value, self._ours.get(client_id, 0), self._context.nonce())
        except (WrongRevision, Unknown, Unavailable, NoAnswer, TooLarge) as error:
            self._pending[client_id] = None
            if isinstance(error, Unknown):
                self._ours.setdefault(client_id, 0)  # the key may exist
            await self._read_own(client_id, key, error)
        else:
            if wanted is None:
                self._ours.pop(client_id, None)
            else:
                self._ours[client_id] = made
            if client_id not in self._pending:
                self._over.discard(client_id)
            if wanted is None and client_id in self._unclaimed:
                will, number = self._unclaimed.pop(client_id)
                self._broker.life.publish_will_late(will, number)
                self.changed(client_id)  # the client may have another Will by now
        finally:
            self._active.discard(client_id)
        self._pump()

    async def _read_own(self, client_id: str, key: str, error: Exception) -> None:
        try:
            if isinstance(error, WrongRevision):
                entry = await self._nats.read(BUCKET, key)
                if entry is None or entry.value is None:
                    self._ours.pop(client_id, None)
                    self._over.discard(client_id)
                else:
                    self._entry(entry)
                return
        except (Unavailable, NoAnswer):
            pass
        if self._retry is None and not self._stopped:
            self._retry = asyncio.get_running_loop().call_later(RETRY, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._pump()

    # --------------------------------------------------------------- the bucket

    def _read(self, entry: BucketEntry) -> tuple[Header, WillRecord] | None:
        """Return the header and the record of an entry."""
        found = None if entry.value is None else self._reader.value(entry.value)
        if found is None:
            return None
        header, record = found
        will = record.will
        _, _, thing = entry.key.partition(".")
        times = 0 <= will.delay <= NEVER_EXPIRES and valid_time(will.due_at)
        if thing_key(record.client_id) != thing or not times or not valid_body(will.body):
            self._context.refusals.add(MALFORMED, header.node, "-")
            return None
        return found

    def _entry(self, entry: BucketEntry) -> None:
        node, _, _ = entry.key.partition(".")
        if node != self._members.key:
            keys = self._theirs.setdefault(node, set())
            found = self._read(entry)
            if found is None or found[1].published_by:
                keys.discard(entry.key)
            else:
                keys.add(entry.key)
            return
        found = self._read(entry)
        if found is None:
            return
        header, record = found
        client_id = record.client_id
        if entry.revision < self._ours.get(client_id, 0):
            return
        self._ours[client_id] = entry.revision
        if record.published_by:
            self._published_elsewhere(client_id, record.published_by)
        elif header.uid != self._context.wire.uid and not self._current:
            # It is of this node's earlier data, at level memory, or of an earlier node of this name.
            self._earlier.add(client_id)
            self._tasks.run(self._publish_own(client_id, entry.key, header.uid))

    def _published_elsewhere(self, client_id: str, node: str) -> None:
        """Delete a Will of this node, because another node has published it while this one did not answer."""
        if client_id in self._earlier:
            self._end_earlier(client_id)
            return
        logger.warning("will_published_elsewhere client_id=%s node=%s setting=cluster.will_grace", client_id, node)
        held = self._unclaimed.pop(client_id, None)
        if self._broker.life.asks_about_will(client_id):
            self._elsewhere.add(client_id)
            self._over.add(client_id)
            return
        if held is not None or client_id in self._over:
            # It was this Will, or one that has ended here: a later Will of the client is not published.
            if held is not None and held[1] and self._broker.durability is not None:
                self._broker.durability.node.will_gone(held[1])
            self._over.add(client_id)
            self.changed(client_id)
            return
        self._marked.add(client_id)
        channel = self._context.channels.channels.get(client_id)
        session = self._broker.sessions.get(client_id)
        if channel is not None and self._current:
            channel.will = None
        if session is not None:
            self._broker.life.drop_will(session)
        self.changed(client_id)

    def _is_current(self) -> None:
        """Continue after the watch has reported the whole bucket."""
        self._current = True
        self.publish_held()
        self._look_at_all()
        for peer in self._members.peers.values():
            if peer.status == STOPPED:
                self._later(self._context.settings.will_grace, partial(self._publish_all_of, peer))
        self._pump()

    def _look_at_all(self) -> None:
        for client_id in self._ours:
            self._pending[client_id] = None
        for client_id, channel in self._context.channels.channels.items():
            if channel.will is not None:
                self._pending[client_id] = None
        for session in self._broker.sessions:
            if session.will is not None:
                self._pending[session.client_id] = None

    def _lost(self, bucket: str) -> None:
        if bucket == BUCKET:
            self._ours.clear()
            self._over.clear()
            self._earlier.clear()
            self._theirs.clear()

    # ---------------------------------------------------------- from the store

    def hold(self, number: int, will: Message, due: float, session: Session | None) -> None:
        """Hold a Will from the store, because another node may have published it."""
        client_id = "" if will.publisher is None else will.publisher.client_id
        self._held.append((client_id, number, will, due, session))
        if session is not None:
            if session.will is not None:
                # It was due before its client came back and this node stopped.
                earlier = session.will
                self._held = [(*each[:4], None) if each[2] is earlier else each for each in self._held]
            session.will, session.will_number = will, number

    def publish_held(self) -> None:
        """Publish held Wills, except those that another node has published, as soon as this is known. If this node has
        left, no other node has published any."""
        held, self._held = self._held, []
        now = self._context.clock.now()
        durability = self._broker.durability
        assert durability is not None or not held
        for client_id, number, will, due, session in held:
            if session is not None and session.will is not will:
                continue  # the client came back, or another node has published the Will
            if session is not None and due > now:
                self._broker.life.will_at(session, will, number, due)
                continue
            if session is not None:
                session.will, session.will_number = None, 0
            if client_id in self._marked:
                if durability is not None:
                    durability.node.will_gone(number)
            elif self._has_key(client_id):
                self._hold(client_id, will, number)
            else:
                self._broker.life.publish_will_late(will, number)

    async def _publish_own(self, client_id: str, key: str, uid: str) -> None:
        await self._publish_one(None, key, self._context.clock.wall(), uid)
        self._end_earlier(client_id)

    def _end_earlier(self, client_id: str) -> None:
        """Check the key again, because the Will of this node's earlier data was published, or no longer exists."""
        if client_id in self._earlier:
            self._earlier.discard(client_id)
            self.changed(client_id)

    # ------------------------------------------------------------------- theirs

    def _changed_status(self, peer: Peer, before: str) -> None:
        if peer.status == STOPPED and before != STOPPED:
            self._later(self._context.settings.will_grace, partial(self._publish_all_of, peer))

    def _removed(self, peer: Peer) -> None:
        """Publish the Wills of a removed node without waiting for it. If this node itself leaves, its clients stay
        connected, and if it joins again, the watch does not report their Wills again."""
        if not self._members.left:
            self._publish_all_of(peer, removed=True)

    def _publish_all_of(self, peer: Peer, removed: bool = False) -> None:
        if self._stopped or peer.status != STOPPED or self._members.outside:
            return
        if peer.may_run and not removed:
            self._later(RETRY, partial(self._publish_all_of, peer))  # it has not had the time to be heard yet
            return
        keys = list(self._theirs.get(peer.key, ()))
        if keys:
            logger.info("wills_of_stopped_node node=%s wills=%s", peer.name, len(keys))
            self._tasks.run(self._publish_keys(peer, keys))
        if removed:
            self._theirs.pop(peer.key, None)

    async def _publish_keys(self, peer: Peer, keys: list[str]) -> None:
        for key in keys:
            try:
                await self._publish_one(peer, key, peer.since)
            except Exception:  # a fault with one Will must not affect the others
                logger.exception("will_not_published key=%s", key)

    async def _publish_one(self, peer: Peer | None, key: str, since: float, uid: str = "") -> None:
        """Publish the Will of a key if it is due and no node has published it. ``peer`` is the node of the Will, or
        ``None`` if it is a Will of this node from before its start. The client was disconnected at ``since`` at the
        latest. ``uid`` is the uid of the node's data that the Will belongs to, if it is known: the key may have a later
        Will, of other data with this name."""
        while not (self._stopped or self._members.outside) and (peer is None or peer.status == STOPPED):
            try:
                entry = await self._nats.read(BUCKET, key)
                found = None if entry is None else self._read(entry)
                if entry is None or found is None or found[1].published_by:
                    return
                header, record = found
                if (uid and header.uid != uid) or self._is_of_replacement(peer, header):
                    return
                uid = header.uid
                wait = (record.will.due_at or since + record.will.delay) - self._context.clock.wall()
                if wait > 0 and peer is None:
                    await asyncio.sleep(wait)
                    continue
                if wait > 0:
                    # Other Wills of that node must not wait for it.
                    self._later(wait, partial(self._publish_soon, peer, key, since, uid))
                    return
                # The client and topic are enough: with this node's name, the whole Will may be more than NATS allows.
                body = msgspec.structs.replace(record.will.body, payload=b"", properties={})
                will = msgspec.structs.replace(record.will, body=body)
                marked = WillRecord(record.client_id, will, self._context.node)
                value = None if peer is None else self._context.wire.write(marked)
                await self._nats.write(BUCKET, key, value, entry.revision, self._context.nonce())
            except WrongRevision:
                continue
            except (Unavailable, Unknown, NoAnswer) as error:
                # This node may have marked it now: then no node publishes it, which is better than two.
                logger.warning("will_not_claimed key=%s error=%s", key, error)
                await asyncio.sleep(RETRY)
                continue
            self._publish(record, header)
            return

    def _publish_soon(self, peer: Peer | None, key: str, since: float, uid: str) -> None:
        self._tasks.run(self._publish_one(peer, key, since, uid))

    def _is_of_replacement(self, peer: Peer | None, header: Header) -> bool:
        """Return whether the record was written by a node with the name of a removed one."""
        present = None if peer is None else self._members.peers.get(peer.name)
        return present is not None and present is not peer and header.uid == present.uid

    def _publish(self, record: WillRecord, writer: Header) -> None:
        will = record.will
        client_id = record.client_id
        delayed = bool(will.due_at or will.delay)
        place = self._nodes.place(client_id)
        back = place is not None and place.node != "" and (place.node, place.uid) != (writer.node, writer.uid)
        if delayed and (back or client_id in self._context.channels.channels):
            return  # the client came back within the delay [MQTT-3.1.3-9]
        message = self._receiver.message(will.body, will.listener, will.mountpoint)
        refusal = self._refusal(message, will.approved)
        if refusal is not None:
            self._broker.life.will_refused(client_id, message.topic, refusal, self._context.clock.now())
            return
        logger.info("will_of_stopped_node client_id=%s node=%s", client_id, writer.node)
        self._broker.life.publish_will_late(message)
