"""The gateway as the node loads it: the type of its listener, its settings and its conversation."""

from typing import Final

from ...gateway import EmqxGatewayPlugin, Gateway
from ...listener_kinds import ListenerKind
from .conversation import DeviceConversation
from .devices import Devices
from .settings import DeviceTopics, Lwm2mSettings

CHALLENGE_BYTES: Final = 64
"""Maximum bytes of requests that are sent to an address so that it can prove itself: several small attempts."""
PROTO_VER: Final = 1


def _gateway(kind: ListenerKind, emqx: EmqxGatewayPlugin | None = None) -> Gateway:
    return Gateway(
        name=kind.name,
        listener=kind,
        channel=DeviceConversation,
        settings=Lwm2mSettings,
        proto_name="LwM2M",
        proto_ver=PROTO_VER,
        challenge_bytes=CHALLENGE_BYTES,
        shared=Devices,
        emqx=emqx,
    )


GATEWAY: Final = _gateway(
    ListenerKind(name="lwm2m", protocol="lwm2m:udp", scheme="coap", port=5683, datagram=True),
    EmqxGatewayPlugin(
        name="emqx_lwm2m",
        prefix="lwm2m.",
        binds={"bind.udp.": "lwm2m", "bind.dtls.": "lwm2ms"},
        tls="dtls.",
        keys={
            "lifetime_min": ("gateway.lifetime_min", "whole_seconds"),
            "lifetime_max": ("gateway.lifetime_max", "whole_seconds"),
            "qmode_time_window": ("gateway.qmode_time_window", "number"),
            "auto_observe": ("gateway.auto_observe", "flag_or_list"),
            "mountpoint": ("gateway.mountpoint", "text"),
            "update_msg_publish_condition": ("gateway.update_msg_publish_condition", "text"),
            "xml_dir": ("gateway.xml_dir", "directory"),
            **{f"topics.{name}": (f"gateway.topics.{name}", "text") for name in DeviceTopics.__struct_fields__},
        },
        left_out={
            "lb": "no proxy protocol for datagrams",
            "opts.": "the buffers are those of the system",
            "certfile": "dtls.certfile is used",
            "keyfile": "dtls.keyfile is used",
            "dtls.psk_ciphers": "a listener has either certificates or pre-shared keys; psk_file has the latter",
        },
    ),
)
DTLS: Final = _gateway(
    ListenerKind(name="lwm2ms", protocol="lwm2m:dtls", scheme="coaps", port=5684, datagram=True, tls=True)
)
