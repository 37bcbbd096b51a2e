"""Pending delivery records: progress of deliveries that an older batch stored, until a batch contains the progress.

No client waits for this progress: if it is lost, a QoS 1 message is sent once more. So the records wait until a batch
is written for another reason, or for ``DELAY`` seconds. By then most sent messages are acknowledged, and no record is
written that they were sent.
"""

from collections.abc import Callable, Iterator
from typing import Final

from ..session.session import Session
from .log import records
from .stored_message import stored_of

DELAY: Final = 0.01
"""Seconds until a batch is cut for these alone."""


class PendingDeliveryRecords:
    """``due``: a batch is to be cut for them, even if for nothing else."""

    __slots__ = ("_delayed", "_later", "_wake", "done", "due", "sent")

    def __init__(
        self, wake: Callable[[], None], later: Callable[[float, Callable[[], None]], object] | None = None
    ) -> None:
        """``wake`` asks for a cut, soon. ``later`` is the loop's ``call_later``; without it there is no delay."""
        # By session: Packet Identifiers that went out.
        self.sent: dict[Session, dict[int, None]] = {}
        # By session number: messages, or (message, group filter), that it holds no longer.
        self.done: dict[int, list[int | tuple[int, str]]] = {}
        self.due = False
        self._wake = wake
        self._later = later
        self._delayed = False

    def __len__(self) -> int:
        return len(self.sent) + len(self.done)

    def sent_to(self, session: Session) -> dict[int, None]:
        """Where to note Packet Identifiers."""
        sent = self.sent.get(session)
        if sent is None:
            sent = self.sent[session] = {}
            self._schedule()
        return sent

    def done_by(self, number: int) -> list[int | tuple[int, str]]:
        """Where to note what a session holds no longer."""
        done = self.done.get(number)
        if done is None:
            done = self.done[number] = []
            self._schedule()
        return done

    def take_done(self, number: int) -> Iterator[records.DeliveriesDone]:
        """Say now what a session holds no longer: more is to be said of the same messages."""
        done = self.done.pop(number, None)
        if done is not None:
            yield records.DeliveriesDone(number, done)

    def take(self) -> Iterator[records.DeliveriesSent | records.DeliveriesDone]:
        """All of it. Of what was sent, only what is still in flight is worth a record."""
        for session, packet_ids in self.sent.items():
            deliveries = []
            for packet_id in packet_ids:
                delivery = session.inflight.get(packet_id)
                stored = None if delivery is None else stored_of(delivery.message)
                if delivery is not None and stored is not None:
                    deliveries.append((stored.number, delivery.group, packet_id))
            if deliveries:
                yield records.DeliveriesSent(session.number, deliveries)
        for number, done in self.done.items():
            yield records.DeliveriesDone(number, done)
        self.sent.clear()
        self.done.clear()
        self.due = False

    def _schedule(self) -> None:
        if self._later is None:
            self._make_due()
        elif not self._delayed:
            self._delayed = True
            self._later(DELAY, self._make_due)

    def _make_due(self) -> None:
        self._delayed = False
        if self.sent or self.done:
            self.due = True
            self._wake()
