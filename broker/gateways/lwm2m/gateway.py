"""The gateway as the node loads it: the type of its listener, its settings and its conversation."""

from typing import Final

from ...gateway import Gateway
from ...listener_kinds import ListenerKind
from .conversation import Conversation
from .devices import Devices
from .settings import Lwm2mSettings

CHALLENGE_BYTES: Final = 64
"""Bytes of requests that an address may be sent to prove itself: some attempts of some bytes each."""
PROTO_VER: Final = 1

GATEWAY: Final = Gateway(
    name="lwm2m",
    listener=ListenerKind(name="lwm2m", protocol="lwm2m:udp", scheme="coap", port=5683, datagram=True),
    channel=Conversation,
    settings=Lwm2mSettings,
    proto_name="LwM2M",
    proto_ver=PROTO_VER,
    challenge_bytes=CHALLENGE_BYTES,
    shared=Devices,
)
