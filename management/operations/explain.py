"""Explain: why something happened to a client, and who would get a message, in the words of log and settings."""

from itertools import islice
from typing import Final

from taipan.broker.mqtt.constants import NEVER_EXPIRES
from taipan.broker.mqtt.topics import valid_name
from taipan.broker.observability.client_events import ClientEvent
from taipan.broker.server import Server
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from .refusal import BAD_TOPIC, NOT_ONLINE, Refusal
from .times import local_text

_RECEIVERS: Final = 1000


class Explain:
    """Answers from what the broker remembers; nothing is changed by asking."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def client(self, client_id: str) -> dict[str, object]:
        """Whether it is here, its session, and the latest that happened to it, newest first.

        Raises Refusal for a client that has neither connection nor session and that nothing is remembered of.
        """
        broker = self._server.broker
        session = broker.sessions.get(client_id)
        events = broker.throttled_log.events.of(client_id)
        connected = client_id in self._server.context.channels
        if session is None and not events:
            raise Refusal(NOT_ONLINE, f"nothing is known of client {client_id}")
        return {
            "clientid": client_id,
            "connected": connected,
            "session": None if session is None else _session(session, self._server.clock.skew),
            "events": [_event(each, self._server.clock.skew) for each in events],
        }

    def topic(self, topic: str) -> dict[str, object]:
        """Who would get a message published to ``topic`` now, and through which filter; at most 1000 of them."""
        if not valid_name(topic):
            raise Refusal(BAD_TOPIC, f"not a topic name: {topic}")
        broker = self._server.broker
        route = broker.router.match(topic)
        retained = broker.retained.get(topic)
        return {
            "topic": topic,
            "receivers": [_receiver(each) for each in islice(route.targets, _RECEIVERS)],
            "receivers_count": len(route.targets),
            "shared": [
                {
                    "topic": group.filter,
                    "members": [member.session.client_id for member in islice(group.members(), 100)],
                }
                for group in route.groups
            ],
            "retained": None if retained is None else {"qos": retained.qos, "octets": retained.payload_size},
            "delayed": self._server.delayed.handles(topic),
        }


def _event(event: ClientEvent, skew: float) -> dict[str, object]:
    return {
        "event": event.event,
        "reason": event.reason,
        "setting": event.setting,
        "topic": event.topic,
        "detail": event.detail,
        "count": event.count,
        "at": local_text(event.at + skew),
        "last_at": local_text(event.last_at + skew),
    }


def _session(session: Session, skew: float) -> dict[str, object]:
    limits = session.limits
    never = session.expiry_interval == NEVER_EXPIRES
    return {
        "created_at": local_text(session.created_at + skew),
        "expires_at": None
        if session.connected or never
        else local_text(session.disconnected_at + session.expiry_interval + skew),
        "durable": session.durable,
        "owner": session.owner,
        "subscriptions": len(session.subscriptions),
        "queued": session.queued,
        "max_queued": limits.max_queued_messages,
        "queue_full": "refuse" if limits.refuse_when_full else "drop_oldest",
        "dropped": session.mqueue_dropped,
        "inflight": len(session.inflight),
        "window": session.window,
        "awaiting_rel": len(session.awaiting_rel or ()),
    }


def _receiver(subscription: Subscription) -> dict[str, object]:
    session = subscription.session
    return {
        "clientid": session.client_id,
        "connected": session.connected,
        "topic": ",".join(each.filter for each in subscription.parts) or subscription.filter,
        "qos": subscription.qos,
    }
