"""CONNECT and DISCONNECT: how a conversation begins, and how the client ends it.

CONNECT is a list of steps: identify, check limits, authenticate (``authentication``), take over the session, answer,
resume (``session_setup``)."""

from functools import lru_cache

from ..mqtt import reason_codes
from ..mqtt.constants import (
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    REQUEST_PROBLEM_INFORMATION,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
    V5,
)
from ..mqtt.errors import ProtocolError
from ..mqtt.packets import Connect, Disconnect
from ..session.client_info import PacketInHand
from .authentication import authenticate, start_exchange
from .channel import Channel, Waiting
from .closing import NONE, NORMAL, end, refuse
from .identity import check_banned, check_client_id, check_named, name_by_tls, take_id_of_name
from .outbound_writer import OutboundWriter5
from .session_setup import will_refusal


def on_connect(channel: Channel, connect: Connect, now: float) -> Waiting:
    """Process the CONNECT: refuse it, accept it, or start authentication."""
    context = channel.context
    context.metrics.packets_connect_received += 1
    context.metrics.client_connect += 1
    channel.use_version(connect.version)
    channel.connect = connect
    channel.client.packet_properties = connect.properties  # until it is answered
    _read_facts(channel, connect)
    if context.hooks.client_connect:
        context.hooks.client_connect(channel.client, connect.properties)
    if context.closing:
        refuse(channel, reason_codes.SERVER_UNAVAILABLE, "the server is stopping", NONE)
        return None
    if context.access.lost:
        refuse(channel, reason_codes.SERVER_UNAVAILABLE, context.access.lost, "data.access_lost")
        return None
    if not (check_client_id(channel, connect) and check_banned(channel) and _check_will(channel, connect)):
        return None
    method = connect.properties.get(AUTHENTICATION_METHOD)
    if method is not None:
        return start_exchange(channel, connect, method, now)
    if not check_named(channel):
        return None
    return authenticate(channel, connect, now)


def _read_facts(channel: Channel, connect: Connect) -> None:
    client = channel.client
    client.proto_ver = channel.listener.proto_ver or connect.version
    client.is_bridge = connect.is_bridge
    client.clean_start = connect.clean_start
    client.keep_alive = connect.keep_alive  # from CONNACK on, the zone may have a Keep Alive of its own
    client.username = connect.username
    client.client_id = connect.client_id
    channel.proved_by_tls = name_by_tls(client, channel.listener.tls_username)
    take_id_of_name(client)
    properties = connect.properties
    if connect.version == V5:
        writer = channel.writer
        assert isinstance(writer, OutboundWriter5)
        writer.max_packet_size = _shared_number(int(properties.get(MAXIMUM_PACKET_SIZE, 0)))
        writer.alias_maximum = min(int(properties.get(TOPIC_ALIAS_MAXIMUM, 0)), channel.zone.max_outgoing_topic_alias)
        channel.problem_information = properties.get(REQUEST_PROBLEM_INFORMATION, 1) != 0


@lru_cache(256)
def _shared_number(value: int) -> int:
    """Return one object for all clients with this value, because their libraries and gateways have few values."""
    return value


def _check_will(channel: Channel, connect: Connect) -> bool:
    will = connect.will
    if will is None:
        return True
    refusal = will_refusal(channel.zone, will)
    if refusal is not None:
        refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return refusal is None


def on_disconnect(channel: Channel, packet: Disconnect, now: float) -> None:
    """The client disconnects; its Will is dropped unless it requests its publication [MQTT-3.14.4-3]."""
    channel.context.metrics.packets_disconnect_received += 1
    session = channel.session
    expiry = packet.properties.get(SESSION_EXPIRY_INTERVAL)
    if expiry is not None and session is not None:
        if session.expiry_interval == 0 and expiry > 0:
            raise ProtocolError("DISCONNECT cannot make a session with expiry 0 outlive its connection")
        session.expiry_interval = min(expiry, channel.zone.session_expiry_interval)
        channel.client.expiry_interval = session.expiry_interval
    code = packet.reason_code
    if code == reason_codes.NORMAL_DISCONNECTION:
        channel.will = None
    reason = NORMAL if code == reason_codes.NORMAL_DISCONNECTION else reason_codes.name(code)
    with PacketInHand(channel.client, packet.properties):
        end(channel, reason)
