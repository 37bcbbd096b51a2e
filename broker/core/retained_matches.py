"""RetainedMatches: the retained messages for a new subscription."""

from typing import TYPE_CHECKING

from ..mqtt.message import Message
from ..routing.retained import Walk
from ..session.replay import ReplayBudget
from ..session.subscription import Subscription

if TYPE_CHECKING:
    from .broker import Broker


class RetainedMatches:
    """Implements ``session.protocols.RetainedSource``: messages are read when they are sent, so that they are never
    stale."""

    __slots__ = ("_again", "_broker", "_subscription", "_walk")

    def __init__(self, broker: "Broker", subscription: Subscription) -> None:
        self._broker = broker
        self._subscription = subscription
        self._walk: Walk | None = None
        # Topics of messages that were returned by ``take`` but could not be sent.
        self._again: list[str] = []

    @property
    def done(self) -> bool:
        return self._walk is not None and self._walk.done and not self._again

    def take(self, most: int, budget: ReplayBudget) -> list[Message]:
        retained = self._broker.retained
        if self._again:
            topics, self._again = self._again[:most], self._again[most:]
            found = [message for message in map(retained.get, topics) if message is not None]
        else:
            if self._walk is None:
                self._walk = Walk(retained, self._subscription.topic_filter)
            walk = self._walk
            found = walk.take(most, budget.bytes, budget.steps)
            budget.steps -= walk.steps
        budget.messages -= len(found)
        now = self._broker.clock.now()
        some: list[Message] = []
        for message in found:
            budget.bytes -= message.payload_size
            if not retained.expired(message, now):
                some.append(message)
        if self._subscription.no_local:
            client_id = self._subscription.session.client_id
            some = [each for each in some if each.publisher is None or each.publisher.client_id != client_id]
        judge = self._broker.router.judge
        if judge is not None and self._is_judged():
            some = [each for each in some if judge(self._subscription, each.topic)]
        if self._broker.retaining.check_source:
            some = [each for each in some if self._broker.retaining.may_be_replayed(each)]
        if self._broker.any_withheld():
            some = self._broker.retaining.not_withheld(some)
        return some

    def _is_judged(self) -> bool:
        """Return whether the subscription is judged. Its own flag is not updated once another subscription has replaced
        it."""
        subscription = self._subscription
        now = subscription.session.subscriptions.get(subscription.filter)
        return subscription.judged or (now is not None and now.judged)

    def put_back(self, messages: list[Message]) -> None:
        self._again[:0] = [message.topic for message in messages]
