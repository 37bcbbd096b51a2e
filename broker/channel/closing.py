"""The end of a conversation, also of a refused CONNECT: errors become Reason Codes; sessions and wills are let go."""

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

# Reasons of an end, in EMQX's words where it has them.
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

# The setting behind an end, for the log line, where its reason can have only this one; else ``end`` is told which.
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
"""Ends of a connection that has sent no CONNECT, such as a health check's: nobody was refused."""
NONE: Final = "-"
"""No setting is behind it: nothing that an operator can change."""


def fail(channel: Channel, error: MqttError) -> None:
    """A client broke the standard or a limit: say why where the version has words for it, and close."""
    code = error.reason_code
    name = reason_codes.name(code)
    if channel.state == CONNECTED:
        disconnect(channel, code, str(error), name, error.setting)
        return
    if isinstance(error, UnknownProtocol) and error.answer:
        channel.writer.send(error.answer)
    # [MQTT-3.1.4-1] an undecodable CONNECT is answered by the close alone
    end(channel, name, str(error), error.setting)


def refuse(channel: Channel, code: int, detail: str, setting: str = "", tell: bool = True, reason: str = "") -> None:
    """Answer a CONNECT with a failure and close [MQTT-3.2.2-7].

    ``setting``: the key that decided, see ``end``. ``tell``: whether the client may read ``detail``, which else is
    for the log alone. ``reason``: the one for log and metrics, where that says more than the name of ``code``.
    """
    properties: dict[int, object] = {}
    if tell and channel.version == V5 and detail and channel.problem_information:
        properties[REASON_STRING] = detail
    channel.send_connack(Connack(code, False, properties))
    end(channel, reason or reason_codes.name(code), detail, setting)


def disconnect(channel: Channel, code: int, detail: str, reason: str, setting: str = "", tell: bool = True) -> None:
    """Close a connected client; 5.0 is told the Reason Code first [MQTT-4.13.1-1]. ``setting``: see ``end``, ``tell``:
    see ``refuse``."""
    properties = {REASON_STRING: detail} if detail and tell else NO_PROPERTIES
    channel.send_disconnect(Disconnect(code, properties))
    end(channel, reason, detail, setting)


def token_expired(channel: Channel, setting: str) -> None:
    """The token that let the client in is good no more. ``setting``: see ``end``."""
    disconnect(channel, reason_codes.NOT_AUTHORIZED, "the token has expired", TOKEN_EXPIRED, setting)


def user_deleted(channel: Channel, setting: str) -> None:
    """The user that the client has proved to be is there no more. Its session stays. ``setting``: see ``end``."""
    if channel.state == CONNECTED:
        disconnect(channel, reason_codes.NOT_AUTHORIZED, "the user was deleted", USER_DELETED, setting)


# What operators, the keep alive and the transport order.


def kick(channel: Channel, reason_code: int = reason_codes.ADMINISTRATIVE_ACTION) -> None:
    """An operator's order: the connection ends, and so does the session."""
    if channel.session is not None:
        channel.session.expiry_interval = 0
    disconnect(channel, reason_code, "", KICKED)


def ban(channel: Channel, setting: str, detail: str) -> None:
    """An operator has banned the client: connection and session end. 5.0 has no Reason Code of a DISCONNECT for that.
    ``setting``: the ban, for the log."""
    if channel.session is not None:
        channel.session.expiry_interval = 0
    disconnect(channel, reason_codes.ADMINISTRATIVE_ACTION, detail, BANNED, setting, tell=False)


def shut_down(channel: Channel, keep_will: bool = False) -> None:
    """The node stops; the will goes out [MQTT-3.1.2-8]. ``keep_will``: it stays in the store for the next start."""
    if channel.session is None or channel.writer.session is None:
        channel.will = None  # its client was not told that it is in force
    elif keep_will and channel.will is not None:
        channel.will = None
        channel.session.will_number = 0
    if channel.state == CONNECTED:
        disconnect(channel, reason_codes.SERVER_SHUTTING_DOWN, "", SHUTTING_DOWN)
    else:
        end(channel, SHUTTING_DOWN)


def keep_alive_timeout(channel: Channel) -> None:
    """Nothing came for ``keep_alive_multiplier`` times the Keep Alive [MQTT-3.1.2-22]."""
    detail = "no packet within keep_alive_multiplier times Keep Alive"
    disconnect(channel, reason_codes.KEEP_ALIVE_TIMEOUT, detail, KEEP_ALIVE_TIMEOUT)


def before_login(channel: Channel) -> None:
    """Clients without a login hold as much memory as they may, and this one holds most."""
    detail = "clients that have not logged in hold too much memory"
    if channel.state == AUTHENTICATING:
        refuse(channel, reason_codes.SERVER_BUSY, detail, SETTINGS[MEMORY], tell=False, reason=MEMORY)
    else:
        end(channel, MEMORY, detail)


def idle_timeout(channel: Channel) -> None:
    """No complete CONNECT, or no AUTH, in time."""
    what = "no complete CONNECT in time" if channel.state == CONNECTING else "no AUTH in time"
    end(channel, IDLE_TIMEOUT, what)


def slow_reader(channel: Channel) -> None:
    """The client's socket was full and took less than 1 KiB within ``slow_reader_timeout``."""
    end(channel, SLOW_READER, "the client read less than 1 KiB within slow_reader_timeout")


def too_much_memory(channel: Channel) -> None:
    """The node's memory is used up, and what waits for this client takes much of it."""
    end(channel, MEMORY, "memory is short, and too much is queued for a client that reads slowly")


def unfinished_packet(channel: Channel) -> None:
    """The node's memory is used up, and the beginning of a packet of this client takes much of it."""
    disconnect(channel, reason_codes.QUOTA_EXCEEDED, "memory is short, and a packet is incomplete", MEMORY)


def internal_error(channel: Channel) -> None:
    """The broker failed on one of this client's packets."""
    disconnect(channel, reason_codes.UNSPECIFIED_ERROR, "", INTERNAL_ERROR)


def connection_lost(channel: Channel, reason: str) -> None:
    """The network connection is gone without a DISCONNECT."""
    end(channel, SOCKET_CLOSED, reason)


def left_without_a_byte(channel: Channel) -> None:
    """The socket was opened and closed again, as balancers do to see whether the node is there: its listener counts
    them, and no line tells of each."""
    channel.state = CLOSED
    channel.end_reason = SOCKET_CLOSED
    channel.context.metrics.refusals.add(SOCKET_CLOSED)


def end(channel: Channel, reason: str, detail: str = "", setting: str = "") -> None:
    """The conversation is over: let the session go, settle the will, log, and close the connection. Once.

    ``setting``: the key of the configuration behind it; ``NONE``: there is none; ``""``: the one in ``SETTINGS``.
    """
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
        context.broker.throttled_log.refused.add(
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
    client.acl_cache = None  # retained messages and the session may keep the ClientInfo for long
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
            if not context.closing or context.broker.durability is not None:  # else all sessions end with the node
                delay = int(will.properties.get(WILL_DELAY_INTERVAL, 0))
            message = will_message(channel, will, now)
        context.broker.life.leave(session, message, delay, now, reason)
    if not told:
        return
    context.metrics.client_disconnected += 1
    if context.hooks.client_disconnected:
        context.hooks.client_disconnected(client, reason)


def will_message(channel: Channel, will: Will, now: float) -> Message | None:
    """The Will Message as the Application Message it becomes; None where its topic is not the client's to write."""
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
    """The Will Message as an Application Message, its mount point on. It is not authorized here."""
    client = channel.client
    properties = {key: value for key, value in will.properties.items() if key != WILL_DELAY_INTERVAL}
    mounted = with_mountpoint(will.topic, client.mountpoint) if client.mountpoint else will.topic
    return Message(mounted, will.payload, will.qos, will.retain, properties or NO_PROPERTIES, client, now)


def authorize_will(channel: Channel, topic: str, now: float) -> Outcome | None:
    """Why this client may not publish a Will to this topic; None: it may."""
    real = channel.context.broker.destination(topic)
    if isinstance(real, Outcome):
        return real
    decision = channel.context.authorization.authorize(channel.client, "publish", real, now) or channel.will_decision
    if decision is None:  # a service that was set up after this client had connected
        return not_asked(channel.context.authorization.unasked_setting)
    return None if decision.allowed else Outcome(reason_codes.NOT_AUTHORIZED, decision.setting)


def authorize_stored_will(broker: Broker, rights: PublisherRights, message: Message, approved: bool) -> Outcome | None:
    """Why the publisher of a stored Will Message may not publish it; None: it may. ``approved``: it might when the
    record was written."""
    topic = broker.destination(message.topic)
    if isinstance(topic, Outcome):
        return topic
    decision = rights.decide(message.publisher, topic)
    if decision is None:
        return None if approved else not_asked(rights.unasked_setting)
    return None if decision.allowed else Outcome(reason_codes.NOT_AUTHORIZED, decision.setting)
