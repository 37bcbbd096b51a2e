"""What a package needs to add a gateway: another protocol, whose clients have the sessions of MQTT.

See docs/recipes/add-a-gateway.md. The packets are those of MQTT; properties and Reason Codes are those of MQTT 5.0.
"""

from .broker.gateway import Gateway, GatewayChannel, GatewayError, GatewayLink
from .broker.listener_kinds import ListenerKind
from .broker.mqtt.encoder import Outgoing as Packet
from .broker.mqtt.message import Message
from .broker.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)

__all__ = [
    "Ack",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Gateway",
    "GatewayChannel",
    "GatewayError",
    "GatewayLink",
    "ListenerKind",
    "Message",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Suback",
    "Subscribe",
    "TopicFilter",
    "Unsuback",
    "Unsubscribe",
    "Will",
]
