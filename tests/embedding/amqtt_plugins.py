"""Plugins as users of aMQTT write them, for the tests."""

from dataclasses import dataclass, field
from typing import Any

from amqtt.broker import BrokerContext
from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
from amqtt.session import Session

told: list[tuple[Any, ...]] = []


class Users(BaseAuthPlugin):
    """True for a known user, False for a wrong password, None for who gives no name."""

    @dataclass
    class Config:
        users: dict[str, str] = field(default_factory=dict)

    async def authenticate(self, *, session: Session) -> bool | None:
        if session.username is None:
            return None
        session.attributes["tests.role"] = "writer" if session.username == "ann" else "reader"
        return bool(self.config.users.get(session.username) == session.password)


class Fails(BaseAuthPlugin):
    async def authenticate(self, *, session: Session) -> bool | None:
        raise RuntimeError("no database")


class Writers(BaseTopicPlugin):
    """Only a writer publishes; what is below secret is for nobody."""

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        told.append(("asked", session and session.client_id, topic, str(action)))
        assert session is not None and topic is not None
        if topic == "fails":
            raise RuntimeError("no database")
        if action == Action.PUBLISH:
            return bool(session.attributes["tests.role"] == "writer")
        return not topic.startswith("secret")


class Events(BasePlugin[BrokerContext]):
    async def on_broker_pre_start(self) -> None:
        told.append(("pre_start",))
        await self.context.retain_message("hello", b"before")

    async def on_broker_post_start(self) -> None:
        told.append(("post_start",))

    async def on_broker_pre_shutdown(self) -> None:
        told.append(("pre_shutdown",))

    async def on_broker_post_shutdown(self) -> None:
        told.append(("post_shutdown",))

    async def on_broker_client_connected(self, *, client_id: str, client_session: Session) -> None:
        assert self.context.get_session(client_id) is client_session
        told.append(("connected", client_id, client_session.username))

    async def on_broker_client_disconnected(self, *, client_id: str, client_session: Session) -> None:
        told.append(("disconnected", client_id, client_session.username))

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        told.append(("subscribed", client_id, topic, qos))

    async def on_broker_client_unsubscribed(self, *, client_id: str, topic: str) -> None:
        told.append(("unsubscribed", client_id, topic))

    async def on_broker_message_received(self, *, client_id: str, message: Any) -> None:
        told.append(("received", client_id, message.topic, bytes(message.data), message.qos))
        if message.topic == "ask":
            await self.context.broadcast_message("answer", b"1")

    async def on_broker_message_broadcast(self, *, client_id: str, message: Any) -> None:
        told.append(("broadcast", client_id, message.topic, message.publish_packet.retain_flag))

    async def on_broker_retained_message(self, *, client_id: str | None, retained_message: Any) -> None:
        told.append(("retained", client_id, retained_message.topic, bytes(retained_message.data)))

    async def close(self) -> None:
        told.append(("close",))


class FailsAtEvents(BasePlugin[BrokerContext]):
    async def on_broker_client_connected(self, *, client_id: str, client_session: Session) -> None:
        raise RuntimeError("no such table")


class Packets(BasePlugin[BrokerContext]):
    async def on_mqtt_packet_received(self, *, packet: Any, session: Session | None = None) -> None:
        raise AssertionError


class FailsAtInit(BasePlugin[BrokerContext]):
    def __init__(self, context: BrokerContext) -> None:
        raise RuntimeError("no licence")


class NoPlugin:
    def __init__(self, context: BaseContext) -> None:
        raise AssertionError


class Waits(BasePlugin[BrokerContext]):
    """Its calls end when the broker does."""

    async def on_broker_message_received(self, *, client_id: str, message: Any) -> None:
        import asyncio

        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(("cancelled",))
            raise
