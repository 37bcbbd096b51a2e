"""Who a client is to the broker: its Client Identifier, whether it is banned, and the mount point of its topics."""

import re
from typing import Final

from ..access.control import AccessControl
from ..access.enhanced import AuthStep
from ..core.outcome import Outcome
from ..mqtt import reason_codes
from ..mqtt.constants import V4
from ..mqtt.packets import Connect
from ..session.client_info import ClientInfo
from ..session.session import Session
from .channel import Channel
from .closing import NONE, refuse

SESSION_OWNER: Final = "access.session_owner"

SESSION_BELONGS_TO: Final = "the session belongs to "

_SPECIAL: Final = re.compile(r"[+#/]|^\$")


def name_by_certificate(client: ClientInfo, cert_username: str) -> bool:
    """Call a client that has shown a certificate by the name in it, where its listener wants that; whether it has one.

    ``cert_username``: ``"cn"``, ``"dn"`` or empty.
    """
    name = client.cn if cert_username == "cn" else client.dn if cert_username == "dn" else None
    if name:
        client.username = name
    return bool(name)


def take_id_of_name(client: ClientInfo) -> bool:
    """Its user name becomes its Client Identifier, where its zone wants that."""
    if not client.zone.use_username_as_client_id or not client.username:
        return False
    client.client_id = client.username
    return True


def take_proof(client: ClientInfo, step: AuthStep) -> None:
    """It has proved who it is, by the last step of an exchange."""
    client.anonymous = False
    client.is_superuser = step.is_superuser
    client.proved_by = step.proved_by
    client.username = step.username or client.username


def check_client_id(channel: Channel, connect: Connect) -> bool:
    """Whether its Client Identifier will do; refuses it otherwise, as all checks here do."""
    refusal = client_id_refusal(channel.client, connect.version, connect.clean_start)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return False


def client_id_refusal(client: ClientInfo, version: int, clean_start: bool) -> Outcome | None:
    """Why its Client Identifier will not do."""
    zone = client.zone
    if not client.client_id:
        # [MQTT-3.1.3-6] [MQTT-3.1.3-7]; 3.1 has no empty identifiers, 3.1.1 only with Clean Session 1
        # [3.1.1 MQTT-3.1.3-7] [3.1.1 MQTT-3.1.3-8]
        forbidden = version < V4 or (version == V4 and not clean_start)
        if forbidden or not zone.allow_empty_client_id:
            # by the standard, whatever the setting says
            setting = NONE if forbidden else "allow_empty_client_id"
            detail = "an empty client ID is not allowed here"
            return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, setting, detail)
    elif len(client.client_id.encode()) > zone.max_client_id_length:
        detail = "client ID longer than max_client_id_length"
        return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "max_client_id_length", detail)
    return None


def check_named(channel: Channel) -> bool:
    """Whether it has the user name that is to be its Client Identifier."""
    refusal = name_refusal(channel.client)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return False


def name_refusal(client: ClientInfo) -> Outcome | None:
    """Why a client without a user name does not come in where the name is the identifier: one that it calls itself
    could be any other's."""
    if client.username or not client.zone.use_username_as_client_id:
        return None
    detail = "this listener uses the username as client ID, and the client has no username"
    return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "use_username_as_client_id", detail)


def check_banned(channel: Channel) -> bool:
    """Whether no ban keeps it out."""
    refusal = ban_refusal(channel.context.access, channel.client)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting, tell=False)
    return False


def ban_refusal(access: AccessControl, client: ClientInfo) -> Outcome | None:
    """The ban that keeps it out, as the log has it."""
    ban = access.ban_of(client)
    if ban is None:
        return None
    return Outcome(reason_codes.BANNED, ban.setting, ban.detail)


def check_owner(channel: Channel) -> bool:
    """Whether the session of its Client Identifier, if there is one, is its own to go on with or to end."""
    context = channel.context
    client = channel.client
    session = context.broker.sessions.get(client.client_id)
    if session is None or context.access.settings.session_owner == "any":
        return True
    owner = owner_before(session, client.owner, client.username)
    if not owner:
        return True
    refuse_session_of_another(channel, SESSION_BELONGS_TO + owner)
    return False


def owner_before(session: Session, owner: str, username: str | None) -> str:
    """Whose this session is, where it is not that of a client with this ``ClientInfo.owner`` and user name; empty: it
    is its own, or nobody's."""
    if session.owner is None:  # an older version did not write down whose it is, but what its client called itself
        known = session.client.username
        return "" if not known or known == username else f"a client called {known}"
    return "" if session.owner == owner else session.owner


def refuse_session_of_another(channel: Channel, detail: str) -> None:
    refuse(channel, reason_codes.NOT_AUTHORIZED, detail, SESSION_OWNER, tell=False, reason="session_of_another")


def new_client_id(channel: Channel) -> str:
    """For a client that has brought none: one that no session has."""
    broker = channel.context.broker
    while True:
        client_id = f"{channel.zone.client_id_prefix}{broker.rng.getrandbits(128):032x}"
        if client_id not in broker.sessions:
            return client_id


def check_mountpoint(channel: Channel) -> bool:
    """A name that reads as wildcards or levels would see other clients' mount points, and one that begins with $ those
    of the server (``$SYS``, ``$delayed``): it is refused where it is used."""
    refusal = mountpoint_refusal(channel.client)
    if refusal is None:
        return True
    refuse(channel, refusal.code, refusal.detail, refusal.setting)
    return False


def mountpoint_refusal(client: ClientInfo) -> Outcome | None:
    """Why the mount point of its zone is not for it."""
    template = client.zone.mountpoint
    if "%u" in template and not client.user:
        return Outcome(reason_codes.NOT_AUTHORIZED, "mountpoint", "the mountpoint requires an authenticated username")
    if "%c" in template and _SPECIAL.search(client.client_id):
        detail = "the mountpoint does not accept a client ID with + # / or a leading $"
        return Outcome(reason_codes.CLIENT_IDENTIFIER_NOT_VALID, "mountpoint", detail)
    if "%u" in template and _SPECIAL.search(client.user or ""):
        detail = "the mountpoint does not accept a username with + # / or a leading $"
        return Outcome(reason_codes.NOT_AUTHORIZED, "mountpoint", detail)
    return None


def mountpoint_of(template: str, client_id: str, username: str | None) -> str:
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
