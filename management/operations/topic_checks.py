"""Checks of topics in requests: one wording for all operations, with the specification's code 115."""

from typing import Final

from taipan.broker.mqtt.topics import parse_filter, valid_filter, valid_name

from .refusal import BAD_TOPIC, Refusal

_MAX_SHOWN: Final = 256


def checked_name(member: str, topic: str) -> str:
    """Return the topic. Raises Refusal, naming the request's ``member``, unless it is a valid topic name."""
    if not valid_name(topic):
        raise bad_name(member, topic)
    return topic


def checked_filter(member: str, topic_filter: str) -> str:
    """Return the filter. Raises Refusal, naming the request's ``member``, unless it is a valid topic filter; a shared
    filter is not valid here."""
    if not valid_filter(topic_filter):
        raise bad_filter(member, topic_filter)
    return topic_filter


def checked_subscription(member: str, topic_filter: str) -> str:
    """Return the filter. Raises Refusal like ``checked_filter``, but accepts shared filters, as a SUBSCRIBE does."""
    try:
        parse_filter(topic_filter)
    except ValueError:
        raise bad_filter(member, topic_filter) from None
    return topic_filter


def bad_name(member: str, topic: str) -> Refusal:
    return Refusal(BAD_TOPIC, f"{member}: {topic[:_MAX_SHOWN]!r} is not a topic name")


def bad_filter(member: str, topic_filter: str) -> Refusal:
    return Refusal(BAD_TOPIC, f"{member}: {topic_filter[:_MAX_SHOWN]!r} is not a topic filter")
