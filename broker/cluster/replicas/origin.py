"""OriginCopies: which followers an acknowledgement of this node waits for. A pure core: events in, decisions out, no
clock and no I/O.

The guarantee: each node that may restart this node from its copy has everything that this node has acknowledged. The
record in NATS decides which nodes may: those in its in-sync set. Therefore an acknowledgement waits for *every* node in
*any* record that may be the current one: the last confirmed record, and those whose write was not answered. A follower
leaves that set only by a confirmed write, and acknowledgements wait for it before it enters a record.

States of a follower::

    ABSENT ──found──► FILLING ──reached the tail──► CATCHING_UP ──near──► JOINING ──has all──► IN_SYNC
      ▲                                                  ▲                   │                    │
      └───────────── lost, from any state                └──── too slow ─────┘          late: a record without it
"""

from collections.abc import Iterable
from typing import Final

from ...core.cluster import ABSENT, CATCHING_UP, FILLING, IN_SYNC, JOINING

_MARKS: Final = 8
"""How many times the time of a batch is noted within a follower's time limit."""
_MOST_MARKS: Final = 64


class Follower:
    """A node that has a copy or should get one. ``position`` is the last batch on its disk. ``wanted``: the node was
    chosen. ``refill``: its copy belongs to another log. ``short``: the copy lacks acknowledged data. ``failed`` says
    why its disk accepts nothing. ``near``: the copy is nearly complete. ``since`` is the time of its last change of
    state, and ``not_before`` the earliest time at which it may join."""

    __slots__ = ("failed", "name", "near", "not_before", "position", "refill", "short", "since", "state", "wanted")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.state = ABSENT
        self.since = now
        self.position = 0
        self.wanted = False
        self.refill = self.short = self.near = False
        self.failed = ""
        self.not_before = now


class OriginCopies:
    """``durable`` is the last batch whose acknowledgements may be sent. ``members`` is the in-sync set of the last
    confirmed record. ``known``: the record is this node's, and was confirmed since the start. ``replaced`` says why
    another node may have taken this node's place, and is empty if none has."""

    def __init__(self, replicas: int, minimum: int, timeout: float, alone: bool, last: int, now: float) -> None:
        """``replicas``, ``minimum``, ``timeout`` (seconds) and ``alone`` are the settings. ``last`` is the last batch
        on disk. Everything up to it may have been acknowledged before the start; how much of it the followers have is
        not known yet."""
        self._replicas = replicas
        self._minimum = minimum
        self._timeout = timeout
        self._alone = alone
        self.last = self.written = self._before = last
        self.durable = 0
        self.followers: dict[str, Follower] = {}
        self.members: frozenset[str] = frozenset()
        self._unanswered: frozenset[str] = frozenset()  # members of records whose write has no answer
        self._dirty = False
        self._writing: frozenset[str] | None = None
        self._writing_since = now
        self.known = False
        self.replaced = ""
        self._cannot_write = self._going_alone = False
        self._began = now
        self._fewer_since: float | None = now
        self._late: frozenset[str] = frozenset()
        self._waited: frozenset[str] | None = frozenset()  # ``waited_for``; None: it may have changed
        # (first batch of an interval, its time)
        self._marks: list[tuple[int, float]] = [(1, now)]

    # ------------------------------------------------------------------- events

    def started(self, now: float) -> None:
        """The record is being read: until now, NATS could not have told who has this node's place."""
        self._began = now

    def want(self, names: Iterable[str], now: float) -> None:
        """Set the nodes that should have copies. Other followers are deleted, unless acknowledgements wait for them.
        Nothing else deletes a follower, so that the caller can end the session with it at the same moment."""
        wanted = set(names)
        for name in wanted:
            self._follower(name, now).wanted = True
        for name, follower in list(self.followers.items()):
            if name not in wanted:
                follower.wanted = False
                if name not in self.waited_for:
                    del self.followers[name]

    def record_is(self, in_sync: Iterable[str], now: float) -> None:
        """Note that the record is this node's, is confirmed, and has this in-sync set."""
        self._waited = None
        self.members = frozenset(in_sync)
        self._unanswered = frozenset()
        self._writing = None
        self._dirty = False
        self._cannot_write = False
        if not self.known:
            self.known = True
            self.reconnected(now)
        for name in self.members:
            self._follower(name, now)
        for follower in self.followers.values():
            if follower.name in self.members:
                if follower.state != ABSENT:
                    self._set(follower, IN_SYNC, now)
            elif follower.state == IN_SYNC:
                self._set(follower, CATCHING_UP, now)
                follower.not_before = now + self._timeout
        self._advance()

    def writing(self, in_sync: Iterable[str], now: float) -> None:
        """Note that a record with this in-sync set is being written."""
        self._waited = None
        self._writing = frozenset(in_sync)
        self._writing_since = now

    def write_failed(self, unknown: bool) -> None:
        """Note that the record was not written, or, if ``unknown`` is set, that it may be written later."""
        self._waited = None
        if unknown and self._writing is not None:
            self._unanswered |= self._writing
            self._dirty = True
        self._writing = None
        self._cannot_write = True

    def record_lost(self) -> None:
        """Note that NATS has lost the record."""
        self._dirty = True

    def reconnected(self, now: float) -> None:
        """Restart the followers' time limits, because this node can reach them again."""
        self._marks = [(number, now) for number, _ in self._marks[:1]]

    def taken_over(self, why: str) -> None:
        """Stop all acknowledgements, because another node may have taken this node's place."""
        self.replaced = why

    def found(self, name: str, position: int, from_tail: bool, now: float) -> None:
        """Note that a follower has everything up to ``position`` and receives the following batches; ``from_tail``:
        from memory."""
        follower = self.followers.get(name)
        if follower is None:
            return
        follower.position = min(position, self.last)
        follower.refill = False
        follower.short = name in self._in_records and position < self.durable
        follower.failed = ""
        if name in self.members:
            self._set(follower, IN_SYNC, now)
        else:
            self._set(follower, CATCHING_UP if from_tail else FILLING, now)
        self._advance()

    def differs(self, name: str, now: float) -> None:
        """Note that the follower's copy is not one of this log. It is filled again once no record names it."""
        follower = self.followers.get(name)
        if follower is not None:
            follower.refill = True
            follower.position = 0
            self._set(follower, ABSENT, now)

    def acknowledged(self, name: str, position: int, from_tail: bool, near: bool, now: float) -> bool:
        """Note that a follower has everything up to ``position`` on its disk. ``near``: its copy is nearly complete.
        Return whether more than ``durable`` may have changed."""
        follower = self.followers.get(name)
        if follower is None or follower.state == ABSENT:
            return True
        follower.position = max(follower.position, min(position, self.last))
        follower.near = near
        if follower.state == IN_SYNC and not follower.failed and not follower.short:
            self._advance()
            return False
        follower.failed = ""
        follower.short = follower.short and follower.position < self.durable
        if follower.state == FILLING and from_tail:
            self._set(follower, CATCHING_UP, now)
        self._let_join(follower, now)
        self._advance()
        return True

    def _let_join(self, follower: Follower, now: float) -> None:
        """Make acknowledgements wait for a follower whose copy is nearly complete."""
        if follower.state == CATCHING_UP and follower.near and follower.wanted and now >= follower.not_before:
            if self.known and not follower.failed:
                self._set(follower, JOINING, now)

    def failed(self, name: str, why: str) -> None:
        """Note that the follower's disk accepts nothing."""
        follower = self.followers.get(name)
        if follower is not None:
            follower.failed = why

    def lost(self, name: str, now: float) -> None:
        """Note that the follower no longer knows this node."""
        follower = self.followers.get(name)
        if follower is not None and follower.state != ABSENT:
            self._set(follower, ABSENT, now)

    def appended(self, number: int, now: float) -> None:
        """Note that a batch was sent to every disk."""
        assert number == self.last + 1
        self.last = number
        marks = self._marks
        if not marks or (now - marks[-1][1] >= self._timeout / _MARKS and len(marks) < _MOST_MARKS):
            marks.append((number, now))

    def wrote(self, number: int) -> None:
        """Note that this node's disk has everything up to ``number``."""
        self.written = number
        self._advance()

    def tick(self, now: float) -> None:
        """Time has passed."""
        in_records = self._in_records
        self._late = frozenset(name for name in in_records if self._is_late(self.followers[name], now))
        for follower in self.followers.values():
            joining = follower.state == JOINING and follower.name not in in_records
            if joining and now - follower.since > self._timeout:
                self._set(follower, CATCHING_UP, now)
                follower.not_before = now + self._timeout
            self._let_join(follower, now)
        if self._writing is not None and now - self._writing_since > self._timeout:
            self._cannot_write = True
        elif not self._late:
            self._cannot_write = False
        without = bool(self._late) and self._cannot_write if self.known else now - self._began > self._timeout
        self._going_alone = self._alone and without
        complete = len(self._complete) >= self._replicas
        if complete:
            self._fewer_since = None
        elif self._fewer_since is None:
            self._fewer_since = now
        self._forget_marks()
        self._advance()

    # ---------------------------------------------------------------- decisions

    @property
    def waited_for(self) -> frozenset[str]:
        """The followers for which acknowledgements wait."""
        waited = self._waited
        if waited is None:
            joining = [each.name for each in self.followers.values() if each.state == JOINING]
            waited = self._waited = self._in_records.union(joining)
        return waited

    @property
    def _in_records(self) -> frozenset[str]:
        """The members of every record that may be the current one."""
        if self._writing is None and not self._unanswered:
            return self.members
        return self.members | self._unanswered | (self._writing or frozenset())

    @property
    def _complete(self) -> list[str]:
        return [name for name in self.members if self.followers[name].state == IN_SYNC and name not in self._late]

    def next_record(self) -> tuple[str, ...] | None:
        """Return the in-sync set that has to be written now, or ``None`` if the record is up to date."""
        if not self.known or self.replaced or self._writing is not None:
            return None
        stay = {name for name in self.members if not self._must_go(self.followers[name])}
        stay.update(
            each.name
            for each in self.followers.values()
            if each.state == JOINING and each.wanted and each.position >= max(self.durable, self._before)
        )
        if len(stay) < self._minimum:
            # Nothing is acknowledged then, and a follower that is only late may still take over.
            stay.update(name for name in self.members if self._is_sound(self.followers[name]))
        return tuple(sorted(stay)) if self._dirty or stay != self.members else None

    @staticmethod
    def _is_sound(follower: Follower) -> bool:
        return not follower.refill and not follower.short

    def _must_go(self, follower: Follower) -> bool:
        if follower.name in self._late or follower.failed or not self._is_sound(follower):
            return True
        if follower.wanted:
            return False
        return sum(self.followers[name].wanted for name in self._complete) >= self._replicas

    def is_spare(self, name: str) -> bool:
        """Return whether this node's copy is not needed, because enough others are complete."""
        if not self.known or self.replaced or name in self.waited_for:
            return False
        follower = self.followers.get(name)
        return (follower is None or not follower.wanted) and len(self._complete) >= self._replicas

    def trouble(self, now: float) -> str | None:
        """Return why nothing is acknowledged, in one line, or ``None`` if acknowledgements are sent."""
        if self.replaced:
            return self.replaced
        if self._going_alone:
            return None
        if not self.known:
            if now - self._began <= self._timeout:
                return None
            return "whether another node has taken this one's place is unknown: NATS (cluster.replicas_isolated)"
        if self._late and self._cannot_write:
            names = ", ".join(sorted(self._late))
            return f"no answer of the copy on {names}, and none of NATS (cluster.replicas_isolated)"
        complete = len(self.members - self._late)
        if complete < self._minimum and now - self._began > self._timeout:
            return f"{complete} complete copies, cluster.replicas_min = {self._minimum}"
        return None

    @property
    def missing_since(self) -> float | None:
        """The time since which there have been too few complete copies, or ``None`` if there are enough."""
        return self._fewer_since

    @property
    def copies(self) -> int:
        """The number of complete copies."""
        return len(self._complete)

    def needed(self) -> int:
        """Return the oldest batch that is missing on a follower for which acknowledgements wait."""
        waited = self.waited_for
        return min([self.followers[name].position for name in waited], default=self.last) + 1

    # ------------------------------------------------------------------ internal

    def _advance(self) -> None:
        if self.replaced:
            return
        waited = self.waited_for
        if self._going_alone:
            waited -= self._late  # they leave the record before they take part again
        elif not self.known or len(self.members) < self._minimum:
            return
        followers = self.followers
        reached = min([self.written, *[followers[name].position for name in waited]])
        if reached <= self.durable:
            return
        self.durable = reached
        assert self._alone or all(
            self.followers[name].position >= self.durable or not self._is_sound(self.followers[name])
            for name in self._in_records
        ), "a node that may take over lacks what was acknowledged"

    def _is_late(self, follower: Follower, now: float) -> bool:
        if follower.position >= self.last:
            return False
        missing = follower.position + 1
        when = None
        for number, at in self._marks:
            if number > missing and when is not None:
                break
            when = at
        return when is not None and now - when > self._timeout

    def _forget_marks(self) -> None:
        """Forget the times of batches that every follower has for which acknowledgements wait."""
        needed = self.needed()
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= needed:
            marks.pop(0)
        if needed > self.last:
            marks.clear()

    def _follower(self, name: str, now: float) -> Follower:
        follower = self.followers.get(name)
        if follower is None:
            follower = self.followers[name] = Follower(name, now)
        return follower

    def _set(self, follower: Follower, state: str, now: float) -> None:
        if follower.state != state:
            self._waited = None
            follower.state = state
            follower.since = now
