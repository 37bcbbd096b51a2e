"""The gateway as the node loads it: the type of its listener, its settings and its conversation."""

from typing import Final

from ...gateway import EmqxGatewayPlugin, Gateway
from ...listener_kinds import ListenerKind
from .conversation import CoapConversation
from .settings import CoapSettings
from .shared import Exchanges

CHALLENGE_BYTES: Final = 28
"""Seven pings: as often as one is sent, with ``max_retransmit`` of 4."""

GATEWAY: Final = Gateway(
    name="coap",
    listener=ListenerKind(name="coap", protocol="coap:udp", scheme="coap", port=5683, datagram=True),
    channel=CoapConversation,
    settings=CoapSettings,
    proto_name="CoAP",
    proto_ver=1,
    challenge_bytes=CHALLENGE_BYTES,
    shared=Exchanges,
    emqx=EmqxGatewayPlugin(
        name="emqx_coap",
        prefix="coap.",
        bind="bind.udp.1",
        keys={"bind.udp.1": ("bind", "text")},
        left_out={"enable_stats": "every client has statistics"},
    ),
)
