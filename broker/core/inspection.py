"""Inspection: a program outside the node may change or stop each message before the node accepts it.

``Broker.inspection`` is set only while there may be such a program. Publishers then wait here for its answer, instead
of calling ``Broker.accept`` immediately: a message is asked about once, at the node that accepts it, after topic
rewrite and the access rules, and before hooks, rules and retaining. A delayed message is asked about when it arrives,
with its real topic.

The messages of a publisher have a lane, with one question at a time, so they keep their order."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..mqtt import reason_codes
from ..mqtt.message import Message
from ..mqtt.properties import memory_size
from ..session.memory_account import NORMAL
from .delayed_topic import PREFIX, split
from .outcome import (
    BRIDGE,
    DELAYED,
    NO_MEMORY,
    OPERATOR,
    REWRITTEN_INVALID,
    RULE,
    RULE_LATER,
    SOURCE,
    UNINSPECTED,
    WILL,
    Outcome,
    PublisherKind,
)

if TYPE_CHECKING:
    from .broker import Broker

logger = logging.getLogger(__name__)

_OVERHEAD: Final = 600
"""Approximate memory of a waiting message in addition to its topic, payload and properties, in bytes."""
PAUSE = 1.0
"""Seconds between two questions about the same message, if it is repeated because there was no answer."""
ASKED_FOR: Final = 60.0
"""Seconds for which a question is repeated, unless its publisher is patient."""
_FAULT: Final = Outcome(reason_codes.UNSPECIFIED_ERROR, "-", "an internal error")
STOPPING: Final = Outcome(reason_codes.QUOTA_EXCEEDED, "-", "the node is stopping")
_REWRITTEN: Final = {
    **{
        each: PublisherKind(each.counted, each.refusable, each.must_retain, rewritten=True)
        for each in (OPERATOR, SOURCE, BRIDGE)
    },
    RULE: RULE_LATER,
    RULE_LATER: RULE_LATER,
    WILL: WILL,
}
"""The same publishers, of a message whose topic was rewritten before the question."""

Answer = Message | Outcome
"""The message to publish, or why it is not published."""


def _not_held() -> Outcome | None:
    return None


class Inspector(Protocol):
    """Asks the program."""

    def inspects(self, topic: str) -> bool:
        """Return whether the program is asked about messages to this topic."""

    async def inspect(self, message: Message) -> Answer:
        """Return the message itself, a new one to publish instead, or why it is not published. Raises nothing, and does
        not change the message."""


class InspectionLimits(NamedTuple):
    """``table``: the table of the settings ``max_queued`` and ``max_queued_bytes``."""

    table: str
    max_queued: int
    max_queued_bytes: int


class _Question:
    """A message that waits. ``patient``: its publisher waits until there is an answer, however long that takes.
    ``stored``: it is asked about again after a restart."""

    __slots__ = ("answered", "message", "patient", "size", "stored")

    def __init__(self, message: Message, answered: Callable[[Answer], None], patient: bool, stored: bool) -> None:
        self.message = message
        self.answered = answered
        self.patient = patient
        self.stored = stored
        self.size = _size(message)


def _size(message: Message) -> int:
    size = message.wire_size + len(message.topic) + _OVERHEAD
    if message.has_properties and not message.block_at:  # they are not in the bytes that arrived
        size += memory_size(message.properties)
    return size


class Inspection:
    """Belongs to one event loop. ``waiting`` and ``waiting_bytes``: messages that wait for an answer, or until they are
    asked about again, and their memory."""

    def __init__(self, broker: "Broker", inspector: Inspector, limits: InspectionLimits) -> None:
        self._broker = broker
        self._inspector = inspector
        self._full, self._full_bytes = (
            Outcome(reason_codes.QUOTA_EXCEEDED, f"{limits.table}.{key}", "too many messages wait for an answer")
            for key in ("max_queued", "max_queued_bytes")
        )
        self._limits = limits
        self._lanes: dict[str, deque[_Question]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._single = 0
        # By client ID and Packet Identifier.
        self._decisions: dict[tuple[str, int], asyncio.Future[None]] = {}
        self.waiting = 0
        self.waiting_bytes = 0
        # Of these, the messages that are kept.
        self._kept = 0
        self._kept_bytes = 0

    def inspects(self, topic: str) -> bool:
        """Return whether a message to this topic has to wait for an answer. ``topic`` may begin with ``$delayed/``."""
        if topic.startswith("$"):
            real = self._broker.destination(topic)
            if isinstance(real, Outcome):
                return False  # ``Broker.accept`` refuses it
            topic = real
        return self._inspector.inspects(topic)

    def undecided(self, client_id: str, packet_id: int) -> asyncio.Future[None] | None:
        """Return what the acknowledgement of a QoS 2 message waits for (``wait_for``)."""
        return self._decisions.get((client_id, packet_id))

    def wait_for(self, client_id: str, packet_id: int, decision: asyncio.Future[None]) -> None:
        """Note the decision of the cluster about the retained message of another topic than that of the PUBLISH."""
        key = client_id, packet_id
        self._decisions[key] = decision

        def decided(_: object) -> None:
            if self._decisions.get(key) is decision:
                del self._decisions[key]

        decision.add_done_callback(decided)

    # --------------------------------------------------------------- publishers

    def ask(
        self,
        publisher: str,
        message: Message,
        answered: Callable[[Answer], None],
        patient: bool = False,
        limited: bool = True,
        stored: bool = False,
    ) -> None:
        """Ask about a message after the earlier ones of ``publisher``, a client ID. ``answered`` is called once;
        immediately, with a refusal, if too many questions wait. If ``limited`` is false, the caller limits their
        number."""
        refusal = self._refusal(publisher) if limited else None
        if self._closed:
            refusal = STOPPING
        if refusal is not None:
            answered(refusal)
            return
        question = _Question(message, answered, patient, stored)
        self.waiting += 1
        self.waiting_bytes += question.size
        lane = self._lanes.get(publisher)
        if lane is not None:
            lane.append(question)
            return
        self._lanes[publisher] = lane = deque([question])
        task = asyncio.get_running_loop().create_task(self._run(publisher, lane), name="inspection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def accept(self, message: Message, source: PublisherKind) -> Outcome:
        """Ask, then do what ``Broker.accept`` does, for a publisher that waits before its next message. Immediately
        after it, ``Broker.undecided`` is that of this message."""
        rewritten = self._rewritten(message, source)
        if isinstance(rewritten, Outcome):
            return rewritten
        if not self.inspects(rewritten.topic):
            return self._broker.accept(rewritten, _REWRITTEN[source])
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(found: Answer) -> None:
            if not answer.done():  # its caller may have gone
                answer.set_result(found)

        self._single += 1
        self.ask(f"{UNINSPECTED}{self._single}", rewritten, answered)  # no client ID
        return self._accept(await answer, _REWRITTEN[source])

    def accept_later(
        self,
        message: Message,
        source: PublisherKind,
        accepted: Callable[[Outcome], None],
        lane: str = "",
        patient: bool = False,
        limited: bool = True,
        held: Callable[[], Outcome | None] = _not_held,
    ) -> None:
        """Do the same for a publisher that cannot wait. ``accepted`` is called once with the outcome; immediately if
        there is no question. ``lane``: the publisher of a message without one. ``held``: called before the message is
        published; an outcome instead of that, if it must not be published now.

        A rule's message is stored until it is accepted: its cause may be acknowledged before that. If the node stops
        before the answer, the next start asks (``DELAYED``)."""
        rewritten = self._rewritten(message, source)
        if isinstance(rewritten, Outcome):
            accepted(rewritten)
            return
        source = _REWRITTEN[source]
        if not self.inspects(rewritten.topic):
            accepted(held() or self._broker.accept(rewritten, source))
            return
        number = 0
        durability = self._broker.durability
        if source is RULE_LATER and (message.qos or message.retain) and durability is not None:
            kept = rewritten.twin()
            kept.readdress(UNINSPECTED + kept.topic)
            number = durability.node.delayed_stored(kept, self._broker.clock.wall())

        def answered(answer: Answer) -> None:
            outcome = (None if isinstance(answer, Outcome) else held()) or self._accept(answer, source)
            if number and durability is not None:
                if outcome is STOPPING:
                    outcome = DELAYED
                else:
                    durability.node.delayed_gone(number)
            accepted(outcome)

        stored = number > 0 or (source is WILL and durability is not None)
        self.ask(_lane_of(rewritten) or lane, rewritten, answered, patient, limited, stored)

    def keep(self, message: Message) -> bool:
        """Count a message that was refused, and that its publisher keeps to ask about it again. Return False if it must
        not: memory is short, or the node stops."""
        if self._closed or self._broker.account.level > NORMAL:
            return False
        self._count_kept(1, _size(message))
        return True

    def keep_no_longer(self, message: Message) -> None:
        """The publisher asks about a kept message again."""
        self._count_kept(-1, -_size(message))

    def _count_kept(self, count: int, size: int) -> None:
        self._kept += count
        self._kept_bytes += size
        self.waiting += count
        self.waiting_bytes += size

    def _rewritten(self, message: Message, source: PublisherKind) -> Answer:
        """Return the message with its topic after topic rewrite."""
        rewriting = self._broker.rewriting
        if rewriting is None or source.rewritten:
            return message
        topic = rewriting.published(message.topic, message.publisher)
        if not topic:
            return REWRITTEN_INVALID
        if topic != message.topic:
            message = message.twin()  # the caller may offer its own again
            message.topic = topic
        return message

    def _accept(self, answer: Answer, source: PublisherKind) -> Outcome:
        if isinstance(answer, Outcome):
            self._broker.undecided = None
            return answer
        return self._broker.accept(answer, source)

    # -------------------------------------------------------------------- lanes

    def _refusal(self, publisher: str) -> Outcome | None:
        if self.waiting - self._kept >= self._limits.max_queued:
            return self._full
        if self.waiting_bytes - self._kept_bytes >= self._limits.max_queued_bytes:
            return self._full_bytes
        if self._broker.account.level > NORMAL and publisher in self._lanes:
            return NO_MEMORY
        return None

    async def _run(self, publisher: str, lane: deque[_Question]) -> None:
        try:
            while lane:
                question = lane[0]  # it counts as waiting until it is answered
                try:
                    answer = await self._answer_to(question)
                except Exception:
                    logger.exception("message_not_inspected topic=%s", question.message.topic)
                    answer = _FAULT
                lane.popleft()
                self._answer(question, answer)
        finally:
            del self._lanes[publisher]

    async def _answer_to(self, question: _Question) -> Answer:
        message = question.message
        found = split(message.topic) if self._broker.delays(message.topic) else None
        asked = message
        if found is not None:
            asked = message.twin()
            asked.readdress(found[1])
        answer = await self._inspector.inspect(asked)
        while question.patient and isinstance(answer, Outcome) and answer.refused:
            await asyncio.sleep(PAUSE)
            answer = await self._inspector.inspect(asked)
        if answer is asked:
            return message
        if found is not None and isinstance(answer, Message):
            answer.readdress(f"{PREFIX}{found[0]}/{answer.topic}")
        return answer

    def _answer(self, question: _Question, answer: Answer) -> None:
        self.waiting -= 1
        self.waiting_bytes -= question.size
        publisher = question.message.publisher
        if isinstance(answer, Message) and publisher is not None:  # the client may be banned by now
            answer = self._broker.withheld(publisher) or answer
        try:
            question.answered(answer)
        except Exception:
            logger.exception("message_not_inspected topic=%s", question.message.topic)

    def shed(self) -> None:
        """Refuse everything that waits and that is not asked about yet, because memory is exhausted."""
        for lane in list(self._lanes.values()):
            shed = [each for each in lane if not each.patient and each is not lane[0]]
            for question in shed:
                lane.remove(question)
                self._answer(question, NO_MEMORY)

    async def close(self, seconds: float) -> int:
        """Wait for answers, for a limited time; return how many messages are neither published nor stored for the next
        start."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.waiting and loop.time() < deadline:
            await asyncio.sleep(0.01)
        self._closed = True
        left = [question for lane in self._lanes.values() for question in lane]
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for question in left:
            self._answer(question, STOPPING)
        lost = sum(not question.stored for question in left)
        return lost + (self._kept if self._broker.durability is None else 0)  # Wills are stored, if anything is


def accept_stored(broker: "Broker", message: Message) -> None:
    """Ask again about a message that waited for an answer when the node stopped, until there is one: what caused it was
    acknowledged."""
    message.readdress(message.topic.removeprefix(UNINSPECTED))

    def accepted(outcome: Outcome) -> None:
        if outcome.refused:
            broker.note_refusal("delayed_refused", _lane_of(message), message.topic, outcome, broker.clock.now())

    if broker.inspection is None:
        accepted(broker.accept(message, RULE_LATER))
    else:
        # As many as could wait before the node stopped.
        broker.inspection.accept_later(message, RULE_LATER, accepted, patient=True, limited=False)


def _lane_of(message: Message) -> str:
    return "" if message.publisher is None else message.publisher.client_id
