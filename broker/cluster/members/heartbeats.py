"""Heartbeats: which nodes run, by the heartbeats that this node hears.

Each node sends a heartbeat every second, which names the nodes that it hears. Each node decides by its own clock about
each of the others::

    Running   ── nothing heard for cluster.suspect_after ──►  Suspect
              ── nothing heard for cluster.stopped_after ──►  Stopped
    Stopped   ── a heartbeat ──►  Running

If another running node still hears a Stopped one, the network is partitioned.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...core.cluster import RUNNING, STOPPED, SUSPECT
from ..context import ClusterContext
from ..wire import OLDEST, VERSION, Heartbeat
from .membership_check import HEARTBEAT, MembershipCheck
from .own_record import OwnRecord
from .peer import Peer

logger = logging.getLogger(__name__)

_AGREES: Final = 2 * HEARTBEAT
"""Seconds within which other nodes notice a change of this node."""


class Heartbeats:
    """Sends the heartbeats of this node, and keeps ``Peer.status`` of the others. ``Members`` calls it each second.

    ``peers``: the other nodes by name. ``changed``: is called with a node whose status has changed, and its previous
    status. ``number``: how many heartbeats this node has sent.
    """

    def __init__(
        self,
        context: ClusterContext,
        peers: dict[str, Peer],
        own_record: OwnRecord,
        check: MembershipCheck,
        changed: Callable[[Peer, str], None],
    ) -> None:
        self._context = context
        self._nats = context.nats.raw
        self._wire = context.wire
        self._peers = peers
        self._own_record = own_record
        self._check = check
        self._changed = changed
        self._reader = context.wire.reader(Heartbeat)
        self._subject = context.subject("alive")
        self.number = 0
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start listening to the other nodes' heartbeats."""
        self._loop = asyncio.get_running_loop()
        self._nats.subscribe(self._subject, self.heard)

    def beat(self, leaving: bool = False) -> None:
        """Send a heartbeat. ``leaving``: this node stops, or leaves the cluster."""
        self.number += 1
        if self._nats.connected:
            self._check.beat()
        hears = [each.key for each in self._peers.values() if each.status == RUNNING]
        self._nats.publish(self._subject, self._wire.write(Heartbeat(self.number, (OLDEST, VERSION), hears, leaving)))

    def heard(self, data: bytes, _: str) -> None:
        """Handle a heartbeat of another node."""
        header = self._wire.header(data)
        if header is None:
            return
        if header.node == self._context.node:
            if (header.uid, header.incarnation) != (self._wire.uid, self._wire.incarnation):
                self._own_record.name_heard = True
            return
        found = self._reader.message(data)
        if found is None:
            return
        peer = self._peers[header.node]
        beat = found[1]
        peer.hears = beat.hears
        peer.heard = -1e9 if beat.leaving else self._loop.time()
        peer.unheard_until = -1e9
        if peer.versions != beat.versions:
            peer.versions = beat.versions
            self._agree()
        if beat.leaving:
            peer.stopped_at = self._loop.time()
        if beat.leaving or peer.status != RUNNING:
            self._set_status(peer, STOPPED if beat.leaving else RUNNING)

    def was_paused(self, seconds: float) -> None:
        """Note that this process was paused: heartbeats that arrived in the meantime have not been read yet."""
        for peer in self._peers.values():
            peer.heard += seconds
            peer.unheard_until += seconds

    def look(self) -> None:
        """Decide which nodes run."""
        settings = self._context.settings
        now = self._loop.time()
        for peer in list(self._peers.values()):
            age = now - peer.heard
            if age >= settings.stopped_after:
                status = STOPPED
            else:
                status = SUSPECT if age >= settings.suspect_after else RUNNING
            if status != peer.status:
                self._set_status(peer, status)
        self.look_for_partition()

    def began_again(self, peer: Peer) -> None:
        """Regard a node as Stopped until its next start is heard, which has just written its record."""
        now = self._loop.time()
        peer.status = STOPPED
        peer.heard = -1e9
        peer.lost_at = peer.stopped_at = now
        peer.unheard_until = now + self._context.settings.stopped_after
        peer.since = self._context.clock.wall()

    def _set_status(self, peer: Peer, status: str) -> None:
        before, peer.status = peer.status, status
        peer.since = self._context.clock.wall()
        alarms = self._context.alarms
        if status == STOPPED:
            peer.lost_at = self._loop.time()
            details = {"node": peer.name, "setting": "cluster.stopped_after"}
            alarms.activate(f"node_down/{peer.name}", f"node {peer.name} is stopped or cannot be reached", details)
        elif status == RUNNING:
            alarms.deactivate(f"node_down/{peer.name}")
            self._agree()
        self._changed(peer, before)

    def _agree(self) -> None:
        """Use the newest wire version that every node reads."""
        newest = min([VERSION, *(each.versions[1] for each in self._peers.values() if each.running)])
        if newest != self._wire.version and newest >= OLDEST:
            logger.info("cluster_wire_version version=%s", newest)
            self._wire.write_version(newest)

    def look_for_partition(self) -> None:
        """Find nodes on the other side of a partition: those that this node does not hear and another one does. A
        heartbeat from about the time of the stop is ignored: its sender was about to notice the stop, or this node has
        just started."""
        running = [each for each in self._peers.values() if each.status == RUNNING]
        lost = [each for each in self._peers.values() if each.status == STOPPED]
        cut = sorted(
            each.name
            for each in lost
            if any(each.key in other.hears and other.heard > each.lost_at + _AGREES for other in running)
        )
        if cut:
            details = {"nodes": ", ".join(cut)}
            self._context.alarms.activate("partition", f"other nodes hear {', '.join(cut)}, this one does not", details)
        else:
            self._context.alarms.deactivate("partition")
