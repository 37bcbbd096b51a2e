"""Topic Names and Topic Filters (MQTT 5.0 section 4.7), Shared Subscriptions (4.8.2) and EMQX's exclusive subscriptions
as strings."""

from typing import Final

from .constants import MAX_STRING

SHARE_PREFIX: Final = "$share/"
QUEUE_PREFIX: Final = "$queue/"
QUEUE_GROUP: Final = "$queue"
EXCLUSIVE_PREFIX: Final = "$exclusive/"


def levels(topic: str) -> list[str]:
    """Return the levels of a Topic Name or Topic Filter, including empty ones."""
    return topic.split("/")


def valid_name(topic: str) -> bool:
    """Return whether this is a valid Topic Name.

    Not empty [MQTT-4.7.3-1], no wildcards [MQTT-4.7.0-1], no U+0000 [MQTT-4.7.3-2], at most 65,535 bytes of UTF-8
    [MQTT-4.7.3-3]."""
    return topic != "" and "+" not in topic and "#" not in topic and _valid_text(topic)


def valid_filter(filter: str) -> bool:
    """Return whether this is a valid Topic Filter without ``$share``: each wildcard is a whole level, and ``#`` is the
    last level.

    [MQTT-4.7.1-1] [MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3] and the text rules of ``valid_name``."""
    if not filter or not _valid_text(filter):
        return False
    if "#" in filter:
        if filter.index("#") != len(filter) - 1:
            return False
        if len(filter) > 1 and filter[-2] != "/":
            return False
    if "+" in filter:
        for level in filter.split("/"):
            if "+" in level and level != "+":
                return False
    return True


def check_filter(filter: str) -> None:
    """Raise ``ValueError`` with the reason if this is not a valid Topic Filter."""
    if valid_filter(filter):
        return
    if not filter or not _valid_text(filter):
        raise ValueError("a topic is 1 to 65535 bytes of UTF-8 without U+0000")
    if any("+" in level and level != "+" for level in filter.split("/")):
        raise ValueError('"+" must be alone in its level')
    raise ValueError('"#" must be alone in the last level')


def _valid_text(topic: str) -> bool:
    if "\0" in topic:
        return False
    # A character has at most four bytes, so only long topics have to be encoded to know their size.
    if len(topic) * 4 <= MAX_STRING:
        return True
    try:
        return len(topic.encode()) <= MAX_STRING
    except UnicodeEncodeError:
        return False


def has_wildcard(filter: str) -> bool:
    """Return whether the filter contains ``+`` or ``#``."""
    return "+" in filter or "#" in filter


def unsafe_level(name: str) -> bool:
    """Return whether a client's name, as a level of a topic, would add levels or wildcards, or begin a topic of the
    server."""
    return name.startswith("$") or "+" in name or "#" in name or "/" in name


def is_shared(filter: str) -> bool:
    """Return whether this filter requests a Shared Subscription, valid or not."""
    return filter.startswith((SHARE_PREFIX, QUEUE_PREFIX)) or filter in ("$share", "$queue")


def is_exclusive(filter: str) -> bool:
    """Return whether this filter requests an exclusive subscription, valid or not."""
    return filter.startswith(EXCLUSIVE_PREFIX)


def is_plain(filter: str) -> bool:
    """Return whether this filter requests neither a Shared nor an exclusive subscription."""
    return not (filter.startswith("$") and (is_shared(filter) or is_exclusive(filter)))


def parse_shared(filter: str) -> tuple[str | None, str]:
    """Split ``$share/{group}/{filter}`` or ``$queue/{filter}`` (group ``"$queue"``) into group and Topic Filter.

    Return ``(None, filter)`` for an ordinary filter, and for ``$exclusive/{filter}`` the part after the prefix. Raises
    ``ValueError`` if the group is empty or contains ``+`` or ``#``, or if no Topic Filter follows it [MQTT-4.8.2-1]
    [MQTT-4.8.2-2], or for both prefixes at once. The Topic Filter itself is not checked."""
    if not filter.startswith("$"):
        return None, filter
    if filter.startswith(EXCLUSIVE_PREFIX):
        topic_filter = filter[len(EXCLUSIVE_PREFIX) :]
        if not is_plain(topic_filter):
            raise ValueError("an exclusive subscription cannot be shared, or exclusive twice")
        return None, topic_filter
    if filter.startswith(SHARE_PREFIX):
        group, slash, topic_filter = filter[len(SHARE_PREFIX) :].partition("/")
        if not group or not slash or not topic_filter or "+" in group or "#" in group:
            raise ValueError("not a shared subscription: expected $share/{group}/{filter}")
        if is_exclusive(topic_filter):
            raise ValueError("a shared subscription cannot be exclusive")
        return group, topic_filter
    if filter.startswith(QUEUE_PREFIX):
        topic_filter = filter[len(QUEUE_PREFIX) :]
        if not topic_filter:
            raise ValueError("not a shared subscription: expected $queue/{filter}")
        if is_exclusive(topic_filter):
            raise ValueError("a shared subscription cannot be exclusive")
        return QUEUE_GROUP, topic_filter
    if filter in ("$share", "$queue"):
        raise ValueError("not a shared subscription: nothing follows " + filter)
    return None, filter


def parse_filter(text: str) -> tuple[str | None, str]:
    """Return group and Topic Filter of an entry of SUBSCRIBE, as ``parse_shared`` does. Raises ``ValueError`` if it is
    not valid."""
    group, topic_filter = parse_shared(text)
    if not valid_filter(topic_filter) or (group is not None and not _valid_text(text)):
        raise ValueError("not a Topic Filter")
    return group, topic_filter


def matches(filter: str, name: str) -> bool:
    """Return whether a valid Topic Filter matches a valid Topic Name. They are compared level by level.

    A filter that begins with a wildcard matches no name that begins with ``$`` [MQTT-4.7.2-1]. Nothing is normalised
    [MQTT-4.7.3-4]. ``#`` also matches the parent level."""
    if "+" not in filter and "#" not in filter:
        return filter == name
    if name.startswith("$") and filter[0] in "+#":
        return False
    wanted = filter.split("/")
    given = name.split("/")
    count = len(given)
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= count or (level != "+" and level != given[index]):
            return False
    return len(wanted) == count
