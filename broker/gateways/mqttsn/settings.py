"""The table ``gateway`` of an MQTT-SN listener: EMQX's settings ``mqtt.sn.*`` under their own names."""

from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from ...mqtt.topics import valid_name
from .codec import SHORT

MAX_DURATION = 65_535
MAX_PREDEFINED = 16_384
"""Predefined topics: the ids that are left are for those that are registered."""


class MqttSnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """``predefined_topics``: topic id, as a text, -> topic name. ``username`` and ``password``: the credentials of
    every client, because a CONNECT of MQTT-SN has none. Times are in seconds."""

    gateway_id: Annotated[int, Meta(ge=1, le=255)] = 1
    advertise_duration: Annotated[int, Meta(ge=0, le=MAX_DURATION)] = 0
    advertise_address: Annotated[str, Meta(min_length=1, max_length=255)] = "255.255.255.255"
    enable_qos3: bool = False
    username: str | None = None
    password: str | None = None
    predefined_topics: dict[str, str] = {}
    retry_interval: Annotated[float, Meta(gt=0, le=3600)] = 10.0
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 5
    max_waiting_bytes: Annotated[int, Meta(ge=0)] = 65_536

    def __post_init__(self) -> None:
        for topic_id, topic in self.predefined_topics.items():
            if not topic_id.isascii() or not topic_id.isdecimal() or not 1 <= int(topic_id) <= 0xFFFE:
                raise ValueError(f"predefined_topics: {topic_id[:20]!r} is not a topic id from 1 to 65534")
            if not valid_name(topic):
                raise ValueError(f"predefined_topics: {topic[:100]!r} is not a topic name")
        if len(self.predefined_topics) > MAX_PREDEFINED:
            raise ValueError(f"predefined_topics: more than {MAX_PREDEFINED}")
        if len(set(self.predefined_topics.values())) < len(self.predefined_topics):
            raise ValueError("predefined_topics: a topic has two ids")
        if self.password is not None and self.username is None:
            raise ValueError("password: needs a username")

    @cached_property
    def predefined(self) -> "Predefined":
        """The predefined topics, for all conversations of the listener."""
        return Predefined(self.predefined_topics)


class Predefined:
    """The predefined topics in both directions."""

    __slots__ = ("of_id", "of_name")

    def __init__(self, topics: dict[str, str]) -> None:
        self.of_id = {int(topic_id): topic for topic_id, topic in topics.items()}
        self.of_name = {topic: int(topic_id) for topic_id, topic in topics.items()}


def short_name(topic: str) -> int | None:
    """Return a topic name of two characters as its number in packets; None: the name is not two characters long."""
    if len(topic) != SHORT:
        return None
    data = topic.encode()
    return data[0] << 8 | data[1] if len(data) == SHORT else None
