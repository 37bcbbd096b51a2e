"""The gateway as the node loads it: the type of its listener, its settings and its conversation."""

from typing import Final

from ...gateway import EmqxGatewayPlugin, Gateway
from ...listener_kinds import ListenerKind
from .conversation import CoapConversation
from .settings import CoapSettings
from .shared import Exchanges

CHALLENGE_BYTES: Final = 28
"""Seven pings: as often as one is sent, with ``max_retransmit`` of 4."""


def _gateway(kind: ListenerKind, emqx: EmqxGatewayPlugin | None = None) -> Gateway:
    return Gateway(
        name=kind.name,
        listener=kind,
        channel=CoapConversation,
        settings=CoapSettings,
        proto_name="CoAP",
        proto_ver=1,
        challenge_bytes=CHALLENGE_BYTES,
        shared=Exchanges,
        emqx=emqx,
    )


GATEWAY: Final = _gateway(
    ListenerKind(name="coap", protocol="coap:udp", scheme="coap", port=5683, datagram=True),
    EmqxGatewayPlugin(
        name="emqx_coap",
        prefix="coap.",
        binds={"bind.udp.": "coap", "bind.dtls.": "coaps"},
        tls="dtls.",
        left_out={"enable_stats": "every client has statistics"},
    ),
)
DTLS: Final = _gateway(
    ListenerKind(name="coaps", protocol="coap:dtls", scheme="coaps", port=5684, datagram=True, tls=True)
)
