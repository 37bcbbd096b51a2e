"""The end of a conversation, including a refused CONNECT: errors become Reason Codes; sessions and Wills are
handled."""

import logging
from typing import Final

from ..access.publisher_rights import PublisherRights
from ..core.broker import Broker
from ..core.delayed_topic import with_mountpoint
from ..core.outcome import Outcome
from ..mqtt import reason_codes
from ..mqtt.constants import MAX_STRING, REASON_STRING, V5, WILL_DELAY_INTERVAL
from ..mqtt.errors import MqttError, UnknownProtocol
from ..mqtt.message import Message
from ..mqtt.packets import NO_PROPERTIES, Connack, Disconnect, Will
from ..observability.log_lines import info
from ..observability.refused_clients import RefusedClient
from ..session.memory_account import ALIAS_BYTES
from .channel import AUTHENTICATING, CLOSED, CONNECTED, CONNECTING, Channel
from .packet_refusal import MOUNTED_TOO_LONG, not_asked

logger = logging.getLogger(__name__)

# Reasons for an end, in EMQX's words if it has them.
NORMAL: Final = "normal"
KICKED: Final = "kicked"
DISCARDED: Final = "discarded"
TAKEOVERED: Final = "takeovered"
KEEP_ALIVE_TIMEOUT: Final = "keepalive_timeout"
SOCKET_CLOSED: Final = "tcp_closed"
IDLE_TIMEOUT: Final = "idle_timeout"
SLOW_READER: Final = "slow_reader"
MEMORY: Final = "memory"
TOKEN_EXPIRED: Final = "token_expired"
USER_DELETED: Final = "user_deleted"
BANNED: Final = "banned"
SHUTTING_DOWN: Final = "server_shutting_down"
INTERNAL_ERROR: Final = "internal_error"

# The setting for an end, for the log line, if its reason has only one; otherwise ``end`` receives it.
SETTINGS: Final[dict[str, str]] = {
    KEEP_ALIVE_TIMEOUT: "keep_alive_multiplier",
    IDLE_TIMEOUT: "idle_timeout",
    SLOW_READER: "slow_reader_timeout",
    MEMORY: "limits.memory",
    "receive_maximum_exceeded": "receive_maximum",
    "retain_not_supported": "retain_available",
    "qos_not_supported": "max_qos",
    "bad_authentication_method": "access.users",
}
_NOBODY: Final = (SOCKET_CLOSED, IDLE_TIMEOUT, SHUTTING_DOWN)
"""Ends of connections without a CONNECT, such as those of health checks: no client was refused."""
NONE: Final = "-"
"""The setting of a reason for which there is no setting that an operator could change."""


def fail(channel: Channel, error: MqttError) -> None:
    """Report to a client that it has violated the standard or a limit, if its version can express it, and close."""
    code = error.reason_code
    name = reason_codes.name(code)
    if channel.state == CONNECTED:
        disconnect(channel, code, str(error), name, error.setting)
        return
    if isinstance(error, UnknownProtocol) and error.answer:
        channel.writer.send(error.answer)
    # [MQTT-3.1.4-1] a CONNECT that cannot be decoded is answered only by closing
    end(channel, name, str(error), error.setting)


def refuse(channel: Channel, code: int, detail: str, setting: str = "", tell: bool = True, reason: str = "") -> None:
    """Answer a CONNECT with a failure and close [MQTT-3.2.2-7].

    ``setting``: the key that decided, see ``end``. ``tell``: whether the client may read ``detail``, which otherwise is
    only for the log. ``reason``: the reason for log and metrics, if it is more specific than the name of ``code``."""
    properties: dict[int, object] = {}
    if tell and channel.version == V5 and detail and channel.problem_information:
        properties[REASON_STRING] = detail
    channel.send_connack(Connack(code, False, properties))
    end(channel, reason or reason_codes.name(code), detail, setting)


def disconnect(channel: Channel, code: int, detail: str, reason: str, setting: str = "", tell: bool = True) -> None:
    """Close a connected client; in 5.0 the Reason Code is sent first [MQTT-4.13.1-1]. ``setting``: see ``end``,
    ``tell``: see ``refuse``."""
    properties = {REASON_STRING: detail} if detail and tell else NO_PROPERTIES
    channel.send_disconnect(Disconnect(code, properties))
    end(channel, reason, detail, setting)


def token_expired(channel: Channel, setting: str) -> None:
    """Disconnect a client whose token has expired. ``setting``: see ``end``."""
    disconnect(channel, reason_codes.NOT_AUTHORIZED, "the token has expired", TOKEN_EXPIRED, setting)


def user_deleted(channel: Channel, setting: str) -> None:
    """Disconnect a client whose user was deleted. Its session stays. ``setting``: see ``end``."""
    if channel.state == CONNECTED:
        disconnect(channel, reason_codes.NOT_AUTHORIZED, "the user was deleted", USER_DELETED, setting)


# Ends that operators, the Keep Alive and the transport cause.


def kick(channel: Channel, reason_code: int = reason_codes.ADMINISTRATIVE_ACTION) -> None:
    """Disconnect a client for an operator, and end its session."""
    if channel.session is not None:
        channel.session.expiry_interval = 0
    disconnect(channel, reason_code, "", KICKED)


def ban(channel: Channel, setting: str, detail: str) -> None:
    """Disconnect a banned client, and end its session. DISCONNECT of 5.0 has no Reason Code for that. ``setting``: the
    ban, for the log."""
    if channel.session is not None:
        channel.session.expiry_interval = 0
    disconnect(channel, reason_codes.ADMINISTRATIVE_ACTION, detail, BANNED, setting, tell=False)


def shut_down(channel: Channel, keep_will: bool = False) -> None:
    """Disconnect a client because the node stops; its Will is published [MQTT-3.1.2-8]. ``keep_will``: it stays in the
    store for the next start."""
    if channel.session is None or channel.writer.session is None:
        channel.will = None  # the client was not informed that the Will is active
    elif keep_will and channel.will is not None:
        channel.will = None
        channel.session.will_number = 0
    if channel.state == CONNECTED:
        disconnect(channel, reason_codes.SERVER_SHUTTING_DOWN, "", SHUTTING_DOWN)
    else:
        end(channel, SHUTTING_DOWN)


def keep_alive_timeout(channel: Channel) -> None:
    """Disconnect a client that sent nothing for ``keep_alive_multiplier`` times its Keep Alive [MQTT-3.1.2-22]."""
    detail = "no packet within keep_alive_multiplier times Keep Alive"
    disconnect(channel, reason_codes.KEEP_ALIVE_TIMEOUT, detail, KEEP_ALIVE_TIMEOUT)


def before_login(channel: Channel) -> None:
    """Close a connection because clients without a login use too much memory, and this one uses most."""
    detail = "clients that have not logged in hold too much memory"
    if channel.state == AUTHENTICATING:
        refuse(channel, reason_codes.SERVER_BUSY, detail, SETTINGS[MEMORY], tell=False, reason=MEMORY)
    else:
        end(channel, MEMORY, detail)


def idle_timeout(channel: Channel) -> None:
    """Close a connection without a complete CONNECT, or AUTH, in time."""
    what = "no complete CONNECT in time" if channel.state == CONNECTING else "no AUTH in time"
    end(channel, IDLE_TIMEOUT, what)


def slow_reader(channel: Channel) -> None:
    """Disconnect a client whose socket was full and accepted less than 1 KiB within ``slow_reader_timeout``."""
    end(channel, SLOW_READER, "the client read less than 1 KiB within slow_reader_timeout")


def too_much_memory(channel: Channel) -> None:
    """Disconnect a client because the node's memory is exhausted, and the data waiting for this client uses much of
    it."""
    end(channel, MEMORY, "memory is short, and too much is queued for a client that reads slowly")


def unfinished_packet(channel: Channel) -> None:
    """Disconnect a client because the node's memory is exhausted, and an incomplete packet of this client uses much of
    it."""
    disconnect(channel, reason_codes.QUOTA_EXCEEDED, "memory is short, and a packet is incomplete", MEMORY)


def internal_error(channel: Channel) -> None:
    """Disconnect a client because the broker failed while processing one of its packets."""
    disconnect(channel, reason_codes.UNSPECIFIED_ERROR, "", INTERNAL_ERROR)


def connection_lost(channel: Channel, reason: str) -> None:
    """Handle the end of the network connection without a DISCONNECT."""
    end(channel, SOCKET_CLOSED, reason)


def left_without_a_byte(channel: Channel) -> None:
    """Handle a socket that was opened and closed without data, as by load balancers that check the node: its listener
    counts them, and there is no log line for each."""
    channel.state = CLOSED
    channel.end_reason = SOCKET_CLOSED
    channel.context.metrics.refusals.add(SOCKET_CLOSED)


def end(channel: Channel, reason: str, detail: str = "", setting: str = "") -> None:
    """End the conversation once: handle the session and the Will, log, and close the connection.

    ``setting``: the key of the setting that caused it; ``NONE``: there is none; ``""``: the one in ``SETTINGS``."""
    state = channel.state
    if state == CLOSED:
        return
    channel.state = CLOSED
    channel.end_reason = reason
    context = channel.context
    client = channel.client
    now = context.clock.now()
    setting = setting or SETTINGS.get(reason, NONE)
    told = state == CONNECTED and channel.writer.session is not None  # not one whose CONNACK waits for the disk
    if state == CONNECTED:
        _leave(channel, reason, now, told)
    event = "client_disconnected" if told else "client_refused"
    context.broker.throttled_log.events.add(client.client_id, now, event, reason, setting, detail=detail)
    if not told and (client.client_id or reason not in _NOBODY):
        listener = channel.listener.name
        context.broker.throttled_log.refuse_client(
            RefusedClient(now, client.client_id, client.username, client.peer_host, listener, reason, setting, detail)
        )
    (context.metrics.disconnects if told else context.metrics.refusals).add(reason)
    info(
        logger,
        event + " client_id=%s username=%s peer=%s listener=%s reason=%s setting=%s detail=%s",
        client.client_id,
        client.username,
        client.peer,
        channel.listener.name,
        reason,
        setting,
        detail,
    )
    channel.exchange = None
    channel.connect = None
    if channel.pending_check is not None:
        channel.pending_check.cancel()
    if channel.undecided is not None:
        channel.undecided.close()
    if channel.token_timer is not None:
        channel.token_timer.cancel()
        channel.token_timer = None
    if channel.aliases is not None:
        context.broker.account.aliases -= channel.alias_characters + ALIAS_BYTES * len(channel.aliases)
        channel.aliases = None
    client.acl_cache = None  # retained messages and the session may keep the ClientInfo for a long time
    channel.connection.close()


def _leave(channel: Channel, reason: str, now: float, told: bool) -> None:
    context = channel.context
    client = channel.client
    session = channel.session
    if context.channels.get(client.client_id) is channel:
        del context.channels[client.client_id]
    if session is not None:
        channel.session = None
        will = channel.will
        delay = 0
        message = None
        if will is not None:
            channel.will = None
            if not context.closing or context.broker.durability is not None:  # otherwise all sessions end with the node
                delay = int(will.properties.get(WILL_DELAY_INTERVAL, 0))
            message = will_message(channel, will, now)
        context.broker.life.leave(session, message, delay, now, reason)
    if not told:
        return
    context.metrics.client_disconnected += 1
    if context.hooks.client_disconnected:
        context.hooks.client_disconnected(client, reason)


def will_message(channel: Channel, will: Will, now: float) -> Message | None:
    """Return the Will Message as an Application Message; None if the client may not publish to its topic."""
    client = channel.client
    topic = will.topic
    mounted = with_mountpoint(topic, client.mountpoint) if client.mountpoint else topic
    refusal = authorize_will(channel, topic, now)
    if refusal is None and len(mounted.encode()) > MAX_STRING:
        refusal = MOUNTED_TOO_LONG
    if refusal is not None:
        channel.context.broker.life.will_refused(client.client_id, topic, refusal, now)
        return None
    return as_message(channel, will, now)


def as_message(channel: Channel, will: Will, now: float) -> Message:
    """Return the Will Message as an Application Message with the mount point. It is not authorized here."""
    client = channel.client
    properties = {key: value for key, value in will.properties.items() if key != WILL_DELAY_INTERVAL}
    mounted = with_mountpoint(will.topic, client.mountpoint) if client.mountpoint else will.topic
    return Message(mounted, will.payload, will.qos, will.retain, properties or NO_PROPERTIES, client, now)


def authorize_will(channel: Channel, topic: str, now: float) -> Outcome | None:
    """Return why this client may not publish a Will to this topic; None: it may."""
    real = channel.context.broker.destination(topic)
    if isinstance(real, Outcome):
        return real
    decision = channel.context.authorization.authorize(channel.client, "publish", real, now) or channel.will_decision
    if decision is None:  # a service that was configured after this client had connected
        return not_asked(channel.context.authorization.unasked_setting)
    return None if decision.allowed else Outcome(reason_codes.NOT_AUTHORIZED, decision.setting)


def authorize_stored_will(broker: Broker, rights: PublisherRights, message: Message, approved: bool) -> Outcome | None:
    """Return why the publisher of a stored Will Message may not publish it; None: it may. ``approved``: it was allowed
    when the record was written."""
    topic = broker.destination(message.topic)
    if isinstance(topic, Outcome):
        return topic
    decision = rights.decide(message.publisher, topic)
    if decision is None:
        return None if approved else not_asked(rights.unasked_setting)
    return None if decision.allowed else Outcome(reason_codes.NOT_AUTHORIZED, decision.setting)
