"""Pending delivery records: the progress of deliveries from older batches, until a batch contains this progress.

No client waits for this progress: if it is lost, a QoS 1 message is sent once more. So the records wait until a batch
is written for another reason, or for ``DELAY`` seconds. By then most sent messages are acknowledged, and need no record
that they were sent."""

from collections.abc import Callable, Iterator
from typing import Final

from ..session.session import Session
from .log import records
from .stored_message import stored_of

DELAY: Final = 0.01
"""Seconds until a batch is cut for these records alone."""


class PendingDeliveryRecords:
    """``due``: a batch has to be cut for these records, even if nothing else has to be written."""

    __slots__ = ("_delayed", "_later", "_wake", "done", "due", "sent")

    def __init__(
        self, wake: Callable[[], None], later: Callable[[float, Callable[[], None]], object] | None = None
    ) -> None:
        """``wake`` requests a cut soon. ``later`` is the loop's ``call_later``; without it there is no delay."""
        # By session: Packet Identifiers that were sent.
        self.sent: dict[Session, dict[int, None]] = {}
        # By session number: messages, or (message, group filter), that the session no longer holds.
        self.done: dict[int, list[int | tuple[int, str]]] = {}
        self.due = False
        self._wake = wake
        self._later = later
        self._delayed = False

    def __len__(self) -> int:
        return len(self.sent) + len(self.done)

    def sent_to(self, session: Session) -> dict[int, None]:
        """Return the collection to which sent Packet Identifiers are added."""
        sent = self.sent.get(session)
        if sent is None:
            sent = self.sent[session] = {}
            self._schedule()
        return sent

    def done_by(self, number: int) -> list[int | tuple[int, str]]:
        """Return the list to which messages are added that a session no longer holds."""
        done = self.done.get(number)
        if done is None:
            done = self.done[number] = []
            self._schedule()
        return done

    def take_done(self, number: int) -> Iterator[records.DeliveriesDone]:
        """Yield the record of the messages that a session no longer holds now, because another record about the same
        messages follows."""
        done = self.done.pop(number, None)
        if done is not None:
            yield records.DeliveriesDone(number, done)

    def take(self) -> Iterator[records.DeliveriesSent | records.DeliveriesDone]:
        """Yield all records. A sent message needs a record only while it is in flight."""
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
