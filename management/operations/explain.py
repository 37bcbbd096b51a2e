"""Explain: why something happened to a client, and which clients would receive a message, in the words of log and
settings."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from taipan.broker.mqtt.constants import NEVER_EXPIRES
from taipan.broker.observability.client_events import ClientEvent
from taipan.broker.observability.refused_clients import RefusedClient
from taipan.broker.server import Server
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from taipan.broker.transport.connection import Connection

from .node_calls import NodeCalls, stopped
from .owners import may_have
from .reasons import advice_of, text_of
from .refusal import NOT_ONLINE, Refusal
from .times import local_text
from .topic_checks import checked_name

NOTHING_RECORDED: Final = (
    "no session and no recorded events. If the client never sent a CONNECT, for example because TLS failed, the log "
    "has listener_limit with its address"
)
_RECEIVERS: Final = 1000
_MEMBERS: Final = 100
"""Maximum number of members that are shown of one shared subscription."""


class RefusedRecord(msgspec.Struct):
    """``clientid_cut``: the Client Identifier was longer than the stored part."""

    clientid: str
    clientid_cut: bool
    username: str | None
    peerhost: str
    listener: str
    reason: str
    setting: str
    text: str
    advice: str
    detail: str
    count: int
    at: str
    last_at: str
    node: str


class Explain:
    """Answers from the broker's recent events; the questions change nothing."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.client_here, self.topic_here, self.refused_here)

    async def client(self, client_id: str) -> tuple[dict[str, Any], list[str]]:
        """Return whether the client is connected, its session, and its latest events, newest first; and the nodes that
        did not answer. In a cluster, each event names its node.

        Raises Refusal for a client without connection, session and events."""
        answers, missing = await self._calls.everywhere(self.client_here, client_id)
        found = [(node, facts) for node, facts in answers if facts is not None]
        if not found:
            node = self._server.cluster.node_of(client_id)
            if node is not None and node not in self._calls.running():
                raise stopped(node)
            raise may_have(missing[0], client_id) if missing else _unknown(client_id)
        _, explained = next((each for each in found if each[1]["session"] is not None), found[0])
        if self._calls.clustered:
            events = [{**event, "node": node} for node, facts in found for event in facts["events"]]
            explained["events"] = sorted(events, key=lambda event: event["last_at"], reverse=True)
        return explained, self._calls.may_lack(missing)

    def client_here(self, client_id: str) -> dict[str, Any] | None:
        """Return the data of this node about the client, if any."""
        broker = self._server.broker
        session = broker.sessions.get(client_id)
        events = broker.throttled_log.events.of(client_id)
        connected = client_id in self._server.context.channels
        if session is None and not events:
            return None
        return {
            "clientid": client_id,
            "connected": connected,
            "session": None if session is None else _session(session, self._server.clock.skew),
            "limits": [] if session is None else list(self._limits(session)),
            "events": [_event(each, self._server.clock.skew) for each in events],
        }

    async def refused(self) -> tuple[list[RefusedRecord], list[str]]:
        """Return the clients that were refused most recently at CONNECT, latest first, and the nodes that did not
        answer."""
        found, missing = await self._calls.everywhere(self.refused_here)
        rows = [row for _, refused in found for row in refused]
        rows.sort(key=lambda row: row.last_at, reverse=True)
        return rows, self._calls.may_lack(missing)

    def refused_here(self) -> list[RefusedRecord]:
        """Return the refused clients of this node."""
        refused = self._server.broker.throttled_log.refused.latest()
        return [_refused(each, self._calls.name, self._server.clock.skew) for each in refused]

    def _limits(self, session: Session) -> Iterator[dict[str, Any]]:
        """Return the limits of this client, and whether each of them is currently reached."""
        limits, zone = session.limits, session.client.zone
        queue = session.queue
        yield _limit("max_queued_messages", session.queued, limits.max_queued_messages)
        yield _limit("max_queued_bytes", 0 if queue is None else queue.size, limits.max_queued_bytes)
        yield _limit("max_inflight", len(session.inflight), session.window)
        yield _limit("max_awaiting_rel", len(session.awaiting_rel or ()), limits.max_awaiting_rel)
        yield _limit("max_subscriptions", len(session.subscriptions), zone.max_subscriptions)
        yield _limit("max_subscription_bytes", session.filter_bytes, zone.max_subscription_bytes)
        channel = self._server.context.channels.get(session.client_id)
        if channel is None or not isinstance(channel.connection, Connection):
            return
        for setting, rate in zip(("message_rate", "byte_rate"), channel.connection.limits, strict=True):
            if rate is not None:
                yield {"setting": setting, "now": None, "most": list(rate), "reached": channel.connection.slowed}

    async def topic(self, topic: str) -> tuple[dict[str, Any], list[str]]:
        """Return the clients that would receive a message published to ``topic`` now, with their filters, at most 1000;
        and the nodes that did not answer. In a cluster, each receiver names its node."""
        checked_name("topic", topic)
        if not self._calls.clustered:
            return self.topic_here(topic), []
        found, missing = await self._calls.everywhere(self.topic_here, topic)
        explained = dict(found)[self._calls.name]
        receivers = [{**each, "node": node} for node, facts in found for each in facts["receivers"]]
        explained["receivers"] = receivers[:_RECEIVERS]
        explained["receivers_count"] = sum(facts["receivers_count"] for _, facts in found)
        members: dict[str, list[str]] = {}
        for _, facts in found:
            for group in facts["shared"]:
                members.setdefault(group["topic"], []).extend(group["members"])
        explained["shared"] = [{"topic": filter, "members": each[:_MEMBERS]} for filter, each in members.items()]
        return explained, self._calls.may_lack(missing)

    def topic_here(self, topic: str) -> dict[str, Any]:
        """Return the receivers at this node."""
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
                    "members": [member.session.client_id for member in islice(group.members(), _MEMBERS)],
                }
                for group in route.groups
            ],
            "retained": None if retained is None else {"qos": retained.qos, "octets": retained.payload_size},
            "delayed": self._server.delayed.handles(topic),
        }


def _unknown(client_id: str) -> Refusal:
    return Refusal(NOT_ONLINE, f"client {client_id}: {NOTHING_RECORDED}")


def _event(event: ClientEvent, skew: float) -> dict[str, Any]:
    return {
        "event": event.event,
        "reason": event.reason,
        "setting": event.setting,
        "text": text_of(event.event, event.reason, event.setting),
        "advice": advice_of(event.event, event.reason, event.setting),
        "topic": event.topic,
        "detail": event.detail,
        "count": event.count,
        "at": local_text(event.at + skew),
        "last_at": local_text(event.last_at + skew),
    }


def _refused(refused: RefusedClient, node: str, skew: float) -> RefusedRecord:
    return RefusedRecord(
        clientid=refused.client_id,
        clientid_cut=refused.is_cut,
        username=refused.username,
        peerhost=refused.peer_host,
        listener=refused.listener,
        reason=refused.reason,
        setting=refused.setting,
        text=text_of("client_refused", refused.reason, refused.setting),
        advice=advice_of("client_refused", refused.reason, refused.setting),
        detail=refused.detail,
        count=refused.count,
        at=local_text(refused.at + skew),
        last_at=local_text(refused.last_at + skew),
        node=node,
    )


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


def _limit(setting: str, now: int, most: int) -> dict[str, Any]:
    return {"setting": setting, "now": now, "most": most, "reached": 0 < most <= now}


def _receiver(subscription: Subscription) -> dict[str, object]:
    session = subscription.session
    return {
        "clientid": session.client_id,
        "connected": session.connected,
        "topic": ",".join(each.filter for each in subscription.parts) or subscription.filter,
        "qos": subscription.qos,
    }
