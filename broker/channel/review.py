"""Review: subscriptions are authorized again, when access rules change and when a session is resumed.

What its client may not read any more is unsubscribed, and what waits of it in the queue is dropped. What was sent is
the client's: it stays in flight [MQTT-4.4.0-1]. All of it goes on in slices of an iteration, however many there are.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ..access.decision import Decision
from ..routing.filter_index import FilterIndex
from ..session.client_info import ClientInfo
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
    """One session's subscriptions, authorized again.

    ``decisions``: of a service outside, by Topic Filter. ``undecided``: what it has still to be asked about.
    ``ended``: subscriptions that are over already: only what waits of them in the queue is dropped.
    """

    def __init__(
        self,
        context: "ChannelContext",
        session: Session,
        decisions: Mapping[str, Decision] = NO_DECISIONS,
        ended: Sequence[Subscription] = (),
    ) -> None:
        self.session = session
        self.undecided: list[Subscription] = []
        # A service outside gave no answer.
        self.unanswered = False
        self._context = context
        self._stopwatch = context.reviews.stopwatch
        self._decisions = decisions
        self._ended = list(ended)
        self._steps = self._clear_queue() if ended else self._authorize_all()

    def go_on(self, seconds: float = SLICE) -> bool:
        """Go on for so long; whether it is through."""
        stopwatch = self._stopwatch
        end = stopwatch() + seconds
        return all(stopwatch() < end for _ in self._steps)

    def channel(self) -> Channel | None:
        """Of its client, if that is here."""
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
            if topic_filter is None:  # it was another mount point's
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
        """Whether it is there still, and no other one in its place."""
        return self.session.subscriptions.get(subscription.filter) is subscription

    def _decide(self, channel: Channel | None, client: ClientInfo, topic_filter: str) -> Decision | None:
        context = self._context
        if channel is None:
            is_superuser = context.access.authentication.is_superuser(client)
            decision = context.authorization.authorize_absent(client, "subscribe", topic_filter, is_superuser)
            # A hook may allow what no rule does; it is asked when the client is connected.
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
        """Ask about what is undecided, of a client that is here."""
        authorization = self._context.authorization
        for start in range(0, len(self.undecided), _MAX_QUESTIONS):
            channel = self.channel()
            if channel is None:
                return  # reviewed when it is back
            some = self.undecided[start : start + _MAX_QUESTIONS]
            filters = [seen_filter(each, channel.client) or "" for each in some]
            decisions = await authorization.ask(channel.client, "subscribe", filters)
            for subscription, topic_filter, decision in zip(some, filters, decisions, strict=True):
                if self.channel() is not channel or not self._holds(subscription):
                    continue
                if not decision.allowed and not decision.lasting:
                    self.unanswered = True  # that a service is away takes nothing from any client
                    continue
                decision = apply_decision(channel, "subscribe", topic_filter, decision)
                self._apply(subscription, channel.client, topic_filter, decision)
        self._steps = self._clear_queue()

    def _clear_queue(self) -> Iterator[None]:
        """Drop what waits of subscriptions that are over and of no other, and what rules deny of judged ones; other
        members get what was of a group."""
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
        taken = session.take_queued(topics, groups)
        for start in range(0, len(taken), _DROPPED_PER_STEP):
            broker.withdraw(session, taken[start : start + _DROPPED_PER_STEP], self._context.clock.now())
            yield


class Reviews:
    """All sessions in the background, when rules have changed; some of them, when what they may do has.

    ``stopwatch``: by it slices end. Where it stands still, as in a node without a loop, none does.
    """

    def __init__(self, context: "ChannelContext") -> None:
        self.stopwatch: Callable[[], float] = perf_counter
        self._context = context
        self._all = False
        # Sessions to review besides, in order; and reviews that were too long for one iteration.
        self._some: dict[Session, None] = {}
        self._begun: list[SessionReview] = []
        self._task: asyncio.Task[None] | None = None
        self._running = False
        # When the slice that is under way ends.
        self._end = 0.0

    def start(self) -> None:
        """On the running loop. What was restored may be of other rules."""
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
        """Review this one: what its client may do has changed, or was not asked."""
        self._some[session] = None
        self._wake()

    def clear_queue(self, session: Session, ended: list[Subscription]) -> None:
        """Drop what waits of subscriptions that have been ended, and of no other."""
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
                # Each is made when it is its turn: by then its subscriptions are others.
                reviews = (SessionReview(self._context, session) for session in sessions if session.subscriptions)
            for review in reviews:
                try:
                    await self._finish(review)
                except Exception:  # of one session; the others are reviewed all the same
                    logger.exception("review_failed client_id=%s", review.session.client_id)
                    self._again(review.session)

    async def _finish(self, review: SessionReview) -> None:
        while not review.go_on(self._end - self.stopwatch()):
            await asyncio.sleep(SLICE)  # as long for all others
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
    """Unsubscribe what may not be read any more because of ``setting``. ``topic_filter``: as the client knows it."""
    context.broker.unsubscribe(session, subscription.filter)
    context.metrics.refusals.add("subscription_revoked")
    throttled_log = context.broker.throttled_log
    throttled_log.warn(
        "subscription_revoked", session.client_id, topic_filter, "not_authorized", setting, context.clock.now()
    )


def seen_filter(subscription: Subscription, client: ClientInfo) -> str | None:
    """What rules are asked about: the filter without mount point; None where it is not within the client's."""
    mountpoint = client.mountpoint
    if not mountpoint:
        return subscription.topic_filter
    if not subscription.topic_filter.startswith(mountpoint):
        return None
    return subscription.topic_filter[len(mountpoint) :]


def unknown_filters(channel: Channel, session: Session, now: float) -> Iterator[str | None]:
    """Of a session that is to go on: filters that a service outside must be asked about; None: one that need not."""
    authorization = channel.context.authorization
    for subscription in list(session.subscriptions.values()):
        topic_filter = None if subscription.by_operator else seen_filter(subscription, channel.client)
        if topic_filter is None or authorization.authorize(channel.client, "subscribe", topic_filter, now) is not None:
            yield None
        else:
            yield topic_filter


async def until_reviewed(channel: Channel, review: SessionReview) -> bool:
    """Whether the client is here still when it is through."""
    while not review.go_on():
        await asyncio.sleep(0)
        if channel.state != CONNECTED or channel.session is None:
            return False
    return True
