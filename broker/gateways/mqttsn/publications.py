"""The messages that a client publishes with QoS 1 and 2, until the broker has answered, so that repetitions are not
published.

This module does not know the link: the conversation sends what a decision requires."""

from typing import Final

from . import codec as sn

COMPLETED: Final = 16
"""Number of completed QoS 2 exchanges that are remembered, so that a late repetition is not published again."""

# What to do with a PUBLISH.
PUBLISH: Final = 0
WAIT: Final = 1  # the first one is answered when the broker has it
WAS_COMPLETED: Final = 2  # it is answered with PUBREC
TOO_MANY: Final = 3


class Publications:
    """The publications of one client. ``patience``: seconds in which a client may repeat a message that it has
    completed."""

    __slots__ = ("_completed", "_open", "_patience")

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # MsgId -> topic id and hash. Completed: MsgId -> its hash and when.
        self._open: dict[int, tuple[int, int]] = {}
        self._completed: dict[int, tuple[int, float]] | None = None

    def begin(self, packet: sn.SnPublish, most: int, now: float) -> int:
        """Return what to do with a PUBLISH; if the result is PUBLISH, the message is open from now on. ``most``: the
        maximum number of open messages."""
        known = packet.msg_id in self._open
        if known and packet.qos == 1:
            return WAIT
        content = 0
        if packet.qos == 2:
            content = hash((packet.topic_id, packet.id_type, packet.retain, packet.payload))
            if not known and self._was_completed(packet.msg_id, content, now):
                return WAS_COMPLETED
        if not known and len(self._open) >= most:
            return TOO_MANY
        self._open[packet.msg_id] = packet.topic_id, content
        assert len(self._open) <= max(most, 1), "no more are open than the broker accepts"
        return PUBLISH

    def _was_completed(self, msg_id: int, content: int, now: float) -> bool:
        found = None if self._completed is None else self._completed.get(msg_id)
        return found is not None and found[0] == content and now < found[1] + self._patience

    def end(self, msg_id: int, completed: bool, now: float) -> int:
        """Note that the broker has answered; return the topic id of the PUBLISH. ``completed``: the whole exchange of
        QoS 2."""
        topic_id, content = self._open.pop(msg_id, (0, 0))
        if completed and content:
            self._remember(msg_id, content, now)
        return topic_id

    def _remember(self, msg_id: int, content: int, now: float) -> None:
        if self._completed is None:
            self._completed = {}
        self._completed.pop(msg_id, None)
        self._completed[msg_id] = content, now
        if len(self._completed) > COMPLETED:
            del self._completed[next(iter(self._completed))]
        assert len(self._completed) <= COMPLETED
