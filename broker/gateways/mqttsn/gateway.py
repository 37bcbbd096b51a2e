"""The gateway as the node loads it: the type of its listener, its settings and its conversation."""

from typing import Final

from ...gateway import Beacon, EmqxGatewayPlugin, Gateway
from ...listener_kinds import ListenerKind
from .codec import PROTOCOL_ID, SnAdvertise, encode, split
from .conversation import Conversation
from .settings import MqttSnSettings

CHALLENGE_BYTES: Final = 64
"""Bytes of REGISTER messages that an address may be sent to prove itself: some attempts of some bytes each."""


def advertisement(settings: MqttSnSettings) -> Beacon:
    """Return the ADVERTISE of a listener."""
    seconds = settings.advertise_duration
    return Beacon(encode(SnAdvertise(settings.gateway_id, seconds)), settings.advertise_address, seconds)


GATEWAY: Final = Gateway(
    name="mqttsn",
    listener=ListenerKind(name="mqttsn", protocol="mqttsn:udp", scheme="mqttsn", port=1884, datagram=True),
    channel=Conversation,
    settings=MqttSnSettings,
    proto_name="MQTT-SN",
    proto_ver=PROTOCOL_ID,
    beacon=advertisement,
    split=split,
    challenge_bytes=CHALLENGE_BYTES,
    emqx=EmqxGatewayPlugin(
        name="emqx_sn",
        prefix="mqtt.sn.",
        binds={"port": "mqttsn"},
        keys={
            "advertise_duration": ("gateway.advertise_duration", "whole_seconds"),
            "gateway_id": ("gateway.gateway_id", "number"),
            "enable_qos3": ("gateway.enable_qos3", "flag"),
            "idle_timeout": ("idle_timeout", "seconds"),
            "username": ("gateway.username", "text"),
            "password": ("gateway.password", "text"),
        },
        numbered="predefined.topic.",
        numbered_as="predefined_topics",
        left_out={
            "enable_stats": "every client has statistics",
            "subs_resume": "a session that continues has its subscriptions",
        },
    ),
)
