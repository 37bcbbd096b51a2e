"""Authentication of a client: immediately, after a wait, or by an exchange of AUTH packets."""

from collections.abc import Awaitable
from inspect import isawaitable
from typing import Final

from ..access.auth_result import BUSY, AuthOutcome
from ..access.enhanced import CONTINUE, SUCCESS, AuthStep
from ..mqtt import reason_codes
from ..mqtt.constants import AUTHENTICATION_DATA, AUTHENTICATION_METHOD
from ..mqtt.errors import ProtocolError
from ..mqtt.packets import Auth, Connect, Properties
from .channel import AUTHENTICATING, CONNECTING, Channel, Waiting
from .closing import disconnect, refuse
from .external_check import until_answered
from .identity import check_banned, check_client_id, take_id_of_name, take_proof
from .session_setup import accept

_HOOK: Final = "hook"


def authenticate(channel: Channel, connect: Connect, now: float) -> Waiting:
    """Authenticate the client with the data of its CONNECT; then accept or refuse it."""
    context = channel.context
    client = channel.client
    context.metrics.client_authenticate += 1
    outcome = context.access.authentication.authenticate(client, connect.password, channel.proved_by_tls)
    if isinstance(outcome, AuthOutcome):
        return _authenticated(channel, connect, outcome, now)
    assert isawaitable(outcome)
    channel.state = AUTHENTICATING
    return _await_outcome(channel, connect, outcome)


async def _await_outcome(channel: Channel, connect: Connect, outcome: Awaitable[AuthOutcome]) -> None:
    result = await until_answered(channel, outcome)
    if channel.state == AUTHENTICATING and result is not None:
        channel.state = CONNECTING
        waiting = _authenticated(channel, connect, result, channel.context.clock.now())
        if waiting is not None:
            await waiting


def _authenticated(channel: Channel, connect: Connect, outcome: AuthOutcome, now: float) -> Waiting:
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
        metrics.client_auth_ignore += 1  # no source knew the client; the default accepted it
    client.anonymous = outcome.anonymous
    client.is_superuser = outcome.is_superuser
    # If a hook accepts a client that the sources refuse, the hook vouches for the name.
    client.proved_by = _HOOK if outcome.reason_code else outcome.proved_by
    client.proved_client_id = outcome.proves_client_id
    return accept(channel, connect, now, {})


def start_exchange(channel: Channel, connect: Connect, method: str, now: float) -> Waiting:
    """Start the exchange with the Authentication Method of the CONNECT."""
    context = channel.context
    found = context.access.authentication.enhanced_method(method)
    if found is None:
        # [MQTT-4.12.0-1]
        refuse(channel, reason_codes.BAD_AUTHENTICATION_METHOD, "authentication method not supported")
        return None
    context.metrics.client_authenticate += 1
    channel.auth_method = method
    channel.exchange = found.start(channel.client)
    channel.state = AUTHENTICATING
    return _step(channel, connect.properties.get(AUTHENTICATION_DATA), now)


def _step(channel: Channel, data: bytes | None, now: float) -> Waiting:
    """Process one step of the exchange of a CONNECT; after too many wrong proofs, the next one is delayed."""
    exchange = channel.exchange
    assert exchange is not None
    passwords = channel.context.access.authentication.passwords
    wait = passwords.wait(channel.client, exchange.username) if exchange.username else None
    return _take_step(channel, data, now) if wait is None else _step_later(channel, data, wait)


async def _step_later(channel: Channel, data: bytes | None, wait: Awaitable[bool]) -> None:
    room = await until_answered(channel, wait)
    if channel.state != AUTHENTICATING or room is None:
        return
    if not room:
        refuse(channel, BUSY.reason_code, BUSY.detail, BUSY.setting, tell=False)
        return
    waiting = _take_step(channel, data, channel.context.clock.now())
    if waiting is not None:
        await waiting


def _take_step(channel: Channel, data: bytes | None, now: float) -> Waiting:
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
        if step.username:
            channel.context.access.authentication.passwords.proved(client, step.username, True)
        take_proof(client, step)
        if step.username:
            if take_id_of_name(client) and not check_client_id(channel, connect):
                return None
            if not check_banned(channel):
                return None
        return accept(channel, connect, now, _auth_properties(channel, step))
    channel.context.metrics.client_auth_failure += 1
    if exchange.username and step.wrong:
        channel.context.access.authentication.passwords.proved(channel.client, exchange.username, False)
    if channel.client.username is None:
        channel.client.username = exchange.username or None  # the name that it gave, as with a password
    # [MQTT-4.12.0-4]
    refuse(channel, step.reason_code, step.detail, step.setting, tell=False)
    return None


def _auth_properties(channel: Channel, step: AuthStep) -> Properties:
    properties: Properties = {AUTHENTICATION_METHOD: channel.auth_method}  # [MQTT-4.12.0-5]
    if step.data:
        properties[AUTHENTICATION_DATA] = step.data
    return properties


def on_auth(channel: Channel, auth: Auth, now: float) -> Waiting:
    """Process AUTH: the next step of the first exchange, or of a re-authentication."""
    channel.context.metrics.packets_auth_received += 1
    if channel.auth_method is None:
        raise ProtocolError("AUTH without an authentication method in CONNECT")  # [MQTT-4.12.0-7]
    if auth.properties.get(AUTHENTICATION_METHOD) != channel.auth_method:
        raise ProtocolError("AUTH with another authentication method")  # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
    data = auth.properties.get(AUTHENTICATION_DATA)
    code = auth.reason_code
    if channel.state == AUTHENTICATING:
        if code != reason_codes.CONTINUE_AUTHENTICATION:
            raise ProtocolError("AUTH before CONNACK requires Reason Code 0x18")  # [MQTT-4.12.0-3]
        return _step(channel, data, now)
    if code == reason_codes.RE_AUTHENTICATE:
        if channel.exchange is not None:
            raise ProtocolError("a re-authentication is already in progress")
        method = channel.context.access.authentication.enhanced_method(channel.auth_method)
        if method is None:
            detail = "the method is no longer available"
            disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "not_authorized", "access.users")
            return None
        channel.exchange = method.start(channel.client)
    elif code != reason_codes.CONTINUE_AUTHENTICATION or channel.exchange is None:
        raise ProtocolError("AUTH outside of an exchange")
    _step_again(channel, data)
    return None


def _step_again(channel: Channel, data: bytes | None) -> None:
    """Process one step of a re-authentication; other traffic continues in the meantime (section 4.12.1)."""
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
            channel.admitted = None
            if channel.session is not None:
                channel.context.reviews.add(channel.session)
        channel.send_auth(Auth(reason_codes.SUCCESS, _auth_properties(channel, step)))
        return
    # [MQTT-4.12.1-2]
    if exchange.username and step.wrong:
        channel.context.access.authentication.passwords.proved(channel.client, exchange.username, False)
    channel.context.metrics.client_auth_failure += 1
    detail = "re-authentication failed"
    disconnect(channel, reason_codes.NOT_AUTHORIZED, detail, "not_authorized", "access.users")
