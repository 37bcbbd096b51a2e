"""Hops: how often a message was made of another one, by rules here and by bridges between brokers.

Inside one node ``Message.hops`` counts; over a bridge of MQTT 5.0 the User Property ``bridge-hops`` does.
"""

from __future__ import annotations

from typing import Final

from taipan.broker.mqtt.constants import USER_PROPERTY
from taipan.broker.mqtt.packets import NO_PROPERTIES, Properties

NAME: Final = "bridge-hops"
_DIGITS: Final = 3


def hops_of(properties: Properties) -> int:
    """The value of its User Property; 0 where there is none, or no valid one."""
    values = [value for name, value in properties.get(USER_PROPERTY, ()) if name == NAME]
    return max((int(each) for each in values if each.isascii() and each.isdigit() and len(each) <= _DIGITS), default=0)


def with_hops(properties: Properties, hops: int) -> Properties:
    """The same with this count in the place of another."""
    if not hops:
        return properties or NO_PROPERTIES
    pairs = [pair for pair in properties.get(USER_PROPERTY, ()) if pair[0] != NAME]
    return {**properties, USER_PROPERTY: [*pairs, (NAME, str(hops))]}
