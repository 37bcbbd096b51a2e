"""Undecided: acknowledgements of PUBLISHes that wait for a decision of the cluster, and the acknowledgements after
them.

Acknowledgements keep the order of the PUBLISHes. Example: a client clears a retained message and then publishes another
message; the PUBACK of the second waits until the clear is decided."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from ..core.cluster import ELECTION
from ..core.outcome import RETAINED_ALONE
from ..mqtt import reason_codes
from ..mqtt.constants import V5
from ..mqtt.message import Message
from ..session import inbound_qos2
from .closing import disconnect
from .packet_refusal import note_refusal

if TYPE_CHECKING:
    from .channel import Channel

MOST: Final = 100
"""Maximum number for one client; then nothing is read from it until there are fewer."""
LONGEST_3: Final = 60.0
"""Seconds that a 3.x client waits, because it cannot be informed: then it is disconnected, reconnects and sends
again."""


class _Answer:
    """``data``: the acknowledgement; it is sent when ``batch`` is on disk and ``decision`` is made. ``refusal``: the
    answer that is sent instead at ``end`` (on the loop's clock), for ``message``."""

    __slots__ = ("batch", "data", "decision", "end", "message", "refusal")

    def __init__(self, data: bytes, batch: int) -> None:
        self.data = data
        self.batch = batch
        self.decision: asyncio.Future[None] | None = None
        self.end = 0.0
        self.message: Message | None = None
        self.refusal = b""


class Undecided:
    """The waiting acknowledgements of one client, in the order of its PUBLISHes."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Answer] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MOST

    def follow(self, data: bytes, batch: int) -> None:
        """Add an acknowledgement that waits only for those before it."""
        self._add(_Answer(data, batch))

    def hold(
        self, data: bytes, batch: int, message: Message, decision: "asyncio.Future[None]", refusal: bytes = b""
    ) -> None:
        """``refusal``: sent to a 5.0 client instead, if there is no decision within ``ELECTION`` seconds."""
        answer = _Answer(data, batch)
        answer.decision = decision
        answer.message = message
        answer.refusal = refusal
        answer.end = self._loop.time() + (ELECTION if self._channel.version == V5 else LONGEST_3)
        self._add(answer)
        decision.add_done_callback(self._advance)
        if self._timer is None:
            self._timer = self._loop.call_at(answer.end, self._give_up)

    def _add(self, answer: _Answer) -> None:
        self._waiting.append(answer)

    async def wait_for_room(self) -> None:
        while self.full:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def close(self) -> None:
        """End with the conversation. The client sends unacknowledged messages again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._tell_room()

    def _tell_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _advance(self, _: object = None) -> None:
        waiting = self._waiting
        while waiting and (waiting[0].decision is None or waiting[0].decision.done()):
            answer = waiting.popleft()
            self._channel.writer.send_when_durable(answer.data, answer.batch)
        if not waiting and self._channel.undecided is self:
            self._channel.undecided = None
        if self._room is not None and not self.full:
            self._tell_room()

    def _give_up(self) -> None:
        """Stop waiting for the decisions whose time has passed."""
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0].end <= now:
            answer = self._waiting[0]
            message = answer.message
            assert message is not None
            answer.decision = None
            if not self._refuse(answer, message):
                return
            self._advance()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].end, self._give_up)

    def _refuse(self, answer: _Answer, message: Message) -> bool:
        """Return whether the conversation continues."""
        channel = self._channel
        context = channel.context
        if not answer.refusal:
            detail, setting = RETAINED_ALONE.detail, RETAINED_ALONE.setting
            disconnect(channel, reason_codes.QUOTA_EXCEEDED, detail, "quota_exceeded", setting)
            return False
        note_refusal(channel, RETAINED_ALONE, "publish_refused", message.topic, context.clock.now())
        channel.refused_messages += 1
        if message.qos == 2 and channel.session is not None:
            inbound_qos2.release(channel.session, message.packet_id)
        answer.data = answer.refusal
        return True
