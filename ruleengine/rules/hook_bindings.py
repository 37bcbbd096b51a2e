"""HookBindings: the callbacks in the broker's hooks, each attached only while a rule selects from its event.

Messages do not use hooks: ``Broker.on_rule_match`` is called with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from taipan.broker.config import ZoneSettings
from taipan.broker.core.broker import Broker
from taipan.broker.core.hooks import HookPoint
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.constants import V5
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Properties
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from ..event import Event, EventKind
from ..events import kinds as events
from .rule_index import RuleIndex
from .runtime import Runtime

_ZONE: Final = ZoneSettings()
# EMQX's words for CONNACK codes of 3.x, with its spelling.
_V3_CONNACK: Final[Mapping[int, str]] = {
    reason_codes.V3_ACCEPTED: "connection_accepted",
    reason_codes.V3_UNACCEPTABLE_PROTOCOL_VERSION: "unacceptable_protocol_version",
    reason_codes.V3_IDENTIFIER_REJECTED: "client_identifier_not_valid",
    reason_codes.V3_SERVER_UNAVAILABLE: "server_unavaliable",
    reason_codes.V3_BAD_USER_NAME_OR_PASSWORD: "malformed_username_or_password",
    reason_codes.V3_NOT_AUTHORIZED: "unauthorized_client",
}


class HookBindings:
    """Callbacks that create an ``Event`` from the arguments of a hook and apply the rules to it."""

    def __init__(self, broker: Broker, rule_index: RuleIndex, runtime: Runtime) -> None:
        self._broker = broker
        self._rule_index = rule_index
        self._runtime = runtime
        self._clock = broker.clock
        hooks = broker.hooks
        self._points: dict[str, tuple[HookPoint[Any], Callable[..., object]]] = {
            events.MESSAGE_DELIVERED.topic: (hooks.message_delivered, self._message_delivered),
            events.MESSAGE_ACKED.topic: (hooks.message_acked, self._message_acked),
            events.MESSAGE_DROPPED.topic: (hooks.message_dropped, self._message_dropped),
            events.DELIVERY_DROPPED.topic: (hooks.delivery_dropped, self._delivery_dropped),
            events.CLIENT_CONNECTED.topic: (hooks.client_connected, self._client_connected),
            events.CLIENT_DISCONNECTED.topic: (hooks.client_disconnected, self._client_disconnected),
            events.CLIENT_CONNACK.topic: (hooks.client_connack, self._client_connack),
            events.SESSION_SUBSCRIBED.topic: (hooks.session_subscribed, self._session_subscribed),
            events.SESSION_UNSUBSCRIBED.topic: (hooks.session_unsubscribed, self._session_unsubscribed),
            events.CLIENT_CHECK_ACL_COMPLETE.topic: (hooks.client_check_acl_complete, self._acl_checked),
        }
        self._attached: set[str] = set()
        # Messages published during recovery, such as Wills: kept until the rules are started.
        self._early: list[Message] | None = []
        # The latest event of a message, for the case of many deliveries.
        self._latest: Event | None = None
        broker.attach_rules({}, self._hold_early)

    def sync(self) -> None:
        """Attach exactly the hooks that rules need, and detach the others."""
        wanted = {topic for topic in self._points if topic in self._rule_index.events}
        for topic in wanted - self._attached:
            point, callback = self._points[topic]
            point.add(callback)
        for topic in self._attached - wanted:
            point, callback = self._points[topic]
            point.remove(callback)
        self._attached = wanted
        index = self._rule_index.known if self._rule_index.wants_messages else None
        self._broker.attach_rules(index, self._message_publish)
        self._latest = None
        early, self._early = self._early, None
        if early and self._rule_index.wants_messages:
            for message in early:
                self._message_publish(message)

    # Callbacks, in the order of the list of hooks

    def _hold_early(self, message: Message) -> None:
        if self._early is not None and self._rule_index.sees(message.topic):
            self._early.append(message)

    def _message_publish(self, message: Message) -> None:
        rules = self._rule_index.match(message.topic)
        if rules:
            runtime = self._runtime
            runtime.apply(rules, Event(events.MESSAGE_PUBLISH, runtime.environment, self._clock.wall(), None, message))

    def _message_delivered(self, client: ClientInfo, message: Message) -> None:
        self._dispatch(events.MESSAGE_DELIVERED, client, message)

    def _message_acked(self, client: ClientInfo, message: Message) -> None:
        facts = {"properties": events.present_properties(client.packet_properties)}
        self._dispatch(events.MESSAGE_ACKED, client, message, facts)

    def _message_dropped(self, message: Message, reason: str) -> None:
        self._dispatch(events.MESSAGE_DROPPED, None, message, {"reason": reason})

    def _delivery_dropped(self, client: ClientInfo | None, session: Session, message: Message, reason: str) -> None:
        if client is None:  # restored, and not connected since
            client = ClientInfo(self._runtime.environment.node, _ZONE, client_id=session.client_id)
        self._dispatch(events.DELIVERY_DROPPED, client, message, {"reason": reason})

    def _client_connected(self, client: ClientInfo) -> None:
        self._dispatch(events.CLIENT_CONNECTED, client, None, self._properties(client))

    def _client_disconnected(self, client: ClientInfo, reason: str) -> None:
        self._dispatch(events.CLIENT_DISCONNECTED, client, None, {**self._properties(client), "reason": reason})

    def _client_connack(self, properties: Properties, client: ClientInfo, code: int) -> Properties:
        if client.proto_ver == V5:
            name = reason_codes.name(code)
        else:
            name = _V3_CONNACK[reason_codes.to_v3_connack(code)]
        self._dispatch(events.CLIENT_CONNACK, client, None, {**self._properties(client), "reason_code": name})
        return properties

    def _session_subscribed(self, client: ClientInfo | None, subscription: Subscription, is_new: bool) -> None:
        self._dispatch(events.SESSION_SUBSCRIBED, *self._subscription(client, subscription))

    def _session_unsubscribed(self, client: ClientInfo | None, subscription: Subscription) -> None:
        self._dispatch(events.SESSION_UNSUBSCRIBED, *self._subscription(client, subscription))

    def _acl_checked(self, client: ClientInfo, action: str, topic: str, allowed: bool, cached: bool) -> None:
        facts = {"action": action, "topic": topic, "result": "allow" if allowed else "deny", "is_cache": cached}
        self._dispatch(events.CLIENT_CHECK_ACL_COMPLETE, client, None, facts)

    def _subscription(
        self, client: ClientInfo | None, subscription: Subscription
    ) -> tuple[ClientInfo | None, None, dict[str, object]]:
        facts: dict[str, object] = {"topic": subscription.filter, "qos": subscription.qos, "properties": {}}
        if client is None:
            client = ClientInfo(self._runtime.environment.node, _ZONE, client_id=subscription.session.client_id)
        else:
            facts |= self._properties(client)
        return client, None, facts

    @staticmethod
    def _properties(client: ClientInfo) -> dict[str, object]:
        return {"properties": events.present_properties(client.packet_properties)}

    def _dispatch(
        self,
        kind: EventKind,
        client: ClientInfo | None,
        message: Message | None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        if message is not None and not self._rule_index.sees(message.topic):
            return
        rules = self._rule_index.events.get(kind.topic)
        if rules:
            runtime = self._runtime
            event = Event(kind, runtime.environment, self._clock.wall(), client, message, facts or {})
            if message is not None and not message.paged:
                latest = self._latest
                if latest is not None and latest.message is message:
                    event.columns.share_payload(latest.columns)
                else:
                    self._latest = event
            runtime.apply(rules, event)
