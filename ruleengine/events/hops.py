"""Hops: how many rules on this node and bridges between brokers a message has passed.

``Message.hops`` has the number within a node. A bridge with MQTT 5.0 sends it in the User Property ``bridge-hops``."""

from __future__ import annotations

from typing import Final

from taipan.broker.mqtt.constants import USER_PROPERTY
from taipan.broker.mqtt.packets import NO_PROPERTIES, Properties

NAME: Final = "bridge-hops"
_DIGITS: Final = 3


def hops_of(properties: Properties) -> int:
    """Return the value of the User Property; 0 if it is absent or invalid."""
    values = [value for name, value in properties.get(USER_PROPERTY, ()) if name == NAME]
    return max((int(each) for each in values if each.isascii() and each.isdigit() and len(each) <= _DIGITS), default=0)


def with_hops(properties: Properties, hops: int) -> Properties:
    """Return the properties with this count."""
    if not hops:
        return properties or NO_PROPERTIES
    pairs = [pair for pair in properties.get(USER_PROPERTY, ()) if pair[0] != NAME]
    return {**properties, USER_PROPERTY: [*pairs, (NAME, str(hops))]}
