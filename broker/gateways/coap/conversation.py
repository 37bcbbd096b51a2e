"""The conversation of a CoAP client with the node: requests on one side, MQTT packets on the other.

``state`` names what the client may do next. A request names its client (``c``, ``u``, ``p``), so the first request logs
the client in, and waits for the result. A request that names another client begins a new conversation. ``mqtt`` has
EMQX's resources below ``/mqtt``; those below ``/ps`` are in ``pubsub``. ``_waiting`` has the requests that the broker
has not answered, by packet identifier."""

from collections.abc import Callable
from typing import Final

from ...gateway import GatewayLink, Pending
from ...mqtt import reason_codes
from ...mqtt.constants import (
    MAXIMUM_QOS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER,
)
from ...mqtt.encoder import Outgoing as MqttPacket
from ...mqtt.message import Message
from ...mqtt.packets import (
    NO_PROPERTIES,
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    TopicFilter,
    Unsubscribe,
)
from ...mqtt.topics import is_shared, valid_filter, valid_name
from . import codec
from .codec import GET, PUT
from .exchange import CoapEndpoint, CoapRequest, Confirmable
from .observe import Observation, Observations
from .pubsub import TopicResources
from .settings import CoapSettings

# The states.
NEW: Final = 0  # nothing is known of the address
LOGGING_IN: Final = 1  # the broker has the CONNECT
ACTIVE: Final = 2
OVER: Final = 3

V5: Final = 5
MAX_OPEN: Final = 64
"""Requests of a client that wait for the broker; a further one is answered with 5.03."""
LINKS: Final = b"</mqtt>,</ps>"
ASK_AGAIN: Final = 0.1
"""Seconds until the session is looked at again, if retained messages of a subscription are still to come."""

_UNAVAILABLE: Final = frozenset(
    (reason_codes.SERVER_UNAVAILABLE, reason_codes.SERVER_BUSY, reason_codes.SERVER_SHUTTING_DOWN,
     reason_codes.QUOTA_EXCEEDED, reason_codes.MESSAGE_RATE_TOO_HIGH, reason_codes.CONNECTION_RATE_EXCEEDED,
     reason_codes.USE_ANOTHER_SERVER, reason_codes.SERVER_MOVED)
)  # fmt: skip
_CODES: Final = {
    reason_codes.NOT_AUTHORIZED: codec.FORBIDDEN,
    reason_codes.BANNED: codec.FORBIDDEN,
    reason_codes.CLIENT_IDENTIFIER_NOT_VALID: codec.BAD_REQUEST,
    reason_codes.TOPIC_NAME_INVALID: codec.BAD_REQUEST,
    reason_codes.TOPIC_FILTER_INVALID: codec.BAD_REQUEST,
    reason_codes.PACKET_TOO_LARGE: codec.TOO_LARGE,
    reason_codes.RETAIN_NOT_SUPPORTED: codec.NOT_IMPLEMENTED,
    reason_codes.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: codec.NOT_IMPLEMENTED,
    reason_codes.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: codec.NOT_IMPLEMENTED,
}
_LOGIN_CODES: Final = {
    reason_codes.NOT_AUTHORIZED: codec.UNAUTHORIZED,
    reason_codes.BAD_USER_NAME_OR_PASSWORD: codec.UNAUTHORIZED,
    reason_codes.BAD_AUTHENTICATION_METHOD: codec.UNAUTHORIZED,
}


def code_of(reason_code: int) -> int:
    """Return the response code for a Reason Code that is a failure."""
    if reason_code in _UNAVAILABLE:
        return codec.UNAVAILABLE
    return _CODES.get(reason_code, codec.INTERNAL_ERROR)


class Observed:
    """A topic filter that the client observes or reads. ``identifier``: that of its subscription. ``name``: the filter
    after topic rewrite, so that two filters with the same result share an entry; ``subscribed``: the first of these
    filters, as the client names it. ``users``: observations and reads that need it."""

    __slots__ = ("identifier", "name", "subscribed", "users")

    def __init__(self, identifier: int, name: str, subscribed: str) -> None:
        self.identifier = identifier
        self.name = name
        self.subscribed = subscribed
        self.users = 0


Credentials = tuple[str, str | None, str | None]


class CoapConversation:
    """One client's conversation. ``broker.gateway.GatewayChannel`` describes the methods that the node calls."""

    __slots__ = (
        "_asked", "_by_identifier", "_credentials", "_data", "_endpoint", "_filters", "_held", "_identifier",
        "_last_use", "_limits", "_link", "_observations", "_packet_id", "_pubsub", "_settings", "_timer", "_waiting",
        "state",
    )  # fmt: skip

    def __init__(self, link: GatewayLink, settings: CoapSettings) -> None:
        self.state = NEW
        self._link = link
        self._settings = settings
        self._endpoint = CoapEndpoint(link, settings, self._serve, self._lost, self._begins, self._more)
        self._data = b""  # the datagram that is being taken
        self._credentials: Credentials | None = None
        self._held: list[Callable[[], None]] | None = None  # what waits for the login
        self._limits = MAX_OPEN, 2, True
        self._packet_id = 0
        self._waiting: dict[int, Callable[[int], None]] | None = None  # packet identifier -> what takes the Reason Code
        self._observations: Observations | None = None
        self._filters: dict[str, Observed] | None = None
        self._by_identifier: dict[int, Observed] | None = None
        self._identifier = 0
        self._pubsub: TopicResources | None = None
        self._asked = False  # a PINGREQ is not answered
        self._timer: Pending | None = None
        self._last_use = 0.0

    # ------------------------------------------------------------------------------------------ from the client

    def received(self, data: bytes) -> int:
        """Take one datagram."""
        if self.state != OVER:
            self._last_use = self._link.now()
            self._data = data
            self._endpoint.received(data)
            self._data = b""
        return len(data)

    def _serve(self, request: CoapRequest) -> None:
        match request.path:
            case (".well-known", "core"):
                _answer_links(request)
            case ("mqtt", *_) if request.code not in (GET, PUT):
                request.answer(codec.METHOD_NOT_ALLOWED)
            case ("mqtt" | "ps", *levels) if self._admits(request):
                topic = "/".join(levels)
                serve = self._serve_mqtt if request.path[0] == "mqtt" else self._serve_pubsub
                if self.state == ACTIVE:
                    serve(request, topic)
                elif self._hold(request):
                    assert self._held is not None
                    self._held.append(lambda: serve(request, topic))
            case ("mqtt" | "ps", *_):
                pass
            case _:
                request.answer(codec.NOT_FOUND)

    def _begins(self, request: CoapRequest) -> int:
        """Handle the first block of a large request: the client logs in before it sends the other blocks."""
        if not request.path or request.path[0] not in ("mqtt", "ps"):
            return codec.NOT_FOUND
        if self._admits(request):
            return 0
        return codec.BAD_REQUEST if self.state != OVER else codec.UNAVAILABLE

    def _hold(self, request: CoapRequest) -> bool:
        if self._held is None:
            self._held = []
        if len(self._held) >= MAX_OPEN:
            request.answer(codec.UNAVAILABLE)
            return False
        return True

    # The login

    def _admits(self, request: CoapRequest) -> bool:
        """Return whether the request belongs to this client; log the client in if this is its first request."""
        client_id = request.argument("c")
        if not client_id:
            request.answer(codec.BAD_REQUEST, b"the query has no c={client id}")
            return False
        credentials = client_id, request.argument("u"), request.argument("p")
        if self.state == NEW:
            self._log_in(credentials)
        elif credentials != self._credentials:
            self._begin_again(request)
            return False
        return True

    def _log_in(self, credentials: Credentials) -> None:
        client_id, username, password = credentials
        self._credentials = credentials
        self.state = LOGGING_IN
        properties: Properties = {RECEIVE_MAXIMUM: MAX_OPEN}
        secret = None if password is None else password.encode()
        self._link.send(Connect(V5, client_id, True, 0, username, secret, None, properties))

    def _begin_again(self, request: CoapRequest) -> None:
        """Pass the datagram to a new conversation, because a different client uses the address, or the client has
        changed its credentials."""
        if self.state == LOGGING_IN:
            request.answer(codec.UNAVAILABLE)
            return
        request.forget()
        data = self._data
        self._end(codec.UNAVAILABLE)
        self._link.send(Disconnect())
        self._link.renew(data)

    # /mqtt

    def _serve_mqtt(self, request: CoapRequest, topic: str) -> None:
        if request.code == GET:
            if request.observe == 0:
                self._observe_mqtt(request, topic)
            elif request.observe == 1:
                self.stop_observing(request, topic)
                request.answer(codec.CONTENT)
            else:
                request.answer(codec.CONTENT)
        elif not valid_name(topic):
            request.answer(codec.BAD_REQUEST, b"not a topic name")
        else:
            self.publish(request, topic, lambda code: request.answer(code or codec.CHANGED))

    def _observe_mqtt(self, request: CoapRequest, topic: str) -> None:
        content_format = codec.OCTET_STREAM if request.accept is None else request.accept
        self.observe(
            request, topic, content_format,
            lambda observation: request.answer(
                codec.CONTENT, options=[(codec.OBSERVE, observation.next_sequence())]
            ),
        )  # fmt: skip

    def _serve_pubsub(self, request: CoapRequest, topic: str) -> None:
        if self._pubsub is None:
            self._pubsub = TopicResources(self, self._link)
        self._pubsub.serve(request, topic)

    # ------------------------------------------------------------------------------------------ requests of MQTT

    def publish(
        self, request: CoapRequest, topic: str, done: Callable[[int], None], retain: bool = False,
        payload: bytes | None = None, properties: Properties = NO_PROPERTIES,
    ) -> None:  # fmt: skip
        """Publish the payload of a request, or another one. ``done`` receives 0 when the node has accepted the message,
        or the code of the answer that refuses it."""
        _, max_qos, may_retain = self._limits
        data = request.payload if payload is None else payload
        if retain and not may_retain:
            done(codec.NOT_IMPLEMENTED)
        elif not max_qos:  # nothing is known of it but that the node has it
            self._link.publish(topic, data, 0, retain, properties=properties)
            done(0)
        else:
            packet_id = self._expect(request, lambda reason: done(0 if reason < 0x80 else code_of(reason)))
            if packet_id:
                self._link.publish(topic, data, 1, retain, packet_id, properties)

    def observe(
        self, request: CoapRequest, topic_filter: str, content_format: int, done: Callable[[Observation], None],
        retain_handling: int = 0,
    ) -> None:  # fmt: skip
        """Subscribe, and begin an observation; ``done`` receives the observation and has to answer. A refusal is
        answered here."""
        target = self._link.rewritten(topic_filter)

        def subscribed() -> None:
            old = self.observations.find(request.token)
            if old is not None and old.target != target:
                self.end_observation(old)  # RFC 7641, section 4.1: the token has another one now
            observation = self.observations.add(request, target, content_format)
            if observation is None:
                self.release(target)
                request.answer(codec.UNAVAILABLE, b"too many observations")
                return
            if observation.sequence:
                self.release(target)  # it is registered again
            done(observation)

        self.subscribe(request, topic_filter, subscribed, retain_handling)

    def subscribe(
        self, request: CoapRequest, topic_filter: str, done: Callable[[], None], retain_handling: int
    ) -> None:  # fmt: skip
        """Subscribe for a request, until ``release`` of the rewritten filter. A refusal is answered here."""
        if not (is_shared(topic_filter) or valid_filter(topic_filter)):
            request.answer(codec.BAD_REQUEST, b"not a topic filter")
            return

        target = self._link.rewritten(topic_filter)

        def subscribed(reason: int) -> None:
            if reason >= 0x80:
                self.release(target)
                request.answer(code_of(reason))
            else:
                done()

        packet_id = self._expect(request, subscribed)
        if packet_id:
            wanted = self._wanted(target, topic_filter)
            properties: Properties = {SUBSCRIPTION_IDENTIFIER: wanted.identifier}
            filters = [TopicFilter(wanted.subscribed, 0, retain_handling=retain_handling)]
            self._link.send(Subscribe(packet_id, filters, properties))

    def _wanted(self, target: str, topic_filter: str) -> Observed:
        if self._filters is None or self._by_identifier is None:
            self._filters, self._by_identifier = {}, {}
        wanted = self._filters.get(target)
        if wanted is None:
            self._identifier += 1
            wanted = self._filters[target] = Observed(self._identifier, target, topic_filter)
            self._by_identifier[wanted.identifier] = wanted
        wanted.users += 1
        return wanted

    def release(self, target: str) -> None:
        """Release a subscription that a request no longer needs. ``target``: its filter after topic rewrite."""
        if self._filters is None or self._by_identifier is None:
            return
        wanted = self._filters[target]
        wanted.users -= 1
        if wanted.users:
            return
        del self._filters[target], self._by_identifier[wanted.identifier]
        if self.state == ACTIVE:
            self._packet_id = self._packet_id % 0xFFFF + 1
            self._link.send(Unsubscribe(self._packet_id, [wanted.subscribed]))

    def stop_observing(self, request: CoapRequest, topic_filter: str) -> None:
        """End the observation with the token of a request; if there is none, end those of the topic filter."""
        found = self.observations.find(request.token)
        for each in [found] if found is not None else self.observations.of(self._link.rewritten(topic_filter)):
            self.end_observation(each)

    def end_observation(self, observation: Observation) -> None:
        """End an observation that the client no longer uses."""
        self.observations.remove(observation)
        self.release(observation.target)

    def _expect(self, request: CoapRequest, done: Callable[[int], None]) -> int:
        """Return a free packet identifier, and pass its acknowledgement to ``done``; 0: none is free, and the request
        was answered."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = {}
        if len(waiting) >= self._limits[0]:
            request.answer(codec.UNAVAILABLE)
            return 0
        while True:
            self._packet_id = self._packet_id % 0xFFFF + 1
            if self._packet_id not in waiting:
                waiting[self._packet_id] = done
                return self._packet_id

    def judge(self, request: CoapRequest, topics: list[str], judged: Callable[[list[bool]], None]) -> None:
        """Call ``judged`` with whether the client may publish to each of these topics. If the decision is not possible,
        the request is answered here."""
        allowed: list[bool] = []
        packet_id = self._expect(
            request, lambda reason: request.answer(code_of(reason)) if reason >= 0x80 else judged(allowed)
        )

        def answered(found: list[bool]) -> None:
            allowed.extend(found)
            self._acknowledged(packet_id, reason_codes.SUCCESS)

        if packet_id:
            self._link.may_publish(topics, answered)

    def ask_session(self) -> None:
        """Have ``TopicResources.settled`` called when all retained messages of the subscriptions have arrived."""
        if not self._asked and self.state == ACTIVE:
            self._asked = True
            self._link.send(Pingreq())

    # ------------------------------------------------------------------------------------------ from the broker

    def packet(self, packet: MqttPacket) -> None:
        """Translate a packet for the client."""
        if self.state == OVER:
            return
        if isinstance(packet, Message):
            self._deliver(packet)
            if packet.qos:  # of a subscription that the operator has made for the client
                self._link.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
        elif isinstance(packet, Ack) and packet.type == PUBREL:
            self._link.send(Ack(PUBCOMP, packet.packet_id))
        elif isinstance(packet, Ack):
            self._acknowledged(packet.packet_id, packet.reason_code)
        elif isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Suback):
            self._acknowledged(packet.packet_id, packet.reason_codes[0])
        elif isinstance(packet, Pingresp):
            self._asked = False
            self._session_answered()
        elif isinstance(packet, Disconnect):
            self._end(_CODES.get(packet.reason_code, codec.UNAVAILABLE))

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason_code:
            self._end(_LOGIN_CODES.get(packet.reason_code) or code_of(packet.reason_code))
            return
        properties = packet.properties
        most = min(MAX_OPEN, int(properties.get(RECEIVE_MAXIMUM, MAX_OPEN)))
        self._limits = most, int(properties.get(MAXIMUM_QOS, 2)), bool(properties.get(RETAIN_AVAILABLE, 1))
        self.state = ACTIVE
        self._link.expect_within(0)  # ``client_timeout`` decides
        held, self._held = self._held, None
        for serve in held or ():
            serve()
        self._check_later()

    def _acknowledged(self, packet_id: int, reason: int) -> None:
        done = None if self._waiting is None else self._waiting.pop(packet_id, None)
        if not self._waiting:
            self._waiting = None
        if done is not None:
            done(reason)

    def _deliver(self, message: Message) -> None:
        observed = False
        for identifier in message.properties.get(SUBSCRIPTION_IDENTIFIER, ()):
            wanted = None if self._by_identifier is None else self._by_identifier.get(identifier)
            if wanted is None:
                continue
            observed = True
            if self._pubsub is not None and message.retain and self._pubsub.read(wanted.name, message):
                continue
            for each in self.observations.of(wanted.name):
                self.observations.notify(each, message.topic, message.payload, each.content_format)
        if not observed:
            self._link.drop("not_observed", f"a message to {message.topic}, which the client does not observe")

    def _session_answered(self) -> None:
        if self._pubsub is None:
            return
        if self._link.waiting:
            self._link.after(ASK_AGAIN, self.ask_session)
        else:
            self._pubsub.settled()

    # ------------------------------------------------------------------------------------------ to the client

    @property
    def observations(self) -> Observations:
        """The observations of the client."""
        if self._observations is None:
            self._observations = Observations(
                lambda: self._endpoint, self._settings.max_waiting_bytes, self._dropped, self.end_observation
            )
        return self._observations

    def _more(self) -> Confirmable | None:
        return None if self._observations is None else self._observations.more()

    def _dropped(self) -> None:
        self._link.drop("waiting_for_client", "a notification for a client that has not acknowledged the last one",
                        "max_waiting_bytes")  # fmt: skip

    # ------------------------------------------------------------------------------------------ the end

    def _check_later(self) -> None:
        seconds = self._settings.client_timeout
        if self._observations is not None and len(self._observations):
            seconds = self._settings.observer_check
        due = self._last_use + seconds - self._link.now()
        self._timer = self._link.after(max(due, 0.1), self._check)

    def _check(self) -> None:
        """Log out a client that waits for nothing; ask an observer whether it is reachable."""
        self._timer = None
        observes = self._observations is not None and len(self._observations) > 0
        seconds = self._settings.observer_check if observes else self._settings.client_timeout
        if self._link.now() >= self._last_use + seconds and not self._waiting:
            if not observes:
                self._link.send(Disconnect())
                self._end(codec.UNAVAILABLE)
                return
            self._last_use = self._link.now()
            self._endpoint.ping()
        self._check_later()

    def _lost(self) -> None:
        """Disconnect a client that does not acknowledge the messages to it."""
        if self.state == ACTIVE:
            self._link.send(Disconnect())
        self._end(codec.UNAVAILABLE)

    def _end(self, code: int) -> None:
        """Answer the waiting requests, inform the observers, and accept nothing more."""
        if self.state == OVER:
            return
        state, self.state = self.state, OVER
        for done in (self._waiting or {}).values():
            done(_REASON_OF.get(code, reason_codes.UNSPECIFIED_ERROR))
        self._endpoint.refuse_open(code)
        if state == ACTIVE and self._observations is not None:
            for each in self._observations:
                self._link.write(codec.encode(codec.NON, codec.UNAVAILABLE, self._endpoint.next_mid(), each.token))
        self._waiting = self._held = self._observations = self._filters = self._by_identifier = self._pubsub = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._endpoint.end()

    def closed(self) -> None:
        """The connection has ended."""
        self._end(codec.UNAVAILABLE)


_REASON_OF: Final = {
    codec.UNAVAILABLE: reason_codes.SERVER_UNAVAILABLE,
    codec.FORBIDDEN: reason_codes.NOT_AUTHORIZED,
}


def _answer_links(request: CoapRequest) -> None:
    if request.code != GET:
        request.answer(codec.METHOD_NOT_ALLOWED)
    elif request.accept not in (None, codec.LINK_FORMAT):
        request.answer(codec.NOT_ACCEPTABLE)
    else:
        request.answer(codec.CONTENT, LINKS, codec.LINK_FORMAT)
