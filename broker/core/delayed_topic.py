"""``$delayed/<seconds>/<topic>`` and topics that only the server publishes to, as strings."""

from typing import Final

PREFIX: Final = "$delayed/"
_MAX_DIGITS: Final = 12


def split(topic: str) -> tuple[int, str] | None:
    """``$delayed/<number>/<topic>`` as (number, topic); ``None`` where it is not well formed.

    ``$delayed/15/x/y`` -> ``15, x/y``; ``$delayed/15//x`` -> ``15, /x``.
    """
    if not topic.startswith(PREFIX):
        return None
    digits, slash, inner = topic[len(PREFIX) :].partition("/")
    if not slash or not inner or len(digits) > _MAX_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    if inner.startswith(PREFIX):  # a delay of a delay would escape the bounds
        return None
    return int(digits), inner


def with_mountpoint(topic: str, mountpoint: str) -> str:
    """``topic`` with ``mountpoint`` in front of its inner topic; put in front of the whole where it has none."""
    found = split(topic) if topic.startswith("$") else None
    return mountpoint + topic if found is None else f"{PREFIX}{found[0]}/{mountpoint}{found[1]}"


def without_mountpoint(topic: str, mountpoint: str) -> str:
    """What ``with_mountpoint`` was given."""
    found = split(topic) if topic.startswith("$") else None
    if found is None:
        return topic.removeprefix(mountpoint)
    return f"{PREFIX}{found[0]}/{found[1].removeprefix(mountpoint)}"


def reserved(topic: str) -> bool:
    """Whether only the server publishes to ``topic``, whatever the access rules say: ``$SYS`` and what is below, and
    what would get there by a delay, whether delayed publish is loaded or not."""
    if not topic.startswith("$"):
        return False
    found = split(topic)
    real = topic if found is None else found[1]
    return real == "$SYS" or real.startswith("$SYS/")
