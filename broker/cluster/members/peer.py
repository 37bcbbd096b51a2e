"""Peer: another node of the cluster as this node knows it, and which nodes may have its name according to its
record."""

import asyncio

from ...core.cluster import STOPPED
from ..wire import OLDEST, VERSION, MemberRecord, node_key


class Peer:
    """Another node, as this node knows it. ``Heartbeats`` keeps its status.

    ``heard`` is the time of its last heartbeat on the loop's clock. ``stopped_at`` is the time when it announced its
    stop, or when its next start was reported here. Until ``unheard_until``, the node may be running although this node,
    which has only just learned of it, has not heard it; once heard, this time is in the past. ``versions`` are the
    oldest and the newest wire version that it reads.
    """

    __slots__ = (
        "heard",
        "hears",
        "incarnation",
        "key",
        "lost_at",
        "name",
        "record",
        "revision",
        "since",
        "status",
        "stopped_at",
        "uid",
        "unheard_until",
        "versions",
    )

    def __init__(self, record: MemberRecord, revision: int, since: float, now: float, unheard_until: float) -> None:
        self.name = record.node
        self.key = node_key(record.node)
        self.uid = record.uid
        self.incarnation = record.incarnation
        self.record = record
        self.revision = revision
        self.status = STOPPED
        self.since = since
        self.heard = -1e9
        self.stopped_at = -1e9
        self.unheard_until = unheard_until
        self.lost_at = now
        self.hears: list[str] = []
        self.versions = (OLDEST, VERSION)

    @property
    def running(self) -> bool:
        """Whether the node sends heartbeats, or did so a moment ago."""
        return self.status != STOPPED

    @property
    def may_run(self) -> bool:
        """Whether the node is running, or became known only a moment ago and may be running although its status is
        Stopped."""
        return self.running or asyncio.get_running_loop().time() < self.unheard_until


def forced_out_of(record: MemberRecord) -> tuple[str, ...]:
    """Return the uids of data that must not use the node's name."""
    return (*record.refused_uids, record.uid) if record.forced_out and record.uid else record.refused_uids


def has_other_data(before: MemberRecord, now: MemberRecord) -> bool:
    """Return whether the name now belongs to other data than before, both on disk."""
    return before.uid != now.uid and before.durable and now.durable


def is_replaced(before: MemberRecord, now: MemberRecord) -> bool:
    """Return whether the name now belongs to other data than before, both on disk, although no operator has removed the
    earlier node."""
    return has_other_data(before, now) and not before.forced_out and before.uid not in now.refused_uids
