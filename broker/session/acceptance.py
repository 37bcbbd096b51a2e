"""Whether a session can accept messages without dropping one (``core.broker`` checks this before it accepts them),
immediately, or as encoded packets."""

from typing import TYPE_CHECKING

from ..mqtt.message import OVERHEAD, Delivery, Message
from ..mqtt.run import Run
from .memory_account import SHEDDING
from .subscription import Subscription

if TYPE_CHECKING:
    from .session import Session


def would_refuse(session: "Session", message: Message, subscription: Subscription) -> bool:
    """Return whether the queue is full and its zone refuses new messages instead of dropping the oldest."""
    queue = session.queue
    if queue is None or not session.limits.refuse_when_full or message.qos == 0 or subscription.qos == 0:
        return False
    return not session.ready and queue.full_for(Delivery(message, 1).size)


def would_be_shed(session: "Session", message: Message, subscription: Subscription) -> bool:
    """Return whether memory is exhausted, and this message would wait in a queue that will be shed."""
    return session.account.level >= SHEDDING and message.qos > 0 and subscription.qos > 0 and not session.ready


def may_refuse(session: "Session", run: Run) -> bool:
    """Return whether one of the messages of a run of QoS 1 might have to be refused."""
    messages = run.messages
    limits = session.limits
    short = session.account.level >= SHEDDING
    if not (limits.refuse_when_full or short) or not may_queue(session, len(messages)):
        return False
    if short:
        return True
    if limits.max_queued_messages and session.queued + len(messages) > limits.max_queued_messages:
        return True
    if not limits.max_queued_bytes:
        return False
    size = 0 if session.queue is None else session.queue.size
    for message in messages:
        size += len(message.frame) + len(message.topic) + OVERHEAD
    return size > limits.max_queued_bytes


def may_queue(session: "Session", count: int) -> bool:
    """Return whether some of this number of QoS 1 messages might not be sent immediately."""
    writer = session.writer
    return (
        writer is None
        or not writer.writable
        or session.queue is not None
        or session.resend is not None
        or len(session.inflight) + count > session.window
    )


def takes_packets(session: "Session", subscription: Subscription, version: int) -> bool:
    """Return whether PUBLISH packets of QoS 0 of this version can be sent to the client unchanged."""
    packets = session.packets
    return (
        packets is not None
        and session.queue is None
        and not subscription.identifiers
        and not session.limits.upgrade_qos
        and packets.takes_packets(version)
    )
