"""Admission: decides which nodes' messages this node reads.

This node reads the messages of known members, and of these only what their present start has sent. All other messages
are refused and counted by reason. Two reasons are normal and not logged: the last messages of a node that has just
left, and the first messages of a new node, which may arrive before its record.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ..context import ClusterContext
from ..wire import HAS_LEFT, NOT_KNOWN_YET, OLD_INCARNATION, OWN_NAME, UNKNOWN_NODE, Header, MemberRecord
from .peer import Peer, forced_out_of

_MOST_UNKNOWN: Final = 256


class Admission:
    """``peers``: the other nodes by name. ``has_left``: whether this node has left the cluster, and knows no other
    node."""

    def __init__(self, context: ClusterContext, peers: dict[str, Peer], has_left: Callable[[], bool]) -> None:
        self._node = context.node
        self._settings = context.settings
        self._refusals = context.wire.refusals
        self._peers = peers
        self._has_left = has_left
        # Of other nodes by name: the uids that were removed; the uid of a node that has left, and when.
        self._forced_out_uids: dict[str, tuple[str, ...]] = {}
        self._left_at: dict[str, tuple[str, float]] = {}
        # When a start of a node without a record here was first heard.
        self._unknown: dict[Header, float] = {}
        context.wire.admits = self._admits

    def note_record(self, record: MemberRecord) -> None:
        """Note that another node's record was written."""
        self._forced_out_uids[record.node] = forced_out_of(record)

    def note_left(self, peer: Peer) -> None:
        """Note that a node has left in an orderly way."""
        self._left_at[peer.name] = (peer.uid, asyncio.get_running_loop().time())

    def forget_unknown(self) -> None:
        """Forget all nodes, because this node leaves the cluster: after it joins again, every node that it hears is
        new."""
        self._unknown.clear()

    def _admits(self, header: Header) -> bool:
        peer = self._peers.get(header.node)
        if peer is not None and header.uid == peer.uid and header.incarnation == peer.incarnation:
            return True
        if header.node == self._node:
            self._refusals.add(OWN_NAME, header.node, "-")
        elif self._has_left():
            pass
        elif peer is not None and header.uid == peer.uid and header.incarnation < peer.incarnation:
            self._refusals.add(OLD_INCARNATION, header.node, "-")
        elif self._has_just_left(header):
            self._refusals.count(HAS_LEFT)
        elif self._may_be_told(header):
            self._refusals.count(NOT_KNOWN_YET)
        else:
            self._refusals.add(UNKNOWN_NODE, header.node, "-")
        return False

    def _has_just_left(self, header: Header) -> bool:
        """Return whether the node left in an orderly way a moment ago: messages that it sent earlier may still
        arrive."""
        uid, when = self._left_at.get(header.node, ("", 0.0))
        now = asyncio.get_running_loop().time()
        return header.uid == uid and now - when < self._settings.stopped_after

    def _may_be_told(self, header: Header) -> bool:
        """Return whether the node's record may still arrive, because the node was first heard a moment ago."""
        if header.uid in self._forced_out_uids.get(header.node, ()):
            return False
        now = asyncio.get_running_loop().time()
        if header not in self._unknown and len(self._unknown) >= _MOST_UNKNOWN:
            self._unknown.clear()
        return now - self._unknown.setdefault(header, now) < self._settings.stopped_after
