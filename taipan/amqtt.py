"""Broker: run aMQTT's configuration and plugins on a node (docs/coming-from-amqtt.md)."""

from __future__ import annotations

import asyncio
import copy
import logging
import tempfile
from typing import TYPE_CHECKING, Any, ClassVar, Final

try:
    from amqtt.broker import BrokerContext as TheirContext
    from amqtt.broker import RetainedApplicationMessage
    from amqtt.contexts import Action, BrokerConfig
    from amqtt.errors import BrokerError
    from amqtt.events import BrokerEvents
    from amqtt.mqtt.publish import PublishPacket
    from amqtt.session import IncomingApplicationMessage, Session
    from transitions import Machine, MachineError
except ImportError as missing:
    raise ImportError("taipan.amqtt requires the package amqtt: pip install 'amqtt<0.13' transitions") from missing

from .amqtt_plugins import Plugins
from .amqtt_sessions import Sessions
from .amqtt_settings import node_settings
from .broker.core.subscription_plan import plan_filter
from .broker.mqtt.message import Message as BrokerMessage
from .broker.mqtt.packets import TopicFilter
from .broker.session.client_info import ClientInfo
from .broker.session.subscription import Subscription
from .hooks import Filter
from .keywords import Keywords
from .message import Client, Message
from .node import Node

if TYPE_CHECKING:
    from .broker.server import Server

__all__ = ["Broker", "BrokerContext"]

logger = logging.getLogger(__name__)

_REFUSED: Final = 0x80
_TIMEOUT: Final = 30.0
"""The time limit in seconds for one answer of plugins, and for calls that still run at the end."""
_MAX_EARLY: Final = 10_000
"""The most messages that plugins may publish before the broker has started."""
_SYS: Final = "$SYS/broker/"


class BrokerContext(TheirContext):  # type: ignore[misc]  # aMQTT has no types for others
    """The broker as plugins see it: aMQTT's class, except that it can also subscribe an offline client."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)  # our Broker has the methods that it calls
        self._broker = broker

    async def add_subscription(self, client_id: str, topic: str | None, qos: int | None) -> None:
        """Subscribe a client, connected or not. Unless both topic and qos are given, only create its session."""
        session = self._broker.session_of(client_id)
        if topic is not None and qos is not None:
            await self._broker.add_subscription((topic, qos), session)


class Broker:
    """A broker with the interface of ``amqtt.broker.Broker``: ``Broker(config)``, ``start()``, ``shutdown()``.

    Raises BrokerError if it cannot start; for errors in the configuration or a plugin, the exceptions of aMQTT.
    """

    states: ClassVar[list[str]] = ["new", "starting", "started", "not_started", "stopping", "stopped", "not_stopped"]

    def __init__(
        self,
        config: BrokerConfig | dict[str, Any] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        plugin_namespace: str | None = None,
    ) -> None:
        given = BrokerConfig.from_dict(copy.deepcopy(config)) if isinstance(config, dict) else config
        self.config = given or BrokerConfig()
        self.listeners_config = self.config.listeners
        self.transitions: Any = Machine(states=self.states, initial="new")
        add = self.transitions.add_transition
        add(trigger="start", source=["new", "stopped"], dest="starting")
        add(trigger="starting_fail", source="starting", dest="not_started")
        add(trigger="starting_success", source="starting", dest="started")
        add(trigger="shutdown", source="started", dest="stopping")
        add(trigger="stopping_success", source="stopping", dest="stopped")
        add(trigger="stopping_failure", source="stopping", dest="not_stopped")
        self.node: Node | None = None
        self._sessions = Sessions()
        self._early: list[BrokerMessage] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        context = BrokerContext(self)
        context.config = self.config
        self.plugins_manager = Plugins(
            plugin_namespace or "amqtt.broker.plugins", context, loop or asyncio.get_running_loop(), self._count
        )

    def _count(self, reason: str) -> None:
        if self.node is not None:
            self.node._server.metrics.refusals.add(reason)

    # ----------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Accept clients. Raises BrokerError if the broker cannot start; then no resource stays open."""
        try:
            self.transitions.start()
        except MachineError as error:
            raise BrokerError(f"Broker instance can't be started: {error}") from error
        self._sessions.clear()
        self._early.clear()
        try:
            await self.plugins_manager.fire_event(BrokerEvents.PRE_START, wait=True)
            self._directory = tempfile.TemporaryDirectory(prefix="taipan-amqtt-")
            keywords: Keywords = node_settings(self.config, self._directory)  # type: ignore[assignment]
            self.node = Node(**keywords)
            self._attach(self.node)
            await self.node.start()
        except BaseException as error:
            self._forget_node()
            self.transitions.starting_fail()
            if isinstance(error, Exception):
                logger.error("amqtt_start_failed reason=%s", error)
                raise BrokerError(f"Broker instance can't be started: {error}") from error
            raise
        self.transitions.starting_success()
        early, self._early = self._early, []
        for message in early:
            self._publish(message)
        await self.plugins_manager.fire_event(BrokerEvents.POST_START, wait=True)

    async def shutdown(self) -> None:
        """Disconnect the clients and close the broker. Raises MachineError if it does not run."""
        self.transitions.shutdown()
        node = self.node
        assert node is not None
        try:
            try:
                await self.plugins_manager.fire_event(BrokerEvents.PRE_SHUTDOWN, wait=True)
            finally:
                await node.stop()
            await self.plugins_manager.finish(_TIMEOUT)
            await self.plugins_manager.fire_event(BrokerEvents.POST_SHUTDOWN, wait=True)
            await self.plugins_manager.close()
        except BaseException:
            self.transitions.stopping_failure()
            raise
        finally:
            self._forget_node()
        self.transitions.stopping_success()

    def _forget_node(self) -> None:
        self.node = None
        self._sessions.clear()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    @property
    def _server(self) -> Server:
        if self.node is None or not self.node.running:
            raise BrokerError(f"the broker is not started, it is {self.transitions.state}")
        return self.node._server

    # ------------------------------------------------------ plugins are asked

    def _attach(self, node: Node) -> None:
        plugins = self.plugins_manager
        node.add_authenticator(self._authenticate, timeout=_TIMEOUT)
        if plugins.topics:
            node.add_authorizer(self._authorize, timeout=_TIMEOUT)
        node.on_client_connected(self._connected)
        node.on_client_disconnected(self._disconnected)
        node.on_session_terminated(lambda client, reason: self._sessions.ended(client.client_id))
        if plugins.wants(BrokerEvents.CLIENT_SUBSCRIBED):
            node.on_session_subscribed(self._subscribed)
        if plugins.wants(BrokerEvents.CLIENT_UNSUBSCRIBED):
            node.on_session_unsubscribed(self._unsubscribed)
        if plugins.wants(BrokerEvents.MESSAGE_RECEIVED, BrokerEvents.MESSAGE_BROADCAST, BrokerEvents.RETAINED_MESSAGE):
            node.on_message_publish(self._published, priority=-1000)  # after callbacks that may change it

    async def _authenticate(self, client: Client, password: bytes | None) -> bool:
        """Return whether at least one plugin has an answer, and all answers accept the client."""
        try:
            text = None if password is None else password.decode()
        except UnicodeDecodeError:
            return False
        session = self._sessions.make(client, text)
        answers = await self.plugins_manager.map_plugin_auth(session=session)
        given = [each for each in answers.values() if each is not None]
        if not given or not all(given):
            return False
        self._sessions.let_in(client, session)
        return True

    async def _authorize(self, client: Client, action: str, topic: str) -> bool:
        session = self._sessions.of(client)
        if action == "publish":
            return await self._may(session, topic, Action.PUBLISH)
        return await self._may_subscribe(session, topic)

    async def _may(self, session: Session, topic: str, action: Action) -> bool:
        if not self.plugins_manager.topics:
            return True
        answers = await self.plugins_manager.map_plugin_topic(session=session, topic=topic, action=action)
        return all(answers.values())

    async def _may_subscribe(self, session: Session, topic: str) -> bool:
        """Return whether a client may subscribe and receive. Receiving is checked here, not at each delivery."""
        return await self._may(session, topic, Action.SUBSCRIBE) and await self._may(session, topic, Action.RECEIVE)

    # ------------------------------------------------------- plugins are told

    def _tell(self, event: BrokerEvents, who: str, on: str, /, **facts: Any) -> None:
        if not self.plugins_manager.wants(event):
            return
        if self.plugins_manager.full and self.node is not None:
            server = self.node._server
            server.metrics.refusals.add("amqtt_event_dropped")
            server.broker.throttled_log.warn(
                "amqtt_event_dropped", who, on, "plugins_too_slow", "-", server.clock.now(), detail=str(event)
            )
            return
        self.plugins_manager.tell(event, **facts)

    def _connected(self, client: Client) -> None:
        session = self._sessions.connected(client)
        event = BrokerEvents.CLIENT_CONNECTED
        self._tell(event, client.client_id, "", client_id=client.client_id, client_session=session)

    def _disconnected(self, client: Client, reason: str) -> None:
        assert self.node is not None
        stays = self.node._server.broker.sessions.get(client.client_id) is not None
        session = self._sessions.disconnected(client, stays)
        event = BrokerEvents.CLIENT_DISCONNECTED
        self._tell(event, client.client_id, "", client_id=client.client_id, client_session=session)

    def _subscribed(self, client: Client, made: Filter, new: bool) -> None:
        who, topic = client.client_id, made.topic
        self._tell(BrokerEvents.CLIENT_SUBSCRIBED, who, topic, client_id=who, topic=topic, qos=made.qos)

    def _unsubscribed(self, client: Client, made: Filter) -> None:
        who, topic = client.client_id, made.topic
        self._tell(BrokerEvents.CLIENT_UNSUBSCRIBED, who, topic, client_id=who, topic=topic)

    def _published(self, message: Message) -> Message:
        who, topic, qos = message.client_id, message.topic, message.qos
        if who:
            # Plugins get no Packet Identifier: it belongs to the connection.
            given = IncomingApplicationMessage(None, topic, qos, message.payload, message.retain)
            packet = PublishPacket.build(topic, message.payload, 1 if qos else None, False, qos, message.retain)
            given.publish_packet = packet
            self._tell(BrokerEvents.MESSAGE_RECEIVED, who, topic, client_id=who, message=given)
            self._tell(BrokerEvents.MESSAGE_BROADCAST, who, topic, client_id=who, message=given)
        if message.retain:
            kept = RetainedApplicationMessage(self._sessions.by_id.get(who), topic, message.payload, qos)
            self._tell(BrokerEvents.RETAINED_MESSAGE, who, topic, client_id=None, retained_message=kept)
        return message

    # -------------------------------------------------------- plugins publish

    async def internal_message_broadcast(self, topic: str, data: bytes, qos: int | None = None) -> None:
        """Publish as the broker. Without ``qos``, each subscriber receives it with the QoS of its subscription."""
        self._publish(BrokerMessage(topic, self._figure(topic, bytes(data)), 2 if qos is None else qos, False))

    async def retain_message(
        self, source_session: Session | None, topic_name: str, data: bytes | bytearray, qos: int | None = None
    ) -> None:
        """Retain a message without sending it to existing subscribers. Without data, delete the retained message."""
        message = BrokerMessage(topic_name, bytes(data or b""), qos or 0, True)
        if self.plugins_manager.wants(BrokerEvents.RETAINED_MESSAGE):
            kept = RetainedApplicationMessage(source_session, topic_name, message.payload, qos)
            event = BrokerEvents.RETAINED_MESSAGE
            self._tell(event, "", topic_name, client_id=None, retained_message=kept)
        self._publish(message)

    def _publish(self, message: BrokerMessage) -> None:
        if self.node is None or not self.node.running:
            if self.transitions.state != "starting":
                raise BrokerError(f"the broker is not started, it is {self.transitions.state}")
            if len(self._early) >= _MAX_EARLY:
                raise BrokerError(f"plugins have published {_MAX_EARLY} messages before the broker has started")
            self._early.append(message)
            return
        broker = self.node._server.broker
        message.timestamp = broker.clock.now()
        if message.retain:
            broker.retaining.retain(message)
        else:
            broker.publish_internal(message)

    def _figure(self, topic: str, data: bytes) -> bytes:
        """Return the node's counter for one that BrokerSysPlugin counts packet by packet; else ``data``."""
        if self.node is None or not topic.startswith(_SYS):
            return data
        metrics = self.node._server.metrics
        figures = {
            "load/bytes/received": metrics.bytes_received,
            "load/bytes/sent": metrics.bytes_sent,
            "messages/received": metrics.packets_received,
            "messages/sent": metrics.packets_sent,
            "messages/publish/received": metrics.packets_publish_received,
            "messages/publish/sent": metrics.packets_publish_sent,
        }
        found = figures.get(topic.removeprefix(_SYS))
        return data if found is None else str(found).encode()

    # ------------------------------------------------------- what plugins see

    @property
    def sessions(self) -> dict[str, tuple[Session, None]]:
        """The sessions by client ID. The second value is None; in aMQTT it is the handler of the connection."""
        return {client_id: (session, None) for client_id, session in self._sessions.by_id.items()}

    @property
    def subscriptions(self) -> dict[str, list[tuple[Session, int]]]:
        """The subscribed sessions and their QoS, by Topic Filter. Created at each access."""
        found: dict[str, list[tuple[Session, int]]] = {}
        for client_id, session in self._sessions.by_id.items():
            theirs = self._server.broker.sessions.get(client_id)
            for made in () if theirs is None else theirs.subscriptions.values():
                found.setdefault(made.filter, []).append((session, made.qos))
        return found

    @property
    def retained_messages(self) -> dict[str, RetainedApplicationMessage]:
        """The retained messages by topic. Created at each access."""
        retained = self._server.broker.retained
        found = {}
        for topic in list(retained.topics()):
            message = retained.get(topic)
            if message is not None:
                found[topic] = RetainedApplicationMessage(None, topic, message.payload, message.qos)
        return found

    def session_of(self, client_id: str) -> Session:
        """Return the session of a client. If none exists, create one for when the client connects."""
        server = self._server
        if server.broker.sessions.get(client_id) is None:
            zone = server.settings.zones["external"]
            client = ClientInfo(server.settings.node.name, zone, client_id=client_id)
            now = server.clock.now()
            made, _ = server.broker.life.open_session(
                client, False, zone.session_expiry_interval, server.limits_of(zone), now
            )
            made.announced = True
            server.broker.life.leave(made, None, 0, now, "normal")
        session = self._sessions.by_id.get(client_id)
        if session is None:
            session = self._sessions.by_id[client_id] = self._sessions.make(Client(client_id, clean_start=False))
            session.transitions.disconnect()
        return session

    async def add_subscription(self, subscription: tuple[str, int], session: Session) -> int:
        """Subscribe a client as if it had sent a SUBSCRIBE, with checks by plugins. Return the granted QoS, or 0x80."""
        broker = self._server.broker
        topic, qos = subscription
        theirs = broker.sessions.get(session.client_id or "")
        if theirs is None or not await self._may_subscribe(session, topic):
            return _REFUSED
        plan = plan_filter(TopicFilter(topic, qos), theirs.client, broker.rewriting)
        if plan.refusal is not None or plan.exclusive or broker.sessions.get(theirs.client_id) is not theirs:
            return _REFUSED
        broker.subscribe(theirs, Subscription(theirs, topic, qos, group=plan.group, topic_filter=plan.topic_filter))
        theirs.advance(broker.clock.now())
        return qos
