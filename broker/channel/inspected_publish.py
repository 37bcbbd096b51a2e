"""A PUBLISH about which a program outside the node is asked before the node accepts it (``core.inspection``).

The client's next packets wait until there is an answer. A 3.x client cannot be informed that there was no answer, so
the question about a message of QoS 1 or 2 is repeated, unless the client may no longer publish it. In the end, the
client is disconnected, and sends the message again.

If the connection ends before the answer, a message of QoS 0 or 1 is published nevertheless. A message of QoS 2 is not
published: the client sends it again, and then it is not a duplicate."""

import asyncio
from collections.abc import Awaitable, Callable

from ..core.inspection import ASKED_FOR, PAUSE, Answer, Inspection
from ..core.outcome import CLIENT, Outcome
from ..mqtt import reason_codes
from ..mqtt.constants import V5
from ..mqtt.message import Message
from ..session import inbound_qos2
from ..session.session import Session
from .channel import CLOSED, Channel, Waiting
from .closing import disconnect
from .external_check import answer_of, until_answered
from .packet_refusal import UNANSWERED, drop

Acknowledge = Callable[[Channel, Message, Outcome, float, Message | None], Waiting]
"""Acknowledges or refuses a PUBLISH: the message that arrived, the outcome of ``Broker.accept``, the time, and the
message that is published."""
Authorize = Callable[[Channel, Message], Awaitable[Outcome | None]]
"""Returns why the client may not publish an admitted message any more, if it may not."""
_Result = tuple[Outcome | None, Waiting]
"""The refusal that was not answered, None: the message was acknowledged or refused; and what still has to be waited
for."""


def inspect_and_publish(
    channel: Channel, inspection: Inspection, message: Message, authorize: Authorize, acknowledge: Acknowledge
) -> Waiting:
    """Ask about an admitted message, then publish and acknowledge it. ``authorize``: called before the question is
    repeated."""
    session = channel.session
    assert session is not None
    if message.qos == 2:
        inbound_qos2.release(session, message.packet_id)

    async def refused() -> bool:
        refusal = await authorize(channel, message)
        if refusal is None or channel.state == CLOSED:
            return False
        assert session is not None
        waiting = _settled(channel, session, message, refusal, acknowledge)
        if waiting is not None:
            await waiting
        return True

    def ask() -> asyncio.Future[_Result]:
        question: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        channel.pending_check = question
        answered = _answered(channel, session, inspection, message, question, acknowledge)
        inspection.ask(channel.client.client_id, message, answered)
        return question

    # Asked now and not when the coroutine runs: the connection may end before that.
    return _until_published(channel, message, ask(), refused, ask)


async def _until_published(
    channel: Channel,
    message: Message,
    question: asyncio.Future[_Result],
    refused: Callable[[], Awaitable[bool]],
    ask: Callable[[], asyncio.Future[_Result]],
) -> None:
    """``ask`` asks again, if there is no answer to ``question`` and the message was not ``refused``."""
    clock = channel.context.clock
    give_up = clock.now() + ASKED_FOR
    while True:
        result = await answer_of(channel, question)
        if result is None:
            return
        refusal, waiting = result
        if waiting is not None:
            await waiting
        if refusal is None:
            return
        if clock.now() > give_up:
            drop(channel, message, refusal, clock.now())
            disconnect(channel, reason_codes.QUOTA_EXCEEDED, refusal.detail, "quota_exceeded", refusal.setting)
            return
        await until_answered(channel, asyncio.sleep(PAUSE))
        if channel.state == CLOSED or await refused() or channel.state == CLOSED:
            return
        question = ask()


def _answered(
    channel: Channel,
    session: Session,
    inspection: Inspection,
    message: Message,
    question: "asyncio.Future[_Result]",
    acknowledge: Acknowledge,
) -> Callable[[Answer], None]:
    """Return what is done with the answer: at once, so that the publisher's next message comes after this one."""

    def answered(answer: Answer) -> None:
        if channel.state == CLOSED or question.done():
            _after_the_end(channel, message, answer)
        elif isinstance(answer, Outcome) and answer.refused and channel.version != V5 and message.qos:
            question.set_result((answer, None))
        else:
            try:
                waiting = publish(answer)
            except Exception as error:
                question.set_exception(error)
            else:
                if not question.done():  # the client may have been disconnected
                    question.set_result((None, waiting))

    def publish(answer: Answer) -> Waiting:
        if isinstance(answer, Outcome):
            return _settled(channel, session, message, answer, acknowledge)
        broker = channel.context.broker
        now = _received(channel, session, message)
        outcome = broker.accept(answer, CLIENT)
        if message.qos == 2 and broker.undecided is not None and answer.topic != message.topic:
            inspection.wait_for(channel.client.client_id, message.packet_id, broker.undecided)
        return acknowledge(channel, message, outcome, now, answer)

    return answered


def _settled(
    channel: Channel, session: Session, message: Message, outcome: Outcome, acknowledge: Acknowledge
) -> Waiting:
    """Acknowledge or refuse a message that is not published."""
    now = _received(channel, session, message)
    channel.context.broker.undecided = None
    return acknowledge(channel, message, outcome, now, None)


def _received(channel: Channel, session: Session, message: Message) -> float:
    """Note a message that is acknowledged next; return the time."""
    now = channel.context.clock.now()
    if message.qos:
        channel.save_log_position()
        if message.qos == 2:
            inbound_qos2.receive(session, message.packet_id, now)
    return now


def _after_the_end(channel: Channel, message: Message, answer: Answer) -> None:
    """Publish a message whose connection has ended, unless the client sends it again."""
    now = channel.context.clock.now()
    if message.qos == 2:
        drop(channel, message, UNANSWERED, now)
        return
    outcome = answer if isinstance(answer, Outcome) else channel.context.broker.accept(answer, CLIENT)
    if outcome.refused:
        drop(channel, message, outcome, now)
