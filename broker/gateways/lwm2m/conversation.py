"""The conversation of an LwM2M device with the node: CoAP requests on one side, MQTT packets on the other.

When the device registers, it is logged in, its commands are subscribed to, and then it receives its answer. From then
on, each message of that subscription is a command, which becomes a request to the device, and each answer is published.
``state`` names what has happened so far. The message layer is ``coap.exchange.CoapEndpoint``."""

from collections.abc import Callable
from typing import Any, Final

from ...gateway import DeviceRecord, GatewayLink, Pending
from ...mqtt import reason_codes
from ...mqtt.constants import MAXIMUM_PACKET_SIZE, PUBACK, PUBCOMP, PUBREC, PUBREL
from ...mqtt.encoder import Outgoing
from ...mqtt.message import Message
from ...mqtt.packets import Ack, Connack, Connect, Disconnect, Suback, Subscribe, TopicFilter
from ..coap import codec as coap
from ..coap.calls import CoapAnswer, QueueFull
from ..coap.exchange import CoapEndpoint, CoapRequest
from . import answers, registration
from .commands import CANCEL, OBSERVE, BadCommand, DeviceCommand, parse_command
from .devices import Devices
from .observations import DeviceObservations
from .paths import text_of
from .pending import SPACING, LastAnswers, PendingCommands
from .registration import Registration, RegistrationRefused
from .settings import Lwm2mSettings

# The states.
NEW: Final = 0  # nothing is known of the address
LOGGING_IN: Final = 1  # the broker has the CONNECT
SUBSCRIBING: Final = 2  # the broker has the SUBSCRIBE for commands
REGISTERED: Final = 3
OVER: Final = 4

V5: Final = 5
SUBSCRIBE_ID: Final = 1
MAX_KEEP_ALIVE: Final = 65_535
DUE: Final = 0.001
"""Seconds until a device whose lifetime has expired is closed by the node, as one whose Keep Alive has."""
ROOT: Final = "rd"
HEAD: Final = 64
"""Bytes of a PUBLISH beside its topic and payload, at most."""

_UNAVAILABLE: Final = frozenset(
    (reason_codes.SERVER_BUSY, reason_codes.SERVER_UNAVAILABLE, reason_codes.QUOTA_EXCEEDED,
     reason_codes.CONNECTION_RATE_EXCEEDED)
)  # fmt: skip


class DeviceConversation:
    """One device's conversation. ``broker.gateway.GatewayChannel`` describes the methods that the node calls."""

    __slots__ = (
        "_asking", "_datagram", "_devices", "_endpoint", "_largest", "_last", "_lifetime", "_link", "_observations",
        "_pending", "_registration", "_settings", "_spacing", "state",
    )  # fmt: skip

    def __init__(self, link: GatewayLink, settings: Lwm2mSettings) -> None:
        self.state = NEW
        self._link = link
        self._settings = settings
        shared = link.shared
        assert isinstance(shared, Devices)
        self._devices = shared
        self._endpoint = CoapEndpoint(link, settings, self._serve, self._lost)
        self._datagram = b""  # the one that is being taken
        self._registration: Registration | None = None
        self._asking: CoapRequest | None = None  # the registration that has no answer yet
        self._largest = 0  # bytes of a packet that the broker accepts; 0: as many as MQTT allows
        self._pending = PendingCommands(
            settings.qmode_time_window, settings.max_queued_commands, settings.max_queued_bytes
        )
        self._observations = DeviceObservations(settings.max_observations)
        self._last = LastAnswers()
        self._lifetime: Pending | None = None
        self._spacing: Pending | None = None

    # ------------------------------------------------------------------------------------------ from the device

    def received(self, data: bytes) -> int:
        """Take one datagram."""
        self._datagram = data
        self._pending.heard(self._link.now())
        self._endpoint.received(data)
        self._datagram = b""
        if self.state == REGISTERED:
            if self._queue_mode and self._endpoint.repeat_now():
                self._pending.sent(self._link.now())
            self._send_waiting()
        return len(data)

    def _serve(self, request: CoapRequest) -> None:
        if self.state == OVER:
            return
        if not request.path or request.path[0] != ROOT or len(request.path) > 2:
            request.answer(coap.NOT_FOUND)
        elif len(request.path) == 1:
            if request.code == coap.POST:
                self._register(request)
            else:
                request.answer(coap.METHOD_NOT_ALLOWED)
        elif self._registration is None or self.state != REGISTERED or request.path[1] != self._registration.endpoint:
            request.answer(coap.NOT_FOUND)  # the device registers again
        elif request.code in (coap.POST, coap.PUT):
            self._update(request, self._registration)
        elif request.code == coap.DELETE:
            request.answer(coap.DELETED)
            self._link.send(Disconnect(reason_codes.SUCCESS))
            self._end()
        else:
            request.answer(coap.METHOD_NOT_ALLOWED)

    def _register(self, request: CoapRequest) -> None:
        try:
            registered = registration.register(request.query, request.payload, self._settings.limits)
        except RegistrationRefused as error:
            self._refuse(request, error)
            return
        before = self._registration
        if self.state in (LOGGING_IN, SUBSCRIBING):
            request.answer(coap.UNAVAILABLE)
        elif before is None:
            self._registration = registered
            self._asking = request
            self.state = LOGGING_IN
            self._link.send(self._connect(registered))
        elif before.endpoint == registered.endpoint:
            self._registration = registered
            self._observations.clear(self._endpoint.forget)
            self._asking = request
            self._finish_registration(registered)
        else:
            self._become_another(request)

    def _become_another(self, request: CoapRequest) -> None:
        """End this conversation and pass the datagram to a new one, because another device has the address now."""
        request.forget()
        self._link.send(Disconnect(reason_codes.SUCCESS))
        datagram = self._datagram
        self._end()
        self._link.renew(datagram)

    def _refuse(self, request: CoapRequest, error: RegistrationRefused) -> None:
        self._link.drop("registration_refused", str(error))
        request.answer(error.code)

    def _connect(self, registered: Registration) -> Connect:
        settings = self._settings
        password = None if settings.password is None else settings.password.encode()
        keep_alive = min(registered.lifetime, MAX_KEEP_ALIVE)
        return Connect(V5, registered.endpoint, True, keep_alive, settings.username, password, None, {})

    def _update(self, request: CoapRequest, before: Registration) -> None:
        try:
            after = registration.update(before, request.query, request.payload, self._settings.limits)
        except RegistrationRefused as error:
            self._refuse(request, error)
            return
        self._registration = after
        self._begin_lifetime(after)
        request.answer(coap.CHANGED)
        if request.payload or self._settings.update_msg_publish_condition == "always":
            self._publish("update", {"msgType": "update", "data": after.record()})
        if request.payload:
            self._observe_objects(after)

    def _begin_lifetime(self, registered: Registration) -> None:
        """Begin a lifetime. Only a registration and its updates do so; other messages of the device do not."""
        if self._lifetime is not None:
            self._lifetime.cancel()
        self._link.expect_within(0)
        self._lifetime = self._link.after(registered.lifetime, self._expired)

    def _expired(self) -> None:
        self._lifetime = None
        self._link.expect_within(DUE)

    def _lost(self) -> None:
        """Handle a command without an answer. The device stays registered until its lifetime expires."""
        self._pending.lost()
        if self._spacing is None and self._pending.waiting and not self._pending.asleep(self._link.now()):
            self._spacing = self._link.after(SPACING, self._spaced)

    # ------------------------------------------------------------------------------------------ from the broker

    def packet(self, packet: Outgoing) -> None:
        """Translate a packet for the device."""
        if self.state == OVER:
            return
        if isinstance(packet, Message):
            self._on_message(packet)
        elif isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Suback):
            self._on_suback(packet)
        elif isinstance(packet, Ack) and packet.type == PUBREL:
            self._link.send(Ack(PUBCOMP, packet.packet_id))
        elif isinstance(packet, Disconnect):
            self._end()

    def _on_connack(self, packet: Connack) -> None:
        registered, asking = self._registration, self._asking
        assert registered is not None and asking is not None
        if packet.reason_code:
            busy = packet.reason_code in _UNAVAILABLE
            asking.answer(coap.UNAVAILABLE if busy else coap.FORBIDDEN)
            self._end()
            return
        self._largest = int(packet.properties.get(MAXIMUM_PACKET_SIZE, 0))
        self.state = SUBSCRIBING
        self._link.send(Subscribe(SUBSCRIBE_ID, [TopicFilter(self._topic("command"))]))

    def _on_suback(self, packet: Suback) -> None:
        registered = self._registration
        if self.state != SUBSCRIBING or registered is None:
            return
        if packet.reason_codes[0] >= reason_codes.UNSPECIFIED_ERROR:
            self._link.drop("command_subscription_refused", "the device gets no commands", "topics.command")
        self.state = REGISTERED
        self._devices.register(registered.endpoint, self)
        self._finish_registration(registered)

    def _finish_registration(self, registered: Registration) -> None:
        asking, self._asking = self._asking, None
        assert asking is not None and self.state == REGISTERED
        self._begin_lifetime(registered)
        location = [(coap.LOCATION_PATH, part.encode()) for part in (ROOT, registered.endpoint)]
        asking.answer(coap.CREATED, options=location)
        self._publish("register", {"msgType": "register", "data": registered.record()})
        self._observe_objects(registered)
        self._send_waiting()

    def _observe_objects(self, registered: Registration) -> None:
        """Observe the paths in ``auto_observe``, as if an MQTT client had sent the commands."""
        for path in self._observations.wanted(self._settings, registered.objects):
            command = {"msgType": "observe", "data": {"path": text_of(path)}}
            self._take_command(answers.encode(command))

    # Commands

    def _on_message(self, message: Message) -> None:
        if message.qos:  # of a subscription that the operator has made for the device
            self._link.send(Ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))
        self._take_command(bytes(message.payload))

    def _take_command(self, payload: bytes) -> None:
        try:
            command = parse_command(payload, self._settings.objects)
        except BadCommand as error:
            self._publish("response", answers.bad_command(error))
            return
        setting = self._pending.add(payload)
        if setting:
            self._link.drop("command_dropped", "too many commands of the device have no answer", setting)
            reason = f"too many commands of this device have no answer ({setting})"
            self._answer(command, answers.failure(command, answers.UNAVAILABLE, reason))
            return
        self._last.put(command.named, command.kind, b"")
        asleep = self._queue_mode and self._pending.asleep(self._link.now())
        if self.state != REGISTERED or self._pending.waiting or asleep or not self._is_ready():
            self._pending.wait(payload)
        else:
            self._send(command, payload)

    @property
    def _queue_mode(self) -> bool:
        return self._registration is not None and self._registration.queue_mode

    def _is_ready(self) -> bool:
        """Return whether the device may be sent a command. In queue mode it has one at a time: if it falls asleep, only
        that one is lost."""
        return not self._queue_mode or (not self._endpoint.unanswered and not self._pending.silent)

    def _send_waiting(self) -> None:
        """Send the next waiting command, and then the others one by one: ``received`` and ``_lost`` continue."""
        if self._spacing is not None or self.state != REGISTERED or not self._is_ready():
            return
        payload = self._pending.next()
        if payload is not None:
            self._spacing = self._link.after(SPACING, self._spaced)
            self._send(parse_command(payload, self._settings.objects), payload)

    def _spaced(self) -> None:
        self._spacing = None
        self._send_waiting()

    def _send(self, command: DeviceCommand, payload: bytes) -> None:
        request = command.request
        registered = self._registration
        assert registered is not None
        refused = self._observations.refuses(request)
        if refused:
            self._pending.done(payload)
            self._link.drop("observation_refused", "too many observations of the device", refused)
            reason = f"too many observations of this device ({refused})"
            self._answer(command, answers.failure(command, answers.UNAVAILABLE, reason))
            return
        self._pending.sent(self._link.now())
        root = [part for part in registered.root.split("/") if part]
        old = self._observations.end(request.path) if request.observe is not None else b""
        if old and request.observe == OBSERVE:
            self._endpoint.forget(old)
        token = b""

        def answered(answer: CoapAnswer | None) -> None:
            self._pending.done(payload)
            if request.observe == OBSERVE and (answer is None or answer.observe is None):
                self._observations.end(request.path, token)
            self._on_answer(command, answer)

        try:
            token = self._endpoint.request(
                request.code,
                path=[*root, *map(str, request.path)],
                query=request.query,
                payload=request.payload,
                content_format=request.content_format,
                accept=request.accept,
                observe=request.observe,
                token=old if request.observe == CANCEL else b"",
                answered=answered,
                acknowledged=lambda: self._publish("response", answers.acknowledged(command)),
                notified=self._notified(command) if request.observe == OBSERVE else None,
            )
        except QueueFull:
            self._pending.done(payload)
            self._link.drop("command_dropped", "too many commands are under way to the device", "max_requests")
            reason = "too many commands are under way to this device (max_requests)"
            self._answer(command, answers.failure(command, answers.UNAVAILABLE, reason))
            return
        if request.observe == OBSERVE:
            self._observations.begin(request.path, token)

    def _on_answer(self, command: DeviceCommand, answer: CoapAnswer | None) -> None:
        if self.state == OVER:
            return
        if answer is None:
            message = answers.failure(command, answers.TIMEOUT, "the device has not answered")
        elif not answer.code:
            message = answers.failure(command, answers.BAD_GATEWAY, "the device has rejected the request with RST")
        else:
            message = self._translated(command, answer)
        self._answer(command, message)

    def _translated(self, command: DeviceCommand, answer: CoapAnswer) -> dict[str, Any]:
        registered = self._registration
        assert registered is not None
        return answers.answer(
            command, answer.code, answer.payload, answer.content_format, self._settings.objects, registered.root
        )

    def _notified(self, command: DeviceCommand) -> Callable[[CoapAnswer], None]:
        def notified(answer: CoapAnswer) -> None:
            if answer.code >= coap.BAD_REQUEST or answer.observe is None:
                self._observations.end(command.request.path)
            number = 0 if answer.observe is None else answer.observe
            self._publish("notify", answers.notification(self._translated(command, answer), number))

        return notified

    # ------------------------------------------------------------------------------------------ to the broker

    def _topic(self, name: str) -> str:
        registered = self._registration
        assert registered is not None
        return self._settings.topic(name, registered.endpoint, self._link.peer[0])

    def _answer(self, command: DeviceCommand, message: dict[str, Any]) -> None:
        """Publish the answer to a command, and keep it for the API."""
        self._last.put(command.named, command.kind, answers.encode(message["data"]))
        self._publish("response", message)

    def _publish(self, name: str, message: dict[str, Any]) -> None:
        if self.state == OVER:
            return
        topic, payload = self._topic(name), answers.encode(message)
        if self._largest and len(topic) * 3 + len(payload) + HEAD > self._largest:
            self._link.drop("answer_too_large", f"an answer of {len(payload)} bytes", "max_packet_size")
            payload = answers.encode(answers.too_large(message))
            if len(topic) * 3 + len(payload) + HEAD > self._largest:
                return
        self._link.publish(topic, payload)

    # ------------------------------------------------------------------------------------------ the API, and the end

    def record(self) -> DeviceRecord:
        """See ``gateway.Device``."""
        registered = self._registration
        assert registered is not None
        host, port = self._link.peer
        names = self._settings.objects
        objects = {path: names.name_of(path) for path in registered.objects}
        return DeviceRecord(registered.endpoint, registered.lifetime, host, port, registered.version, objects)

    def last_answer(self, path: str, kind: str) -> dict[str, Any] | None:
        """See ``gateway.Device``."""
        found = self._last.get(path, kind)
        return None if found is None else answers.shown(kind, found, self._settings.objects)

    def _end(self) -> None:
        if self.state == OVER:
            return
        self.state = OVER
        for timer in (self._lifetime, self._spacing):
            if timer is not None:
                timer.cancel()
        self._lifetime = self._spacing = None
        if self._registration is not None:
            self._devices.leave(self._registration.endpoint, self)
        if self._pending:
            self._link.drop("commands_unanswered", f"{len(self._pending)} commands of a device that has left")
        self._endpoint.end()

    def closed(self) -> None:
        """The connection has ended."""
        self._end()
