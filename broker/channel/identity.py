"""The identity of a client: its client ID, bans, the owner of its session, and the mount point of its topics."""

from typing import Final

from ..access.control import AccessControl
from ..access.enhanced import AuthStep
from ..core.outcome import Outcome
from ..mqtt import reason_codes
from ..mqtt.constants import V4
from ..mqtt.packets import Connect
from ..mqtt.topics import unsafe_level
from ..session.client_info import CERTIFICATE, PSK, ClientInfo
from ..session.session import Session
from .channel import Channel
from .closing import NONE, refuse

SESSION_OWNER: Final = "access.session_owner"

SESSION_BELONGS_TO: Final = "the session belongs to "


def name_by_tls(client: ClientInfo, tls_username: str) -> str:
    """Set the username of a client to a name that TLS has proved, if its listener is configured so; return the part of
    TLS that has proved it.

    ``tls_username``: ``"cn"``, ``"dn"``, ``"psk"`` or empty."""
    name = client.dn if tls_username == "dn" else client.cn if tls_username else None
    if not name:
        return ""
    client.username = name
    return PSK if tls_username == PSK else CERTIFICATE


def take_id_of_name(client: ClientInfo) -> bool:
    """Use the username as client ID, if the zone is configured so."""
    if not client.zone.use_username_as_client_id or not client.username:
        return False
    client.client_id = client.username
    return True


def take_proof(client: ClientInfo, step: AuthStep) -> None:
    """Note the identity that the client has proved with the last step of an exchange."""
    client.anonymous = False
    client.is_superuser = step.is_superuser
    client.proved_by = step.proved_by
    client.username = step.username or client.username


def check_client_id(channel: Channel, connect: Connect) -> bool:
    """Return whether the client ID is valid; otherwise refuse the client, as all checks here do."""
    refusal = client_id_refusal(channel.client, connect.version, connect.clean_start)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return False


def client_id_refusal(client: ClientInfo, version: int, clean_start: bool) -> Outcome | None:
    """Return why the client ID is not valid."""
    zone = client.zone
    if not client.client_id:
        # [MQTT-3.1.3-6] [MQTT-3.1.3-7]; 3.1 has no empty identifiers, 3.1.1 only with Clean Session 1
        # [3.1.1 MQTT-3.1.3-7] [3.1.1 MQTT-3.1.3-8]
        forbidden = version < V4 or (version == V4 and not clean_start)
        if forbidden or not zone.allow_empty_client_id:
            # by the standard, regardless of the setting
            setting = NONE if forbidden else "allow_empty_client_id"
            detail = "an empty client ID is not allowed here"
            return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, setting, detail)
    elif len(client.client_id.encode()) > zone.max_client_id_length:
        detail = "client ID longer than max_client_id_length"
        return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "max_client_id_length", detail)
    return None


def check_named(channel: Channel) -> bool:
    """Return whether the client has the username that is used as its client ID."""
    refusal = name_refusal(channel.client)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return False


def name_refusal(client: ClientInfo) -> Outcome | None:
    """Return why a client without a username is refused if the username is the identifier: a name that it only claims
    could be any other client's."""
    if client.username or not client.zone.use_username_as_client_id:
        return None
    detail = "this listener uses the username as client ID, and the client has no username"
    return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "use_username_as_client_id", detail)


def check_banned(channel: Channel) -> bool:
    """Return whether no ban applies to the client."""
    refusal = ban_refusal(channel.context.access, channel.client)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting, tell=False)
    return False


def ban_refusal(access: AccessControl, client: ClientInfo) -> Outcome | None:
    """Return the ban of the client in the form for the log."""
    ban = access.ban_of(client)
    if ban is None:
        return None
    return Outcome(reason_codes.BANNED, ban.setting, ban.detail)


def check_owner(channel: Channel) -> bool:
    """Return whether the session of this client ID, if there is one, may be continued or ended by this client."""
    context = channel.context
    client = channel.client
    session = context.broker.sessions.get(client.client_id)
    if session is None or context.access.settings.session_owner == "any":
        return True
    owner = owner_before(session, client.owner)
    if not owner:
        return True
    refuse_session_of_another(channel, SESSION_BELONGS_TO + owner)
    return False


def owner_before(session: Session, owner: str) -> str:
    """Return the owner of this session, if it is not a client with this ``ClientInfo.owner``; empty: it is the
    client's own, or has no owner."""
    return "" if session.owner == owner else session.owner


def refuse_session_of_another(channel: Channel, detail: str) -> None:
    refuse(channel, reason_codes.NOT_AUTHORIZED, detail, SESSION_OWNER, tell=False, reason="session_of_another")


def new_client_id(channel: Channel) -> str:
    """Assign a client ID that no session has, for a client without one."""
    broker = channel.context.broker
    while True:
        client_id = f"{channel.zone.client_id_prefix}{broker.rng.getrandbits(128):032x}"
        if client_id not in broker.sessions:
            return client_id


def check_mountpoint(channel: Channel) -> bool:
    """Return whether the mount point is safe: a name with wildcards or levels would see other clients' mount points,
    and one that begins with $ those of the server (``$SYS``, ``$delayed``). It is refused if the mount point contains
    it."""
    refusal = mountpoint_refusal(channel.client)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return False


def mountpoint_refusal(client: ClientInfo) -> Outcome | None:
    """Return why the client cannot use the mount point of its zone."""
    template = client.zone.mountpoint
    if "%u" in template and not client.user:
        return Outcome(reason_codes.NOT_AUTHORIZED, "mountpoint", "the mountpoint requires an authenticated username")
    if "%c" in template and unsafe_level(client.client_id):
        detail = "the mountpoint does not accept a client ID with + # / or a leading $"
        return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "mountpoint", detail)
    if "%u" in template and unsafe_level(client.user or ""):
        detail = "the mountpoint does not accept a username with + # / or a leading $"
        return Outcome(reason_codes.NOT_AUTHORIZED, "mountpoint", detail)
    return None


def mountpoint_of(template: str, client_id: str, username: str | None) -> str:
    """Return the mount point with ``%c`` and ``%u`` replaced in one pass, so that a client's name is never read as a
    placeholder."""
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
