"""Review: subscriptions are authorized again when access rules change and when a session is resumed.

Subscriptions that the client may no longer read are removed, and their queued messages are dropped. Messages that were
sent stay in flight [MQTT-4.4.0-1]. The review runs in slices, for any number of subscriptions."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ..access.decision import Decision
from ..routing.filter_index import FilterIndex
from ..session.client_info import ClientInfo
from ..session.queue import take_queued
from ..session.session import Session
from ..session.subscription import Subscription
from .authorization import apply_decision, authorize
from .channel import CONNECTED, Channel
from .judging import may_be_judged, may_read, set_judged

if TYPE_CHECKING:
    from .context import ChannelContext

logger = logging.getLogger(__name__)

SLICE: Final = 0.005
"""Seconds of an iteration."""

_MAX_QUESTIONS: Final = 16
_DROPPED_PER_STEP: Final = 50
# Seconds after which a service that gave no answer is asked again.
_RETRY: Final = 10.0

NO_DECISIONS: Final[Mapping[str, Decision]] = {}


class SessionReview:
    """The review of one session's subscriptions.

    ``decisions``: those of an external service, by Topic Filter. ``undecided``: filters for which it still has to be
    asked. ``ended``: subscriptions that have already ended: only their queued messages are dropped."""

    def __init__(
        self,
        context: "ChannelContext",
        session: Session,
        decisions: Mapping[str, Decision] = NO_DECISIONS,
        ended: Sequence[Subscription] = (),
    ) -> None:
        self.session = session
        self.undecided: list[Subscription] = []
        # An external service gave no answer.
        self.unanswered = False
        self._context = context
        self._stopwatch = context.reviews.stopwatch
        self._decisions = decisions
        self._ended = list(ended)
        self._steps = self._clear_queue() if ended else self._authorize_all()

    def go_on(self, seconds: float = SLICE) -> bool:
        """Continue for this long; return whether the review is complete."""
        stopwatch = self._stopwatch
        end = stopwatch() + seconds
        return all(stopwatch() < end for _ in self._steps)

    def channel(self) -> Channel | None:
        """Return the channel of its client, if that is connected."""
        channel = self._context.channels.get(self.session.client_id)
        return channel if channel is not None and channel.session is self.session else None

    def _authorize_all(self) -> Iterator[None]:
        for subscription in list(self.session.subscriptions.values()):
            yield
            if subscription.by_operator or not self._holds(subscription):
                continue
            channel = self.channel()
            client = self.session.client if channel is None else channel.client
            topic_filter = seen_filter(subscription, client)
            if topic_filter is None:  # it belonged to another mount point
                self._revoke(subscription, subscription.topic_filter, "mountpoint")
                continue
            decision = self._decide(channel, client, topic_filter)
            if decision is None:
                self.undecided.append(subscription)
            else:
                self._apply(subscription, client, topic_filter, decision)
        yield from self._clear_queue()

    def _apply(self, subscription: Subscription, client: ClientInfo, topic_filter: str, decision: Decision) -> None:
        judged = not decision.allowed and may_be_judged(self._context, client, topic_filter, decision)
        set_judged(self._context, subscription, judged)
        if not decision.allowed and not judged:
            self._revoke(subscription, topic_filter, decision.setting)

    def _holds(self, subscription: Subscription) -> bool:
        """Return whether the subscription still exists and was not replaced."""
        return self.session.subscriptions.get(subscription.filter) is subscription

    def _decide(self, channel: Channel | None, client: ClientInfo, topic_filter: str) -> Decision | None:
        context = self._context
        if channel is None:
            is_superuser = context.access.authentication.is_superuser(client)
            decision = context.authorization.authorize_absent(client, "subscribe", topic_filter, is_superuser)
            # A hook may allow more than the rules do; it is called when the client is connected.
            hooked = decision is not None and not decision.allowed and bool(context.hooks.client_check_acl)
            return None if hooked else decision
        decision = authorize(channel, "subscribe", topic_filter, context.clock.now())
        if decision is None and topic_filter in self._decisions:
            return apply_decision(channel, "subscribe", topic_filter, self._decisions[topic_filter])
        return decision

    def _revoke(self, subscription: Subscription, topic_filter: str, setting: str) -> None:
        end_subscription(self._context, self.session, subscription, topic_filter, setting)
        self._ended.append(subscription)

    async def ask(self) -> None:
        """Ask about undecided filters, for a connected client."""
        authorization = self._context.authorization
        for start in range(0, len(self.undecided), _MAX_QUESTIONS):
            channel = self.channel()
            if channel is None:
                return  # reviewed when it reconnects
            some = self.undecided[start : start + _MAX_QUESTIONS]
            filters = [seen_filter(each, channel.client) or "" for each in some]
            decisions = await authorization.ask(channel.client, "subscribe", filters)
            for subscription, topic_filter, decision in zip(some, filters, decisions, strict=True):
                if self.channel() is not channel or not self._holds(subscription):
                    continue
                if not decision.allowed and not decision.lasting:
                    self.unanswered = True  # an unavailable service removes no subscriptions
                    continue
                decision = apply_decision(channel, "subscribe", topic_filter, decision)
                self._apply(subscription, channel.client, topic_filter, decision)
        self._steps = self._clear_queue()

    def _clear_queue(self) -> Iterator[None]:
        """Drop queued messages that are only from ended subscriptions, and those that rules deny for judged ones; for
        shared groups, other members receive them."""
        session, broker = self.session, self._context.broker
        if session.queue is None:
            return
        judged: FilterIndex[Subscription] = FilterIndex()
        if broker.router.judge is not None:
            for each in list(session.subscriptions.values()):
                yield
                if each.judged and each.group is None:
                    judged.put(each.topic_filter, each)
        if not self._ended and not len(judged):
            return
        groups = {each.filter for each in self._ended if each.group is not None}
        over: FilterIndex[bool] = FilterIndex()
        for each in self._ended:
            yield
            if each.group is None:
                over.put(each.topic_filter, True)
        candidates: list[str] = []
        for topic in session.queue.topics():
            yield
            if over.match(topic) or judged.match(topic):
                candidates.append(topic)
        left: FilterIndex[bool] = FilterIndex()
        if candidates:
            for each in list(session.subscriptions.values()):
                yield
                if each.group is None and not each.judged:
                    left.put(each.topic_filter, True)
        topics: set[str] = set()
        for topic in candidates:
            yield
            if not left.match(topic) and not any(may_read(self._context, each, topic) for each in judged.match(topic)):
                topics.add(topic)
        taken = take_queued(session, topics, groups)
        for start in range(0, len(taken), _DROPPED_PER_STEP):
            broker.withdraw(session, taken[start : start + _DROPPED_PER_STEP], self._context.clock.now())
            yield


class Reviews:
    """Reviews of all sessions in the background when rules have changed, and of single sessions when the permissions of
    their client have changed.

    ``stopwatch``: measures slices. If it does not advance, as in a node without a loop, slices have no end."""

    def __init__(self, context: "ChannelContext") -> None:
        self.stopwatch: Callable[[], float] = perf_counter
        self._context = context
        self._all = False
        # Further sessions to review, in order; and reviews that were too long for one iteration.
        self._some: dict[Session, None] = {}
        self._begun: list[SessionReview] = []
        self._task: asyncio.Task[None] | None = None
        self._running = False
        # When the current slice ends.
        self._end = 0.0

    def start(self) -> None:
        """Start on the running loop. Restored subscriptions may come from other rules."""
        self._running = True
        self.rules_changed()

    def stop(self) -> None:
        self._running = False
        if self._task is not None:
            self._task.cancel()

    @property
    def busy(self) -> bool:
        return self._task is not None

    def rules_changed(self) -> None:
        """Review every session."""
        if self._context.broker.router.judge is not None:
            self._context.broker.router.forget_judgements()
        self._all = True
        self._wake()

    def add(self, session: Session) -> None:
        """Review this session: its client's permissions have changed, or were not checked."""
        self._some[session] = None
        self._wake()

    def clear_queue(self, session: Session, ended: list[Subscription]) -> None:
        """Drop queued messages that are only from subscriptions that have been ended."""
        if session.queue is None:
            return
        review = SessionReview(self._context, session, ended=ended)
        if not review.go_on():
            self._begun.append(review)
            self._wake()

    def _wake(self) -> None:
        if self._running and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._review()
        finally:
            self._task = None

    async def _review(self) -> None:
        self._end = self.stopwatch() + SLICE
        broker = self._context.broker
        while self._begun or self._some or self._all:
            if self._begun:
                reviews = iter([self._begun.pop(0)])
            else:
                sessions = list(self._some)
                self._some.clear()
                if self._all:
                    self._all = False
                    if self._context.authorization.restricts or self._context.hooks.client_check_acl:
                        sessions = list(broker.sessions)
                # Each review is created when its turn comes, because the subscriptions may change until then.
                reviews = (SessionReview(self._context, session) for session in sessions if session.subscriptions)
            for review in reviews:
                try:
                    await self._finish(review)
                except Exception:  # an error in one session; the others are still reviewed
                    logger.exception("review_failed client_id=%s", review.session.client_id)
                    self._again(review.session)

    async def _finish(self, review: SessionReview) -> None:
        while not review.go_on(self._end - self.stopwatch()):
            await asyncio.sleep(SLICE)  # the same time for all others
            self._end = self.stopwatch() + SLICE
        if review.undecided and review.channel() is not None:
            await review.ask()
            self._end = self.stopwatch() + SLICE
            while not review.go_on():
                await asyncio.sleep(SLICE)
        if review.unanswered:
            self._again(review.session)

    def _again(self, session: Session) -> None:
        self._context.timers.at(self._context.clock.now() + _RETRY, lambda: self._retry(session))

    def _retry(self, session: Session) -> None:
        if self._context.broker.sessions.get(session.client_id) is session:
            self.add(session)


def end_subscription(
    context: "ChannelContext", session: Session, subscription: Subscription, topic_filter: str, setting: str
) -> None:
    """Remove a subscription that may no longer be read because of ``setting``. ``topic_filter``: in the form that the
    client knows."""
    context.broker.unsubscribe(session, subscription.filter)
    context.metrics.refusals.add("subscription_revoked")
    throttled_log = context.broker.throttled_log
    throttled_log.warn(
        "subscription_revoked", session.client_id, topic_filter, "not_authorized", setting, context.clock.now()
    )


def seen_filter(subscription: Subscription, client: ClientInfo) -> str | None:
    """Return the filter that rules are checked for, without mount point; None if it is not within the client's mount
    point."""
    mountpoint = client.mountpoint
    if not mountpoint:
        return subscription.topic_filter
    if not subscription.topic_filter.startswith(mountpoint):
        return None
    return subscription.topic_filter[len(mountpoint) :]


def unknown_filters(channel: Channel, session: Session, now: float) -> Iterator[str | None]:
    """Return, for a session that will be resumed, the filters for which an external service must be asked; None: there
    is nothing to ask."""
    authorization = channel.context.authorization
    for subscription in list(session.subscriptions.values()):
        topic_filter = None if subscription.by_operator else seen_filter(subscription, channel.client)
        if topic_filter is None or authorization.authorize(channel.client, "subscribe", topic_filter, now) is not None:
            yield None
        else:
            yield topic_filter


async def until_reviewed(channel: Channel, review: SessionReview) -> bool:
    """Wait until the review is complete; return whether the client is still connected."""
    while not review.go_on():
        await asyncio.sleep(0)
        if channel.state != CONNECTED or channel.session is None:
            return False
    return True
