"""The MQTT CONNECT with which an MQTT-SN client is logged in."""

from typing import Final

from ...mqtt.constants import MAXIMUM_PACKET_SIZE, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from ...mqtt.packets import Connect, Will
from . import codec as sn
from .settings import MqttSnSettings

V5: Final = 5
MAX_SIZE: Final = 65_200
"""Maximum size of a PUBLISH for a client: with a forwarder's header it still fits into a datagram."""
NEVER_EXPIRES: Final = 0xFFFFFFFF


def connect(settings: MqttSnSettings, request: sn.SnConnect, will: Will | None) -> Connect:
    """Return the CONNECT of a client. The zone limits how long its session continues."""
    password = None if settings.password is None else settings.password.encode()
    properties = {RECEIVE_MAXIMUM: 1, MAXIMUM_PACKET_SIZE: MAX_SIZE}
    if not request.clean:
        properties[SESSION_EXPIRY_INTERVAL] = NEVER_EXPIRES
    return Connect(
        V5, request.client_id, request.clean, request.duration, settings.username, password, will, dict(properties)
    )
