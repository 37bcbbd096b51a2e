"""CONNECT, AUTH and DISCONNECT: how a conversation begins and how the client ends it.

CONNECT is a list of steps: identify, check limits, authenticate (at once, by a hash in a thread, or by an exchange of
AUTH packets), take over the session, answer, resume.
"""

import logging
import re
from collections.abc import Awaitable
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from ..access.enhanced import CONTINUE, SUCCESS, AuthStep
from ..access.outcome import AuthOutcome
from ..mqtt import reason_codes
from ..mqtt.constants import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAX_PACKET_ID,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    REQUEST_RESPONSE_INFORMATION,
    RESPONSE_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    SHARED_SUBSCRIPTION_AVAILABLE,
    TOPIC_ALIAS_MAXIMUM,
    V4,
    V5,
    WILDCARD_SUBSCRIPTION_AVAILABLE,
    WILL_DELAY_INTERVAL,
)
from ..mqtt.errors import ProtocolError
from ..mqtt.packets import NO_PROPERTIES, Auth, Connack, Connect, Disconnect, Will
from .asking import ask, until_answered
from .closing import (
    DISCARDED,
    NONE,
    NORMAL,
    TAKEOVERED,
    as_message,
    disconnect,
    end,
    refuse,
    token_expired,
    will_topic,
)
from .outlet import Outlet5
from .refusal import STORE_TROUBLE
from .state import AUTHENTICATING, CONNECTED, CONNECTING, ChannelState, Waiting

logger = logging.getLogger(__name__)

_SPECIAL: Final = re.compile(r"[+#/]|^\$")


def on_connect(channel: ChannelState, connect: Connect, now: float) -> Waiting:
    """Take the CONNECT: refuse it, accept it, or begin to authenticate."""
    context = channel.context
    context.metrics.packets_connect_received += 1
    context.metrics.client_connect += 1
    channel.use_version(connect.version)
    channel.connect = connect
    channel.client.packet_properties = connect.properties
    _read_facts(channel, connect)
    if context.hooks.client_connect:
        context.hooks.client_connect(channel.client, connect.properties)
    if context.closing:
        refuse(channel, reason_codes.SERVER_UNAVAILABLE, "the server is stopping", NONE)
        return None
    if not (_check_client_id(channel, connect) and _check_banned(channel) and _check_will(channel, connect)):
        return None
    method = connect.properties.get(AUTHENTICATION_METHOD)
    if method is not None:
        return _start_exchange(channel, connect, method, now)
    return _authenticate(channel, connect, now)


def _read_facts(channel: ChannelState, connect: Connect) -> None:
    client = channel.client
    client.proto_ver = connect.version
    client.is_bridge = connect.is_bridge
    client.clean_start = connect.clean_start
    client.username = connect.username
    client.client_id = connect.client_id
    identity = channel.listener.cert_username
    name = client.cn if identity == "cn" else client.dn if identity == "dn" else None
    if name:
        client.username = name
        channel.certified = True
    if channel.zone.use_username_as_client_id and client.username:
        client.client_id = client.username
    properties = connect.properties
    if connect.version == V5:
        outlet = channel.outlet
        assert isinstance(outlet, Outlet5)
        outlet.max_packet_size = int(properties.get(MAXIMUM_PACKET_SIZE, 0))
        outlet.alias_maximum = min(int(properties.get(TOPIC_ALIAS_MAXIMUM, 0)), channel.zone.max_outgoing_topic_alias)
        channel.problem_information = properties.get(REQUEST_PROBLEM_INFORMATION, 1) != 0


def _check_client_id(channel: ChannelState, connect: Connect) -> bool:
    client = channel.client
    zone = channel.zone
    if not client.client_id:
        # [MQTT-3.1.3-6] [MQTT-3.1.3-7]; 3.1 has no empty identifiers, 3.1.1 only with Clean Session 1
        # [3.1.1 MQTT-3.1.3-7] [3.1.1 MQTT-3.1.3-8]
        forbidden = connect.version < V4 or (connect.version == V4 and not connect.clean_start)
        if forbidden or not zone.allow_empty_client_id:
            # by the standard, whatever the setting says
            setting = NONE if forbidden else "allow_empty_client_id"
            detail = "an empty client identifier is not allowed here"
            refuse(channel, reason_codes.CLIENT_IDENTIFIER_NOT_VALID, detail, setting)
            return False
    elif len(client.client_id.encode()) > zone.max_client_id_length:
        detail = "client identifier longer than max_client_id_length"
        refuse(channel, reason_codes.CLIENT_IDENTIFIER_NOT_VALID, detail, "max_client_id_length")
        return False
    return True


def _check_banned(channel: ChannelState) -> bool:
    ban = channel.context.access.ban_of(channel.client)
    if ban is None:
        return True
    detail = f"by {ban.by} until {ban.until:.0f}: {ban.reason}"
    refuse(channel, reason_codes.BANNED, detail, ban.setting, tell=False)
    return False


def _check_will(channel: ChannelState, connect: Connect) -> bool:
    will = connect.will
    if will is None:
        return True
    zone = channel.zone
    if will.qos > zone.max_qos:
        refuse(channel, reason_codes.QOS_NOT_SUPPORTED, "will QoS above max_qos")  # [MQTT-3.2.2-12]
    elif will.retain and not zone.retain_available:
        refuse(channel, reason_codes.RETAIN_NOT_SUPPORTED, "will RETAIN with retain_available off")  # [MQTT-3.2.2-13]
    elif zone.max_topic_levels and will.topic.count("/") >= zone.max_topic_levels:
        detail = "will topic with more than max_topic_levels"
        refuse(channel, reason_codes.TOPIC_NAME_INVALID, detail, "max_topic_levels")
    else:
        return True
    return False


# ------------------------------------------------------------- authentication


def _authenticate(channel: ChannelState, connect: Connect, now: float) -> Waiting:
    context = channel.context
    client = channel.client
    context.metrics.client_authenticate += 1
    outcome = context.access.authenticate(client, connect.password, channel.certified)
    if isinstance(outcome, AuthOutcome):
        return _authenticated(channel, connect, outcome, now)
    assert isawaitable(outcome)
    channel.state = AUTHENTICATING
    return _await_outcome(channel, connect, outcome)


async def _await_outcome(channel: ChannelState, connect: Connect, outcome: Awaitable[AuthOutcome]) -> None:
    result = await until_answered(channel, outcome)
    if channel.state == AUTHENTICATING and result is not None:
        channel.state = CONNECTING
        waiting = _authenticated(channel, connect, result, channel.context.clock.now())
        if waiting is not None:
            await waiting


def _authenticated(channel: ChannelState, connect: Connect, outcome: AuthOutcome, now: float) -> Waiting:
    context = channel.context
    client = channel.client
    metrics = context.metrics
    allowed = outcome.reason_code == 0
    if context.hooks.client_authenticate:
        allowed = context.hooks.client_authenticate("allow" if allowed else "deny", client, connect.password) == "allow"
    if not allowed:
        metrics.client_auth_failure += 1
        code = outcome.reason_code or reason_codes.NOT_AUTHORIZED
        refuse(channel, code, outcome.detail, outcome.setting, tell=False)
        return None
    metrics.client_auth_success += 1
    if outcome.anonymous:
        metrics.client_auth_anonymous += 1
        metrics.client_auth_ignore += 1  # nobody knew it; the default let it in
    client.anonymous = outcome.anonymous
    client.is_superuser = outcome.is_superuser
    return _accept(channel, connect, now, {})


def _start_exchange(channel: ChannelState, connect: Connect, method: str, now: float) -> Waiting:
    context = channel.context
    found = context.access.enhanced(method)
    if found is None:
        # [MQTT-4.12.0-1]
        refuse(channel, reason_codes.BAD_AUTHENTICATION_METHOD, "authentication method not supported")
        return None
    context.metrics.client_authenticate += 1
    channel.auth_method = method
    channel.exchange = found.start(channel.client)
    channel.state = AUTHENTICATING
    return _step(channel, connect.properties.get(AUTHENTICATION_DATA), now)


def _step(channel: ChannelState, data: bytes | None, now: float) -> Waiting:
    """One step of the exchange that a CONNECT began."""
    exchange = channel.exchange
    connect = channel.connect
    assert exchange is not None and connect is not None
    step = exchange.step(data)
    if step.status == CONTINUE:
        channel.send_auth(Auth(reason_codes.CONTINUE_AUTHENTICATION, _auth_properties(channel, step)))
        return None
    channel.exchange = None
    channel.state = CONNECTING
    if step.status == SUCCESS:
        metrics = channel.context.metrics
        metrics.client_auth_success += 1
        client = channel.client
        client.anonymous = False
        client.is_superuser = step.is_superuser
        if step.username:
            client.username = step.username
            if channel.zone.use_username_as_client_id:
                client.client_id = step.username
                if not _check_client_id(channel, connect):
                    return None
            if not _check_banned(channel):
                return None
        return _accept(channel, connect, now, _auth_properties(channel, step))
    channel.context.metrics.client_auth_failure += 1
    if channel.client.username is None:
        channel.client.username = exchange.username or None  # who it said it was, as with a password
    # [MQTT-4.12.0-4]
    refuse(channel, step.reason_code, step.detail, step.setting, tell=False)
    return None


def _auth_properties(channel: ChannelState, step: AuthStep) -> dict[int, Any]:
    properties: dict[int, Any] = {AUTHENTICATION_METHOD: channel.auth_method}  # [MQTT-4.12.0-5]
    if step.data:
        properties[AUTHENTICATION_DATA] = step.data
    return properties


def on_auth(channel: ChannelState, auth: Auth, now: float) -> Waiting:
    """AUTH: the next step of the first exchange, or of a re-authentication."""
    channel.context.metrics.packets_auth_received += 1
    if channel.auth_method is None:
        raise ProtocolError("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
    if auth.properties.get(AUTHENTICATION_METHOD) != channel.auth_method:
        raise ProtocolError("AUTH with another authentication method")  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
    data = auth.properties.get(AUTHENTICATION_DATA)
    code = auth.reason_code
    if channel.state == AUTHENTICATING:
        if code != reason_codes.CONTINUE_AUTHENTICATION:
            raise ProtocolError("AUTH before CONNACK wants Reason Code 0x18")  # [MQTT-4.12.0-3]
        return _step(channel, data, now)
    if code == reason_codes.RE_AUTHENTICATE:
        if channel.exchange is not None:
            raise ProtocolError("a re-authentication is under way already")
        method = channel.context.access.enhanced(channel.auth_method)
        if method is None:
            detail = "the method is no longer there"
            disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "not_authorized", "access.users")
            return None
        channel.exchange = method.start(channel.client)
    elif code != reason_codes.CONTINUE_AUTHENTICATION or channel.exchange is None:
        raise ProtocolError("AUTH outside of an exchange")
    _step_again(channel, data)
    return None


def _step_again(channel: ChannelState, data: bytes | None) -> None:
    """One step of a re-authentication; other traffic goes on meanwhile (section 4.12.1)."""
    exchange = channel.exchange
    assert exchange is not None
    step = exchange.step(data)
    if step.status == CONTINUE:
        channel.send_auth(Auth(reason_codes.CONTINUE_AUTHENTICATION, _auth_properties(channel, step)))
        return
    channel.exchange = None
    if step.status == SUCCESS and step.username == channel.client.username:
        if channel.client.is_superuser != step.is_superuser:
            channel.client.is_superuser = step.is_superuser
            channel.admitted.clear()
        channel.send_auth(Auth(reason_codes.SUCCESS, _auth_properties(channel, step)))
        return
    # [MQTT-4.12.1-2]
    channel.context.metrics.client_auth_failure += 1
    detail = "re-authentication failed"
    disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "not_authorized", "access.users")


# -------------------------------------------------------------------- accepted


def _accept(channel: ChannelState, connect: Connect, now: float, extra: dict[int, Any]) -> Waiting:
    """The client is who it says. Its Will may still have to be asked about."""
    client = channel.client
    if not client.client_id:
        client.client_id = _new_client_id(channel)
    if not _check_mountpoint(channel):
        return None
    client.mountpoint = _mountpoint(channel.zone.mountpoint, client.client_id, client.username)
    if connect.will is not None and channel.context.access.asks:
        topic = will_topic(channel, connect.will.topic)
        if isinstance(topic, str) and channel.context.access.authorize_now(client, "publish", topic, now) is None:
            channel.state = AUTHENTICATING
            return _ask_about_will(channel, connect, topic, extra)
    return _open(channel, connect, now, extra)


async def _ask_about_will(channel: ChannelState, connect: Connect, topic: str, extra: dict[int, Any]) -> None:
    answers = await ask(channel, "publish", [topic])
    if channel.state != AUTHENTICATING or answers is None:
        return
    channel.will_answer = answers[0]
    channel.state = CONNECTING
    waiting = _open(channel, connect, channel.context.clock.now(), extra)
    if waiting is not None:
        await waiting


def _open(channel: ChannelState, connect: Connect, now: float, extra: dict[int, Any]) -> Waiting:
    """Everything is checked: take the session over, and answer when a new one is on disk."""
    if not _check_banned(channel):  # again: somebody may have been asked for seconds
        return None
    context = channel.context
    broker = context.broker
    client = channel.client
    channel.connect = None
    client.connected_at = now
    client.keep_alive = _keep_alive(channel, connect)
    client.expiry_interval = expiry = _expiry(channel, connect)

    properties = {**extra, **_connack_properties(channel, connect, client.keep_alive, expiry)}
    if not channel.fits(Connack(reason_codes.SUCCESS, False, properties)):
        end(channel, "packet_too_large", "the client's Maximum Packet Size leaves no room for a CONNACK", NONE)
        return None
    durability = context.durability
    if durability is not None and durability.trouble is not None and _needs_disk(channel, connect, expiry):
        refuse(channel, STORE_TROUBLE.code, STORE_TROUBLE.detail, STORE_TROUBLE.setting)
        return None
    old = context.channels.get(client.client_id)
    if old is not None:
        take_over(old, connect.clean_start)  # [MQTT-3.1.4-3]: out before the answer goes out
    channel.note()
    session, present = broker.open_session(client, connect.clean_start, expiry, channel.limits, now)
    channel.session = session
    channel.will = connect.will
    channel.state = CONNECTED
    context.channels[client.client_id] = channel
    if client.token is not None and client.token.expires is not None:
        channel.token_timer = context.timers.at(client.token.expires, partial(token_expired, channel))
    if durability is not None:
        # Also that a client is back must be on disk, or its session could end by its earlier absence after a crash.
        due = durability.due(channel.mark) if durability.trouble is None else durability.unconfirmed(session)
        if connect.will is not None:
            session.will_number = durability.will_stored(
                as_message(channel, connect.will, now), _delay_of(connect.will)
            )
        if due:
            return _answer_when_stored(channel, connect, Connack(reason_codes.SUCCESS, present, properties), due)
    _answer(channel, connect, Connack(reason_codes.SUCCESS, present, properties), now)
    return None


async def _answer_when_stored(channel: ChannelState, connect: Connect, connack: Connack, batch: int) -> None:
    durability = channel.context.durability
    assert durability is not None
    stored = await durability.stored(batch)
    session = channel.session
    if channel.state != CONNECTED or session is None:
        return
    if stored:
        _answer(channel, connect, connack, channel.context.clock.now())
        return
    # Nobody was told of it: a session that was begun for this CONNECT is none.
    if not connack.session_present:
        session.expiry_interval = 0
    channel.will = None
    refuse(channel, STORE_TROUBLE.code, STORE_TROUBLE.detail, STORE_TROUBLE.setting)


def _needs_disk(channel: ChannelState, connect: Connect, expiry: int) -> bool:
    """Whether the answer to a CONNECT would have to wait for the disk: a durable session begins or is discarded."""
    session = channel.context.broker.sessions.get(channel.client.client_id)
    if session is None or session.diary is None:
        return expiry > 0
    resumed = not connect.clean_start and (session.expiry_interval > 0 or not session.connected)
    return not resumed


def _answer(channel: ChannelState, connect: Connect, connack: Connack, now: float) -> None:
    """CONNACK, then what the session owes [MQTT-3.2.0-1]."""
    context = channel.context
    client = channel.client
    zone = channel.zone
    session = channel.session
    assert session is not None
    window = zone.max_inflight or MAX_PACKET_ID
    if connect.version == V5:
        window = min(window, int(connect.properties.get(RECEIVE_MAXIMUM, MAX_PACKET_ID)))  # [MQTT-3.3.4-9]
    outlet = channel.outlet
    outlet.durability = context.durability
    outlet.open(session, client.mountpoint)
    session.attach(outlet, window, channel.limits, now)
    channel.send_connack(connack)  # [MQTT-3.2.2-2] [MQTT-3.2.2-3]
    context.metrics.client_connected += 1
    context.broker.quiet_log.events.add(
        client.client_id, now, "client_connected", "session_present" if connack.session_present else "new_session", "-"
    )
    logger.info(
        "client_connected client_id=%s username=%s peer=%s listener=%s proto_ver=%s clean_start=%s "
        "session_present=%s keep_alive=%s expiry_interval=%s",
        client.client_id,
        client.username,
        client.peer,
        channel.listener.name,
        client.proto_ver,
        client.clean_start,
        connack.session_present,
        client.keep_alive,
        client.expiry_interval,
    )
    channel.link.accepted(client.keep_alive * zone.keep_alive_multiplier)
    if context.hooks.client_connected:
        context.hooks.client_connected(client)
    client.packet_properties = NO_PROPERTIES
    session.advance(now)


def take_over(old: ChannelState, clean_start: bool) -> None:
    """Another connection with the same Client Identifier was accepted: this one goes, its session may stay."""
    metrics = old.context.metrics
    hooks = old.context.hooks
    session = old.session
    if session is not None:
        if clean_start:
            # The session ends here, and its will goes out at once whatever its delay.
            session.expiry_interval = 0
            metrics.session_discarded += 1
            if hooks.session_discarded:
                hooks.session_discarded(old.client, session)
        else:
            metrics.session_takeovered += 1
            if hooks.session_takeovered:
                hooks.session_takeovered(old.client, session)
    disconnect(old, reason_codes.SESSION_TAKEN_OVER, "", DISCARDED if clean_start else TAKEOVERED)


def _delay_of(will: Will) -> int:
    return int(will.properties.get(WILL_DELAY_INTERVAL, 0))


def _new_client_id(channel: ChannelState) -> str:
    broker = channel.context.broker
    while True:
        client_id = f"{channel.zone.client_id_prefix}{broker.rng.getrandbits(128):032x}"
        if client_id not in broker.sessions:
            return client_id


def _check_mountpoint(channel: ChannelState) -> bool:
    """A name that reads as wildcards or levels would see other clients' mount points, and one that begins with $ those
    of the server (``$SYS``, ``$delayed``): it is refused where it is used."""
    client = channel.client
    template = channel.zone.mountpoint
    if "%u" in template and not client.username:
        refuse(channel, reason_codes.NOT_AUTHORIZED, "the mountpoint wants a user name", "mountpoint")
    elif "%c" in template and _SPECIAL.search(client.client_id):
        detail = "the mountpoint takes no identifier with + # / or a leading $"
        refuse(channel, reason_codes.CLIENT_IDENTIFIER_NOT_VALID, detail, "mountpoint")
    elif "%u" in template and _SPECIAL.search(client.username or ""):
        detail = "the mountpoint takes no user name with + # / or a leading $"
        refuse(channel, reason_codes.NOT_AUTHORIZED, detail, "mountpoint")
    else:
        return True
    return False


def _mountpoint(template: str, client_id: str, username: str | None) -> str:
    """``%c`` and ``%u`` filled in, in one pass: what a client calls itself is never read as a placeholder."""
    if "%" not in template:
        return template
    parts = template.split("%")
    filled = [parts[0]]
    for part in parts[1:]:
        if part.startswith("c"):
            filled.append(client_id + part[1:])
        elif part.startswith("u"):
            filled.append((username or "") + part[1:])
        else:
            filled.append("%" + part)
    return "".join(filled)


def _keep_alive(channel: ChannelState, connect: Connect) -> int:
    zone = channel.zone
    most = zone.server_keep_alive
    if most and (connect.version == V5 or zone.server_keep_alive_v3):
        # 0 asks for none at all, which is more than the most
        return most if connect.keep_alive == 0 or connect.keep_alive > most else connect.keep_alive
    return connect.keep_alive


def _expiry(channel: ChannelState, connect: Connect) -> int:
    most = channel.zone.session_expiry_interval
    if connect.version == V5:
        return min(int(connect.properties.get(SESSION_EXPIRY_INTERVAL, 0)), most)
    return 0 if connect.clean_start else most


def _connack_properties(channel: ChannelState, connect: Connect, keep_alive: int, expiry: int) -> dict[int, Any]:
    """What a 5.0 client is told of this server's limits; absent means the standard's default."""
    if connect.version != V5:
        return {}
    zone = channel.zone
    properties: dict[int, Any] = {}
    if not connect.client_id:  # the broker's choice, or its user name
        properties[ASSIGNED_CLIENT_IDENTIFIER] = channel.client.client_id  # [MQTT-3.2.2-16]
    if keep_alive != connect.keep_alive:
        properties[SERVER_KEEP_ALIVE] = keep_alive  # [MQTT-3.2.2-21]
    if expiry != connect.properties.get(SESSION_EXPIRY_INTERVAL, 0):
        properties[SESSION_EXPIRY_INTERVAL] = expiry
    if zone.receive_maximum < MAX_PACKET_ID:
        properties[RECEIVE_MAXIMUM] = zone.receive_maximum
    if zone.max_qos < 2:
        properties[MAXIMUM_QOS] = zone.max_qos  # [MQTT-3.2.2-9]
    if not zone.retain_available:
        properties[RETAIN_AVAILABLE] = 0
    properties[MAXIMUM_PACKET_SIZE] = zone.max_packet_size
    if zone.max_topic_alias:
        properties[TOPIC_ALIAS_MAXIMUM] = zone.max_topic_alias
    if not zone.wildcard_subscription:
        properties[WILDCARD_SUBSCRIPTION_AVAILABLE] = 0
    if not zone.shared_subscription:
        properties[SHARED_SUBSCRIPTION_AVAILABLE] = 0
    if zone.response_information and connect.properties.get(REQUEST_RESPONSE_INFORMATION) == 1:
        properties[RESPONSE_INFORMATION] = zone.response_information  # [MQTT-3.1.2-28]
    return properties


# ------------------------------------------------------------------ DISCONNECT


def on_disconnect(channel: ChannelState, packet: Disconnect, now: float) -> None:
    """The client says goodbye; its will is dropped unless it asks for it [MQTT-3.14.4-3]."""
    channel.context.metrics.packets_disconnect_received += 1
    session = channel.session
    expiry = packet.properties.get(SESSION_EXPIRY_INTERVAL)
    if expiry is not None and session is not None:
        if session.expiry_interval == 0 and expiry > 0:
            raise ProtocolError("DISCONNECT cannot make a session with expiry 0 outlive its connection")
        session.expiry_interval = min(expiry, channel.zone.session_expiry_interval)
        channel.client.expiry_interval = session.expiry_interval
    code = packet.reason_code
    channel.client.packet_properties = packet.properties
    if code == reason_codes.NORMAL_DISCONNECTION:
        channel.will = None
        end(channel, NORMAL)
    else:
        end(channel, reason_codes.name(code))
    channel.client.packet_properties = NO_PROPERTIES
