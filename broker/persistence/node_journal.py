"""The journal of data that does not belong to a session: retained messages, Wills and delayed messages."""

from collections.abc import Callable

from ..mqtt.message import Message
from .group_commit import GroupCommit
from .log import records
from .record_mapping import body_of, retained_record, size_of, will_subject


class NodeJournal:
    """Journal of retained messages, Wills and delayed messages. ``wills`` and ``delayed``: the current ones by number,
    for a compaction."""

    __slots__ = ("_commit", "_next_number", "_skew", "delayed", "wills")

    def __init__(self, commit: GroupCommit, skew: Callable[[], float]) -> None:
        """``skew`` returns the difference between dates and times (``loop.clock``)."""
        self._commit = commit
        self._skew = skew
        self.wills: dict[int, records.WillStored] = {}
        self.delayed: dict[int, records.DelayedStored] = {}
        self._next_number = 1

    def retained_stored(self, message: Message, new: bool) -> None:
        """``new``: the topic had no retained message before."""
        record = retained_record(message, self._skew())
        if new:
            self._commit.write_new(message.topic, record)
        else:
            self._commit.write_over(message.topic, record)

    def retained_cleared(self, topic: str) -> None:
        self._commit.write_removed(topic, records.RetainedCleared(topic))

    def will_stored(
        self, message: Message, delay: int, due_at: float = 0.0, number: int = 0, approved: bool = True
    ) -> int:
        """Record that a Will is stored or, with ``due_at``, that it waits for its delay. Return its number.
        ``approved``: see the record."""
        new = not number
        if new:
            number = self._next_number
            self._next_number += 1
        skew = self._skew()
        client = message.publisher
        mountpoint, listener = ("", "") if client is None else (client.mountpoint, client.listener)
        due_at = due_at + skew if due_at else 0.0
        will = records.WillStored(number, body_of(message, skew), delay, due_at, mountpoint, listener, approved)
        self.wills[number] = will
        if new:
            self._commit.write_new(will_subject(number), will)
        else:
            self._commit.write_over(will_subject(number), will)
        return number

    def will_gone(self, number: int) -> None:
        """Record that a Will was published or discarded."""
        if self.wills.pop(number, None) is not None:
            self._commit.write_removed(will_subject(number), records.WillGone(number))

    def delayed_stored(self, message: Message, due_at: float) -> int:
        """Record a delayed message, which waits until the date ``due_at``. Return its number."""
        number = self._next_number
        self._next_number += 1
        delayed = records.DelayedStored(number, body_of(message, self._skew()), due_at)
        self.delayed[number] = delayed
        self._commit.write(delayed)
        return number

    def delayed_gone(self, number: int) -> None:
        """Record that a delayed message was published or discarded."""
        if self.delayed.pop(number, None) is not None:
            self._commit.write(records.DelayedGone(number))

    @property
    def bytes(self) -> int:
        """Approximate size of the records of Wills and delayed messages."""
        return sum([size_of(each) for each in self.wills.values()]) + sum(
            [size_of(each) for each in self.delayed.values()]
        )

    def continue_from(self, number: int) -> None:
        """Continue after ``number``: numbers up to this one were used before the restart."""
        self._next_number = number + 1
