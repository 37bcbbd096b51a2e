"""SessionLife: how sessions start, wait for their client and end, and when their Wills are published."""

import logging
from typing import TYPE_CHECKING, Final

from ..mqtt import reason_codes
from ..mqtt.constants import NEVER_EXPIRES
from ..mqtt.message import Message
from ..session import inbound_qos2
from ..session.client_info import ClientInfo
from ..session.limits import Limits
from ..session.protocols import QUEUE_FULL
from ..session.queue import EXPIRY_SLICE, expire_queued
from ..session.session import Session
from .inspection import ASKED_FOR, PAUSE, STOPPING
from .outcome import REFUSED, WILL, Outcome

if TYPE_CHECKING:
    from .broker import Broker

logger = logging.getLogger(__name__)

WILL_STEPS: Final = 8
"""Number of deliveries in the loop budget that a published Will counts as."""
_HELD: Final = Outcome(0, "-", "held by the cluster")
"""The Will is published when it is known that no other node has."""

_SESSIONS_PER_SWEEP = 1000
_QUEUED_PER_SWEEP = 20_000  # messages, if sessions have queued messages


class SessionLife:
    """Opens, keeps and ends the sessions of a ``Broker``. Each session ends once, and its Will is published once."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._sessions = broker.sessions
        self._router = broker.router
        self._timers = broker.timers
        self._metrics = broker.metrics
        self._hooks = broker.hooks
        # Client IDs, with the number of their Wills about which a program is asked.
        self._asked_wills: dict[str, int] = {}

    def open_session(
        self, client: ClientInfo, clean_start: bool, expiry_interval: int, limits: Limits, now: float
    ) -> tuple[Session, bool]:
        """Return the session of an accepted client, and whether it existed before from the client's view: a session
        that was created for a connection without a CONNACK is new for this one. No client may be connected to it."""
        session = self._sessions.get(client.client_id)
        if session is not None and clean_start:
            self.discard_session(session, now)
            session = None
        present = session is not None and session.announced
        if session is None:
            session = Session(client, limits, self._broker, now, expiry_interval)
            session.announced = False
            session.account = self._broker.account
            session.owner = client.owner
            self._sessions.add(session)
            self._metrics.session_created += 1
            if self._hooks.session_created:
                self._hooks.session_created(client, session)
            if self._broker.durability is not None and expiry_interval:
                self._broker.durability.sessions.opened(session)
        else:
            self._stop_timers(session)
            self.drop_will(session)  # [MQTT-3.1.3-9] the session continues within the delay
            expire_queued(session, now)
            session.disconnected_at = 0.0
            session.expiry_interval = expiry_interval
            session.client = client
            session.owner = client.owner or session.owner
            self._sessions.count_names(session)
            if present:
                self._metrics.session_resumed += 1
                if self._hooks.session_resumed:
                    self._hooks.session_resumed(client, session)
            if self._broker.durability is not None and session.durable:
                self._broker.durability.sessions.opened(session)
        return session, present

    def discard_session(self, session: Session, now: float) -> None:
        """Discard a session whose client, which is not connected to it, starts a new one [MQTT-3.1.2-4]. A delayed Will
        is published, because the session ends here."""
        self._metrics.session_discarded += 1
        if self._hooks.session_discarded:
            self._hooks.session_discarded(session.client, session)
        self.end_session(session, "discarded", now)

    def suspend_session(self, session: Session) -> None:
        """Stop the timers of a session and its Will, because another node may be about to get the session."""
        self._stop_timers(session)

    def drop_will(self, session: Session) -> None:
        """Do not publish the Will of a session that continues, here or on another node."""
        session.will = None
        self._will_gone(session)

    def continue_session(self, session: Session, will_due: float, now: float) -> None:
        """Keep a session here, or one that has moved here: it ends when it expires, unless its client connects.
        ``will_due``: when its delayed Will is published, if it has one."""
        if session.expiry_interval != NEVER_EXPIRES:
            self.expire_at(session, max(now, min(session.disconnected_at, now) + session.expiry_interval))
        if session.will is not None:
            self.will_at(session, session.will, session.will_number, will_due)

    def adopt_session(self, session: Session) -> None:
        """Add a session from another node, with its subscriptions, which are not in the router yet."""
        self._sessions.add(session)
        self._broker.exclusive.add(session)
        if self._broker.durability is not None:
            journal = self._broker.durability.sessions
            journal.opened(session)
            for subscription in session.subscriptions.values():
                journal.subscribed(session, subscription)

    def forget_session(self, session: Session) -> bool:
        """Remove a session that another node has now, without ending it. Return False if it was not here."""
        if not self._sessions.remove(session):
            return False
        self._stop_timers(session)
        self._broker.exclusive.remove(session, moved=True)
        for subscription in session.subscriptions.values():
            self._router.unsubscribe(subscription)
        session.clear_subscriptions()
        owed = session.undelivered()
        session.end()
        self.drop_will(session)
        if self._broker.durability is not None and session.durable:
            self._broker.durability.sessions.ended(session, owed)
        return True

    def open_internal(self, client: ClientInfo, limits: Limits, now: float) -> Session:
        """Return the session of an internal client: the recovered one, or a new one. It is durable if the node is, and
        ends only by ``end_session``."""
        session = self._sessions.internal.get(client.client_id)
        if session is None:
            session = Session(client, limits, self._broker, now, NEVER_EXPIRES)
            session.account = self._broker.account
            self._sessions.add(session)
            if self._broker.durability is not None:
                self._broker.durability.sessions.opened(session)
        else:
            session.client = client
            session.limits = limits
        return session

    def leave(self, session: Session, will: Message | None, will_delay: int, now: float, reason: str) -> None:
        """Handle the end of a client's connection: its session waits or ends, and its Will is published now or
        later."""
        session.detach()
        session.disconnected_at = now
        session.will = will
        if will is None:
            self._will_gone(session)
        expiry = session.expiry_interval
        if expiry == 0:
            self.end_session(session, reason, now)
            return
        if self._broker.durability is not None and session.durable:
            self._broker.durability.sessions.left(session)
        if expiry != NEVER_EXPIRES:
            self.expire_at(session, now + expiry)
        if will is not None:
            if will_delay == 0:
                self._publish_will(session)
            else:
                # [MQTT-3.1.2-8] after the delay or at the session's end, whichever comes first
                due = now + will_delay
                session.will_timer = self._timers.at(due, lambda: self._publish_will(session))
                self._broker.cluster.will_changed(session.client_id)
                if self._broker.durability is not None and session.will_number:
                    self._broker.durability.node.will_stored(will, will_delay, due, session.will_number)

    def expire_at(self, session: Session, due: float) -> None:
        """End a session without a connected client at ``due``, unless its client comes back."""
        session.expiry_timer = self._timers.at(due, lambda: self._expire(session))

    def will_at(self, session: Session, will: Message, number: int, due: float) -> None:
        """Publish a Will at ``due``, unless its client comes back."""
        session.will = will
        session.will_number = number
        session.will_timer = self._timers.at(due, lambda: self._publish_will(session))
        self._broker.cluster.will_changed(session.client_id)

    def _expire(self, session: Session) -> None:
        session.expiry_timer = None
        logger.info("session_expired client_id=%s expiry_interval=%s", session.client_id, session.expiry_interval)
        self.end_session(session, "expired", self._broker.clock.now())

    def end_session(self, session: Session, reason: str, now: float) -> None:
        """End a session: publish its Will, remove its subscriptions, and pass messages of shared subscriptions to other
        members."""
        if not self._sessions.remove(session):
            return
        if not session.internal:
            self._broker.throttled_log.events.add(session.client_id, now, "session_ended", reason, "-")
        self._stop_timers(session)
        self._broker.exclusive.remove(session)
        for subscription in session.subscriptions.values():
            self._router.unsubscribe(subscription)
        session.clear_subscriptions()
        owed = session.undelivered()
        reassignable = session.end()
        self._publish_will(session)
        for delivery in reassignable:
            self._broker.pass_on(session, delivery, now, QUEUE_FULL)
        if self._broker.durability is not None and session.durable:
            # After the other members have the messages: there is always a session that holds each message.
            self._broker.durability.sessions.ended(session, owed)
        if session.internal:
            return
        self._broker.cluster.session_ended(session)
        if reason == "discarded":
            return
        self._metrics.session_terminated += 1
        if self._hooks.session_terminated:
            self._hooks.session_terminated(session.client, session, reason)

    def publish_waiting_wills(self) -> None:
        """Publish the Wills of all sessions, because every session ends now [MQTT-3.1.2-8]."""
        for session in list(self._sessions):
            if session.will_timer is not None:
                session.will_timer.cancel()
                self._publish_will(session)

    def _publish_will(self, session: Session) -> None:
        session.will_timer = None
        will = session.will
        if will is None:
            return
        session.will = None
        # With a program that is asked about messages, this is decided when it has answered.
        decided = self._broker.inspection is None
        if decided and self._broker.cluster.hold_will(session.client_id, will, session.will_number):
            session.will_number = 0
            return
        if self._timers.enough is not None and self._timers.enough():
            # One of many sessions whose connections end at the same time. The Will stays on disk until it is published.
            number, session.will_number = session.will_number, 0
            self._timers.at(self._broker.clock.now(), lambda: self._send_will(will, number))
            return
        number, session.will_number = session.will_number, 0
        self._send_will(will, number)

    def publish_will_late(self, will: Message, number: int = 0) -> None:
        """Publish a Will that was due earlier, and that no other node publishes. ``number``: its number in the store;
        0: it is not stored."""
        self._send_will(will, number, claimed=True)

    def _send_will(self, will: Message, number: int, give_up: float = 0.0, claimed: bool = False) -> None:
        """Publish a Will that is due, and delete it from the store. ``give_up``: until when it is asked about it again
        if there is no answer; 0: it is due now. ``claimed``: no other node publishes it."""
        self._broker.budget.deliveries += WILL_STEPS
        will.timestamp = now = self._broker.clock.now()  # the Message Expiry Interval starts with the publication
        client_id = "" if will.publisher is None else will.publisher.client_id
        refusal = None if will.publisher is None else self._broker.withheld(will.publisher)
        inspection = self._broker.inspection
        if refusal is not None or inspection is None:
            if give_up:
                self._answered_about_will(client_id)
            self._will_sent(will, number, refusal or self._broker.accept(will, WILL))
            return
        if not give_up:
            give_up = now + ASKED_FOR
            self._asked_wills[client_id] = self._asked_wills.get(client_id, 0) + 1

        def held() -> Outcome | None:
            # Another node may have published it, because it did not hear this one while the question was open.
            return _HELD if not claimed and self._broker.cluster.hold_will(client_id, will, number) else None

        def accepted(outcome: Outcome) -> None:
            now = self._broker.clock.now()
            if outcome.code >= REFUSED and outcome is not STOPPING and now < give_up and inspection.keep(will):
                self._timers.at(now + PAUSE, again)
                return
            if outcome is not STOPPING:
                self._answered_about_will(client_id)
            if outcome is not _HELD:
                self._will_sent(will, number, outcome)

        def again() -> None:
            inspection.keep_no_longer(will)
            self._send_will(will, number, give_up, claimed)

        inspection.accept_later(will, WILL, accepted, held=held)

    def asks_about_will(self, client_id: str) -> bool:
        """Return whether a Will of this client is due, and a program outside the node is asked about it: until the
        answer, another node publishes the Will if this one dies."""
        return client_id in self._asked_wills

    def _answered_about_will(self, client_id: str) -> None:
        left = self._asked_wills.pop(client_id) - 1
        if left:
            self._asked_wills[client_id] = left

    def _will_sent(self, will: Message, number: int, outcome: Outcome) -> None:
        if number and outcome is STOPPING:
            return  # the next start publishes it
        client_id = "" if will.publisher is None else will.publisher.client_id
        self._broker.cluster.will_changed(client_id)
        if outcome.code >= REFUSED:
            self.will_refused(client_id, will.topic, outcome, self._broker.clock.now())
        if number and self._broker.durability is not None:
            self._broker.durability.node.will_gone(number)

    def will_refused(self, client_id: str, topic: str, refusal: Outcome, now: float) -> None:
        """Count and log a Will that is not published."""
        if refusal.code == reason_codes.NOT_AUTHORIZED:
            self._metrics.packets_publish_auth_error += 1
        else:
            self._metrics.packets_publish_error += 1
        self._broker.note_refusal("will_refused", client_id, topic, refusal, now)

    def _will_gone(self, session: Session) -> None:
        self._broker.cluster.will_changed(session.client_id)
        if session.will_number and self._broker.durability is not None:
            self._broker.durability.node.will_gone(session.will_number)
            session.will_number = 0

    def _stop_timers(self, session: Session) -> None:
        for timer in (session.expiry_timer, session.will_timer):
            if timer is not None:
                timer.cancel()
        session.expiry_timer = session.will_timer = None

    def sweep_sessions(self, sessions: list[Session], now: float) -> None:
        """Run housekeeping for sessions from the end of the list, which it removes, as many as a slice allows: remove
        expired queue entries, and QoS 2 identifiers that were never released."""
        left = _QUEUED_PER_SWEEP
        while sessions and left > 0:
            session = sessions.pop()
            left -= _QUEUED_PER_SWEEP // _SESSIONS_PER_SWEEP
            if session.queue is not None:
                left -= min(session.queued, EXPIRY_SLICE)
                expire_queued(session, now)
            if session.awaiting_rel is not None:
                forgotten = inbound_qos2.drop_unreleased(session, now - session.client.zone.await_rel_timeout)
                if forgotten:
                    self._metrics.messages_dropped_await_pubrel_timeout += forgotten
                    logger.warning(
                        "await_pubrel_timeout client_id=%s count=%s setting=await_rel_timeout",
                        session.client_id,
                        forgotten,
                    )
