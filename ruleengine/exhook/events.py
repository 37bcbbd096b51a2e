"""Callbacks: the callbacks of the hook points, which make a request and give it to the provider's lanes."""

from collections.abc import Callable
from typing import Any

from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Properties, TopicFilter
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from .requests import accepted, connection_info, filters_of, message_of, options_of, properties_of, request, result_of

Put = Callable[[str, str, Callable[[], Any]], None]
"""Queues a request: client ID, method, and a function that creates the request."""


class Callbacks:
    """The callbacks of one provider. ``wants``: returns whether the provider receives a message, by hook and topic.
    ``identify``: gives a message its id."""

    def __init__(
        self, node: str, put: Put, wants: Callable[[str, str], bool], identify: Callable[[Message], None]
    ) -> None:
        self._node = node
        self._identify = identify
        self._queue = put
        self._wants = wants

    def by_hook(self) -> dict[str, Callable[..., Any]]:
        """Return the callbacks by EMQX's name of the hook."""
        return {
            "client.connect": self._on_client_connect,
            "client.connack": self._on_client_connack,
            "client.connected": self._on_client_connected,
            "client.disconnected": self._on_client_disconnected,
            "client.subscribe": self._on_client_subscribe,
            "client.unsubscribe": self._on_client_unsubscribe,
            "session.created": self._on_session_created,
            "session.subscribed": self._on_session_subscribed,
            "session.unsubscribed": self._on_session_unsubscribed,
            "session.resumed": self._on_session_resumed,
            "session.discarded": self._on_session_discarded,
            "session.takeovered": self._on_session_takeovered,
            "session.terminated": self._on_session_terminated,
            "message.delivered": self._on_message_delivered,
            "message.dropped": self._on_message_dropped,
            "message.acked": self._on_message_acked,
        }

    def _put(self, client_id: str, kind: str, fields: Callable[[], dict[str, Any]]) -> None:
        self._queue(client_id, f"On{kind}", lambda: request(kind, self._node, **fields()))

    def _of_client(self, kind: str, client: ClientInfo, **more: Any) -> None:
        self._put(client.client_id, kind, lambda: {"clientinfo": accepted(client), **more})

    # ------------------------------------------------------------------ clients

    def _on_client_connect(self, client: ClientInfo, properties: Properties) -> None:
        def fields() -> dict[str, Any]:
            return {"conninfo": connection_info(client), "props": properties_of(properties)}

        self._put(client.client_id, "ClientConnect", fields)

    def _on_client_connack(self, properties: Properties, client: ClientInfo, code: int) -> Properties:
        def fields() -> dict[str, Any]:
            props = properties_of(properties)
            return {"conninfo": connection_info(client), "result_code": result_of(code), "props": props}

        self._put(client.client_id, "ClientConnack", fields)
        return properties

    def _on_client_connected(self, client: ClientInfo) -> None:
        self._of_client("ClientConnected", client)

    def _on_client_disconnected(self, client: ClientInfo, reason: str) -> None:
        self._of_client("ClientDisconnected", client, reason=reason)

    def _on_client_subscribe(
        self, filters: list[TopicFilter], client: ClientInfo, properties: Properties
    ) -> list[TopicFilter]:
        self._of_filters("ClientSubscribe", client, filters, properties)
        return filters

    def _on_client_unsubscribe(self, filters: list[str], client: ClientInfo, properties: Properties) -> list[str]:
        self._of_filters("ClientUnsubscribe", client, [TopicFilter(each) for each in filters], properties)
        return filters

    def _of_filters(self, kind: str, client: ClientInfo, filters: list[TopicFilter], properties: Properties) -> None:
        def fields() -> dict[str, Any]:
            props = properties_of(properties)
            return {"clientinfo": accepted(client), "props": props, "topic_filters": filters_of(filters)}

        self._put(client.client_id, kind, fields)

    # ----------------------------------------------------------------- sessions

    def _on_session_created(self, client: ClientInfo, session: Session) -> None:
        self._of_client("SessionCreated", client)

    def _on_session_subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        def fields() -> dict[str, Any]:
            topic = subscription.topic_filter
            return {"clientinfo": accepted(client), "topic": topic, "subopts": options_of(subscription)}

        self._put(client.client_id, "SessionSubscribed", fields)

    def _on_session_unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        self._of_client("SessionUnsubscribed", client, topic=subscription.topic_filter)

    def _on_session_resumed(self, client: ClientInfo, session: Session) -> None:
        self._of_client("SessionResumed", client)

    def _on_session_discarded(self, client: ClientInfo, session: Session) -> None:
        self._of_client("SessionDiscarded", client)

    def _on_session_takeovered(self, client: ClientInfo, session: Session) -> None:
        self._of_client("SessionTakeovered", client)

    def _on_session_terminated(self, client: ClientInfo, session: Session, reason: str) -> None:
        self._of_client("SessionTerminated", client, reason=reason)

    # ----------------------------------------------------------------- messages

    def _on_message_delivered(self, client: ClientInfo, message: Message) -> None:
        self._of_delivery("message.delivered", "MessageDelivered", client, message)

    def _on_message_acked(self, client: ClientInfo, message: Message) -> None:
        self._of_delivery("message.acked", "MessageAcked", client, message)

    def _of_delivery(self, hook: str, kind: str, client: ClientInfo, message: Message) -> None:
        def fields() -> dict[str, Any]:
            return {"clientinfo": accepted(client), "message": self._message(message)}

        if self._wants(hook, message.topic):
            self._put(client.client_id, kind, fields)

    def _message(self, message: Message) -> Any:
        self._identify(message)
        return message_of(message, self._node)

    def _on_message_dropped(self, message: Message, reason: str) -> None:
        if self._wants("message.dropped", message.topic):
            client_id = "" if message.publisher is None else message.publisher.client_id
            self._put(
                client_id,
                "MessageDropped",
                lambda: {"message": self._message(message), "reason": reason},
            )
