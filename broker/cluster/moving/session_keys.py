"""SessionKeys: which node has the session of a Client Identifier. Bucket ``sessions`` has a key for each session that
outlives its connection. A session begins, moves and ends by a compare-and-set on its key.

An unanswered write may be applied later. It is sent again with the same nonce until there is an answer. If there is
none in time, ``_settle`` reads the key from the leader and writes it once more, so that the late write finds another
revision. Until then, a table records the node that had the session, so that a restart does not change it. The same
applies to a session that another node has asked for, until it is certain which node has it: after a restart of this
node, the other node may still write.

A session may begin again or move on, and then end, while a node is away. That node would mistake its own copy for the
session if it found no key. Therefore the key stays, without a node, until the nodes that it names have seen it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec

from ...session.client_info import ClientInfo
from ...session.session import Session
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..nats.interface import BucketEntry, NoAnswer, Unavailable, Unknown, Watch, WrongRevision
from ..tasks import Tasks
from ..wire import SessionKey, thing_key
from .key_locks import KeyLocks
from .known_places import KnownPlaces
from .session_nodes import Moves, SessionPlace

logger = logging.getLogger(__name__)

BUCKET: Final = "sessions"
TABLE: Final = "session_keys_unanswered"
TABLE_ENDED: Final = "session_keys_ended"
RETRY: Final = 1.0
_ANSWER: Final = 5.0
"""Maximum seconds for the answer to a write for which no client waits."""
_SETTLED_AT_A_TIME: Final = 200


class NotStored(Exception):
    """The disk has not confirmed a change."""


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``session_keys_ended``: this node's copy of the session was deleted, because the session has ended
    according to its key with this revision. If this node has a session of the client while the key has that revision,
    the session is a newer one."""

    revision: int


class SessionKeys:
    """The keys of bucket ``sessions``, which this node reads and writes. ``Claims`` takes and returns keys for a
    CONNECT; the parts of a move ask questions (``SessionNodes``). ``places`` contains the contents of the bucket as
    reported."""

    def __init__(self, context: ClusterContext, members: Members, moves: Moves) -> None:
        self._context = context
        self._nats = context.nats
        self._members = members
        self._moves = moves
        self._watch: Watch | None = None
        self._current = asyncio.Event()
        self.places = KnownPlaces(context)
        self._locks = KeyLocks()
        # Clients whose key must be checked: the session has ended, or begun without a key, or a write was not answered.
        self._to_settle: dict[str, None] = {}
        # For each client whose key was taken from another node and whose session has not begun: whether it still waits.
        self._beginning: dict[str, Callable[[], bool]] = {}
        # After an unanswered write: which node had the session, to restore the key if that write was applied. If
        # another node has asked for a session: that this node has it.
        self._unanswered = context.tables.open(TABLE, SessionKey)
        self._ended = context.tables.open(TABLE_ENDED, Ended)
        # Sessions whose end is not on disk, because the disk has an error: the key stays until it is.
        self._not_stored: set[str] = set()
        self._tasks = Tasks()
        self._retry: asyncio.TimerHandle | None = None
        self._stopped = False

    # -------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Read which node has each session, and write the keys of this node's sessions. Called when the sessions are
        restored."""
        self._nats.on_connected.append(self._pump)
        self._nats.on_lost.append(self._lost)
        self._members.on_joined.append(self._pump)
        self._members.on_removed.append(self._removed)
        self._to_settle.update((client_id, None) for client_id, _ in self._unanswered.items())
        self._watch = self._nats.watch(BUCKET, self._entry, self._is_current)
        if not self._nats.quorum:
            return
        try:
            async with asyncio.timeout(self._context.settings.takeover_timeout):
                await self._current.wait()
        except TimeoutError:
            logger.warning("cluster_sessions_unknown setting=cluster.takeover_timeout")

    async def stop(self) -> None:
        self._stopped = True
        if self._watch is not None:
            self._watch.stop()
        if self._retry is not None:
            self._retry.cancel()
        await self._tasks.stop()

    # -------------------------------------------------------------- the bucket

    def _entry(self, entry: BucketEntry) -> None:
        places = self.places
        if places.is_old(entry.key, entry.revision):
            return
        found = places.read(entry)
        if found is not None:
            header, value = found
            self._note(entry.key, value, entry.revision)
            if self.has(value.client_id):
                if header.node != self._context.node:
                    self._moves.returned(value.client_id)
                elif value.client_id not in self._context.broker.sessions and value.client_id not in self._locks:
                    # It was taken by an earlier life of this node.
                    asyncio.get_running_loop().call_later(RETRY, self.look_at, value.client_id)
        elif entry.value is None:
            client_id = places.forget(entry.key)
            self._over_no_more(entry.key)
            if client_id is not None:
                self.settle_soon(client_id)
        elif entry.key in places.ours:
            self.settle_soon(places.ours[entry.key])  # this node writes a readable value again
        else:
            places.note_unreadable(entry.key, entry.revision)

    def _note(self, key: str, value: SessionKey, revision: int) -> None:
        """Note the value of a key in the bucket."""
        places = self.places
        if places.is_old(key, revision):
            return
        client_id = value.client_id
        before = places.by_key.get(key)
        place = places.note(key, value, revision)
        if place.node:
            self._over_no_more(key)
        if places.is_ours(place):
            wanted = [node for node, wanted in value.earlier.items() if wanted and not value.clean_start]
            self._moves.went_on_without(client_id, wanted)
            return
        self._moves.went_on_without(client_id, [])
        node = self._context.node
        session = self._context.broker.sessions.get(client_id)
        if not place.node:
            if node in value.earlier or (session is not None and session.persistent):
                self.settle_soon(client_id)
            return
        if session is not None and place.node != node:
            unwanted = value.clean_start or not value.earlier.get(node, True)
            anew = unwanted or node in value.earlier
            last_epoch = before.revision if before is not None and places.is_ours(before) else 0
            self._moves.lost(session, place.node, revision, unwanted, anew, last_epoch)

    def _over_no_more(self, key: str) -> None:
        """Handle a change or deletion of a key whose session had ended."""
        client_id = self.places.over.pop(key, None)
        if client_id is not None:
            self._ended.remove(client_id)

    def _is_current(self) -> None:
        """Continue after the watch has reported the whole bucket."""
        self._look_at_all()
        self._current.set()
        self._pump()

    def joined_again(self) -> None:
        """Compare all sessions with the bucket, because this node was on its own after ``leave``, but followed the
        bucket."""
        self._look_at_all()
        self._pump()

    def _look_at_all(self) -> None:
        """Write keys for sessions without a key, and delete keys without a session."""
        broker = self._context.broker
        for client_id in self.places.ours.values():
            if client_id not in broker.sessions:
                self._to_settle[client_id] = None
        for session in broker.sessions:
            if session.persistent and thing_key(session.client_id) not in self.places.by_key:
                self._to_settle[session.client_id] = None
        for client_id, ended in list(self._ended.items()):
            known = self.place(client_id)
            if known is None or known.revision != ended.revision:
                self._ended.remove(client_id)
        for key, place in list(self.places.by_key.items()):
            if place.node == self._context.node and not self.is_ours(place):
                self._tasks.run(self._delete_key(key))  # of this node's earlier data, which no longer exists

    def _lost(self, bucket: str) -> None:
        """Write the keys of this node's sessions again, because the bucket is empty. Every running node does this."""
        if bucket == BUCKET:
            self.places.clear()
            for key in list(self.places.over):
                self._over_no_more(key)

    async def _delete_key(self, key: str) -> None:
        place = self.places.by_key[key]
        with contextlib.suppress(WrongRevision, Unknown, Unavailable):
            await self._nats.write(BUCKET, key, None, place.revision, self._context.nonce())

    def _removed(self, peer: Peer) -> None:
        """End the sessions of a removed node. If this node itself leaves, the other nodes keep their sessions."""
        if self._members.left:
            return
        places = self.places.of_node(peer.name)
        if places:
            self._tasks.run(self._end_sessions_of(peer.name, places))
        for key, client_id in list(self.places.over.items()):
            if peer.name in (self.places.by_key[key].earlier or {}):
                self.settle_soon(client_id)

    async def _end_sessions_of(self, node: str, places: dict[str, SessionPlace]) -> None:
        """Delete the keys of a removed node's sessions. Every node tries this, and the first one succeeds. This takes a
        while: in the meantime, a replacement may use the node's name, and a client may have its session there."""
        ended = 0
        for key, gone in places.items():
            while (place := self.places.by_key.get(key)) is not None and (place.node, place.uid) == (node, gone.uid):
                try:
                    await self._nats.write(BUCKET, key, None, place.revision, self._context.nonce())
                    ended += 1
                except WrongRevision:
                    pass
                except (Unknown, Unavailable):
                    await asyncio.sleep(RETRY)
                    continue
                break
        if ended:
            self._context.broker.metrics.refusals.add("cluster_session_of_removed_node", ended)
        logger.warning("cluster_sessions_ended node=%s sessions=%s", node, ended)

    # ----------------------------------------------------------------- questions

    def node_of(self, client_id: str) -> str | None:
        """As ``KnownPlaces.node_of``."""
        return self.places.node_of(client_id)

    def place(self, client_id: str) -> SessionPlace | None:
        """As ``KnownPlaces.place``."""
        return self.places.place(client_id)

    def is_ours(self, place: SessionPlace) -> bool:
        """As ``KnownPlaces.is_ours``."""
        return self.places.is_ours(place)

    def has(self, client_id: str, revision: int | None = None) -> bool:
        """As ``KnownPlaces.has``."""
        return self.places.has(client_id, revision)

    def peer(self, node: str) -> Peer | None:
        """Return another node, or ``None`` if it is no longer a member."""
        return self._members.peers.get(node)

    @property
    def knows_members(self) -> bool:
        """Return whether this node knows all members."""
        return self._members.known

    @property
    def unfinished(self) -> int:
        """Return the number of keys that this node has yet to change, or whose state is uncertain."""
        return len({*self._to_settle, *self.places.ours.values()}) + len(self._unanswered) + len(self._tasks)

    async def known(self) -> None:
        """Wait until the bucket has reported which node has each session."""
        await self._current.wait()

    def knows(self, client_id: str) -> bool:
        """Return whether a key of this node is as expected: its session is here, or has ended and the key will soon be
        deleted. Otherwise the session may have moved to another node, and the watch may be late."""
        return client_id in self._context.broker.sessions or client_id in self._to_settle

    def is_unknown(self, client_id: str) -> bool:
        """Return whether a copy of the session exists here, and this node has not learned yet which node owns it."""
        session = self._context.broker.sessions.get(client_id)
        return session is not None and session.persistent and self.place(client_id) is None

    def busy(self, client_id: str) -> bool:
        """Return whether a task is working on the key of this session, or is about to."""
        if client_id in self._not_stored and client_id not in self._context.broker.sessions:
            return False  # it may begin elsewhere; a full disk does not keep a client from that
        return client_id in self._locks or client_id in self._to_settle or client_id in self._unanswered

    # --------------------------------------------------------------- for a claim

    def simply_here(self, client_id: str) -> bool | None:
        """Return whether this node has the session of a client, and nothing is left to settle. Return ``None`` if no
        node has a session."""
        busy = client_id in self._locks or client_id in self._unanswered
        if busy or self._moves.leaves(client_id) or self._moves.is_undecided(client_id):
            return False
        place = self.place(client_id)
        if place is None or (not place.node and client_id not in self._context.broker.sessions):
            return None
        return self.is_ours(place) and self.knows(client_id)

    def end_here(self, client_id: str, place: SessionPlace) -> bool:
        """End this node's copy of a session that has ended according to its key, unless it has begun again since.
        Return whether it has now ended."""
        session = self._context.broker.sessions.get(client_id)
        if session is None or not session.persistent or self._has_begun_since(client_id, place):
            return False
        self._ended.put(client_id, Ended(place.revision))
        self._context.broker.life.discard_session(session, self._context.clock.now())
        return True

    def _has_begun_since(self, client_id: str, place: SessionPlace) -> bool:
        """Return whether this node's session of a client is newer than the key of the ended session: while NATS accepts
        no writes, sessions begin without a key. If the client is connected, it keeps the session."""
        if client_id in self._context.channels.channels or self._context.node not in (place.earlier or {}):
            return True
        ended = self._ended.get(client_id)
        return ended is not None and ended.revision == place.revision

    def look_at(self, client_id: str) -> None:
        """Check the key of a client if no session has begun here."""
        without_session = client_id not in self._context.broker.sessions and self.has(client_id)
        if not self._stopped and (without_session or client_id in self._beginning):
            self.settle_soon(client_id)

    def give_back_unless_begun(self, client_id: str, before: SessionKey, waits: Callable[[], bool]) -> None:
        """Give a key back to its node, unless a session begins here: the client may leave or be refused before a
        CONNACK has reported a new session."""
        if not self._beginning:
            self._context.broker.hooks.session_created.add(self._session_created)
        self._beginning[client_id] = waits
        self._unanswered.put(client_id, before)

    def _session_created(self, client: ClientInfo, session: Session) -> None:
        if self._begins_no_more(session.client_id):
            self._unanswered.remove(session.client_id)

    def _begins_no_more(self, client_id: str) -> bool:
        """Cancel the session that was about to begin here for another node's key; return whether there was one."""
        if self._beginning.pop(client_id, None) is None:
            return False
        if not self._beginning:
            self._context.broker.hooks.session_created.remove(self._session_created)
        return True

    def locked(self, client_id: str) -> AbstractAsyncContextManager[None]:
        """Prevent other tasks from changing the key of a client."""
        return self._locks.locked(client_id)

    def _others(self, *earlier: dict[str, bool] | None) -> dict[str, bool]:
        """Return the nodes in these dictionaries that are other members. If several dictionaries name a node, the last
        one counts."""
        found = {node: wanted for each in earlier if each for node, wanted in each.items()}
        found.pop(self._context.node, None)
        if self._members.known:
            found = {node: wanted for node, wanted in found.items() if node in self._members.peers}
        return found

    async def take(
        self,
        client: ClientInfo,
        node: str,
        clean_start: bool,
        before: SessionPlace | None,
        timeout: float,
        earlier: dict[str, bool],
    ) -> bool:
        """Write which node has the session; an empty ``node`` means none. Return False if the key was no longer
        ``before``. ``earlier`` is that of ``wire.SessionKey``, in addition to the one in ``before``.

        :raises Unavailable: it was certainly not written.
        :raises Unknown: it may be written, now or later; a background task settles this.
        """
        client_id = client.client_id
        uid = self._context.wire.uid if node else ""
        made = self._others(None if before is None else before.earlier, earlier)
        if clean_start or not node:
            made = dict.fromkeys(made, False)
        giver = self._moves.giver(client_id) if node else ""
        value = SessionKey(client_id, node, uid, client.owner, clean_start, made, giver) if node or made else None
        key = thing_key(client_id)
        try:
            revision = await self._write(client_id, value, 0 if before is None else before.revision, timeout)
        except WrongRevision:
            await self.read(client_id)
            return False
        except Unknown:
            was = SessionPlace("", "", 0) if before is None else before
            self._unanswered.put(client_id, SessionKey(client_id, was.node, was.uid, earlier=was.earlier or {}))
            self.settle_soon(client_id)
            raise
        return not self.places.is_old(key, revision)

    async def read(self, client_id: str) -> SessionKey | None:
        """Read the key's value from the leader."""
        key = thing_key(client_id)
        entry = await self._nats.read(BUCKET, key)
        if entry is None:
            return None
        self._entry(entry)
        found = self.places.read(entry)
        return None if found is None else found[1]

    async def keep(self, session: Session) -> bool:
        """Write once more that this node has a session, so that a late write of another node finds another revision.
        Return False if another node has it."""
        client_id = session.client_id
        value = await self.read(client_id)
        place = self.place(client_id)
        if value is not None and (place is None or not self.is_ours(place)):
            return False
        earlier = self._others(None if value is None else value.earlier)
        try:
            await self._write(
                client_id, self._key_here(session, earlier), 0 if value is None or place is None else place.revision
            )
        except WrongRevision:
            return False
        return self.has(client_id)

    def key_may_go(self, client_id: str) -> None:
        """Note that the key may change, now or later: another node has asked for the session, or it has ended."""
        self._unanswered.put(client_id, SessionKey(client_id, self._context.node, self._context.wire.uid))

    def may_be_taken(self, client_id: str) -> bool:
        """Return whether the key may still be changed by another node, as far as this node knows."""
        asked = self._unanswered.get(client_id)
        return asked is not None and asked.node == self._context.node

    def key_is_certain(self, client_id: str) -> None:
        """Note that the key has changed, or certainly will not."""
        self._unanswered.remove(client_id)
        place = self.place(client_id)
        if place is not None and not place.node and self._context.node in (place.earlier or {}):
            self.settle_soon(client_id)  # this waited for it

    # ---------------------------------------------------------------------- end

    def session_ended(self, session: Session) -> None:
        """As ``core.cluster.Cluster.session_ended``."""
        client_id = session.client_id
        self._moves.session_ended(session)
        if self.has(client_id):
            self.settle_soon(client_id)

    def settle_soon(self, client_id: str) -> None:
        """Check the key of a client soon, after tasks that already wait for it."""
        self._to_settle.setdefault(client_id, None)
        asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        if self._stopped or not self._current.is_set() or not self._nats.connected or self._retry is not None:
            return
        if self._members.left:
            return
        while self._to_settle and len(self._tasks) < _SETTLED_AT_A_TIME:
            client_id = next(iter(self._to_settle))
            del self._to_settle[client_id]
            self._tasks.run(self._settle_one(client_id))

    async def _settle_one(self, client_id: str) -> None:
        try:
            async with self.locked(client_id):
                await self._settle(client_id)
        except (Unavailable, Unknown, NoAnswer, WrongRevision, NotStored) as error:
            logger.debug("session_key_waits client_id=%s error=%s", client_id, error)
            self._to_settle[client_id] = None
            if self._retry is None and not self._stopped:
                self._retry = asyncio.get_running_loop().call_later(RETRY, self._try_again)
        else:
            asyncio.get_running_loop().call_soon(self._pump)

    def _try_again(self) -> None:
        self._retry = None
        self._pump()

    async def settle_unanswered(self, client_id: str) -> None:
        """Settle an abandoned write, which may have been applied, before any other change of this key. The caller has
        its lock."""
        if client_id in self._unanswered:
            await self._settle(client_id)

    async def settle_earlier_life(self, client_id: str, node: str) -> None:
        """Wait until a write from before this node's start can no longer be applied: the node died while it was writing
        that it has a session of ``node``."""
        place = self.place(client_id)
        if place is None or place.node != node:
            return
        self._unanswered.put(client_id, SessionKey(client_id, node, place.uid, earlier=place.earlier or {}))
        while client_id in self._unanswered:
            # Without the lock: a claim has it until this is decided, and does not change the key in the meantime.
            with contextlib.suppress(Unavailable, Unknown, NoAnswer, WrongRevision, NotStored):
                await self.settle_unanswered(client_id)
            if client_id in self._unanswered:
                await asyncio.sleep(RETRY)

    async def _settle(self, client_id: str) -> None:
        """Make the key of a client correct."""
        if self._moves.leaves(client_id):
            return
        waits = self._beginning.get(client_id)
        if waits is not None and waits():
            asyncio.get_running_loop().call_later(RETRY, self.look_at, client_id)
            return
        self._begins_no_more(client_id)
        back = self._unanswered.get(client_id)
        key = thing_key(client_id)
        entry = await self._nats.read(BUCKET, key)
        if entry is not None:
            self._entry(entry)
            if self._moves.leaves(client_id):
                return  # it was on its way: this stays noted until it has arrived
        found = self.places.read(entry)
        value = None if found is None else found[1]
        revision = 0 if entry is None or entry.value is None else entry.revision
        session = self._context.broker.sessions.get(client_id)
        stays = session is not None and session.persistent
        ours = value is not None and value.node == self._context.node and value.uid == self._context.wire.uid
        if value is not None and not ours:
            if back is not None and value.node == back.node:
                await self._write(client_id, value, revision)
            elif not value.node:
                await self._settle_ended(client_id, value, revision)
        elif value is not None and stays:
            if back is not None and back.node == self._context.node:
                await self._write(client_id, value, revision)
        elif ours and value is not None:
            if back is not None and back.node not in ("", self._context.node):
                await self._write(client_id, msgspec.structs.replace(back, owner=back.owner or value.owner), revision)
            else:
                earlier = self._others(value.earlier, self._moves.untold(client_id))
                await self._write_end(client_id, self._key_of_ended(client_id, earlier), revision)
        elif value is None and stays and session is not None and not self._moves.is_undecided(client_id):
            await self._write(client_id, self._key_here(session, {}), revision)
        elif value is None and back is not None:
            await self._write(client_id, None, revision)
        self._unanswered.remove(client_id)
        self._not_stored.discard(client_id)

    async def _settle_ended(self, client_id: str, value: SessionKey, revision: int) -> None:
        """End this node's copy of a session that continued without this node and has ended elsewhere."""
        session = self._context.broker.sessions.get(client_id)
        earlier = self._others(value.earlier)
        place = SessionPlace("", "", revision, value.earlier)
        if session is not None and session.persistent and self._has_begun_since(client_id, place):
            await self._write(client_id, self._key_here(session, earlier), revision)
            return
        if not self.end_here(client_id, place) and earlier == value.earlier:
            return
        await self._write_end(client_id, self._key_of_ended(client_id, earlier), revision)

    async def _write_end(self, client_id: str, value: SessionKey | None, revision: int) -> None:
        """Write the end of a session to the bucket, after it is on disk: otherwise the session would be back after this
        node's next start, without a key."""
        if not await self._context.tables.stored():
            self._not_stored.add(client_id)
            raise NotStored
        try:
            await self._write(client_id, value, revision)
        except Unknown:
            self.key_may_go(client_id)  # so that no session begins with this key
            raise

    def _key_here(self, session: Session, earlier: dict[str, bool]) -> SessionKey:
        wire = self._context.wire
        giver = self._moves.giver(session.client_id)
        return SessionKey(session.client_id, self._context.node, wire.uid, session.owner, False, earlier, giver)

    def _key_of_ended(self, client_id: str, earlier: dict[str, bool]) -> SessionKey | None:
        """Return the value that the key of an ended session needs, or ``None`` if no node could mistake its copy for
        the session."""
        return SessionKey(client_id, "", "", earlier=dict.fromkeys(earlier, False)) if earlier else None

    async def _write(self, client_id: str, value: SessionKey | None, revision: int, timeout: float = _ANSWER) -> int:
        key = thing_key(client_id)
        data = None if value is None else self._context.wire.write(value)
        made = await self._nats.write(BUCKET, key, data, revision, self._context.nonce(), timeout)
        if value is not None:
            self._note(key, value, made)
        elif not self.places.is_old(key, made):
            self._over_no_more(key)
            self.places.note_deleted(key, made)
        return made
