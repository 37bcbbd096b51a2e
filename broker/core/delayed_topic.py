"""``$delayed/<seconds>/<topic>``, and topics to which only the server publishes, as strings; and what holds such
messages."""

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from ..mqtt.message import Message
    from ..persistence.durability import Durability
    from .outcome import Outcome

PREFIX: Final = "$delayed/"
_MAX_DIGITS: Final = 12


class DelayedMessages(Protocol):
    """Holds messages to ``$delayed/...`` until they are due: ``extensions.delayed``."""

    durability: "Durability | None"

    def handles(self, topic: str) -> bool:
        """Return whether a message to this topic has to be passed to ``accept``."""

    def accept(self, message: "Message", now: float) -> "Outcome":
        """Hold the message, or refuse it."""


def split(topic: str) -> tuple[int, str] | None:
    """Split ``$delayed/<number>/<topic>`` into (number, topic); ``None`` if it is not valid.

    ``$delayed/15/x/y`` -> ``15, x/y``; ``$delayed/15//x`` -> ``15, /x``."""
    if not topic.startswith(PREFIX):
        return None
    digits, slash, inner = topic[len(PREFIX) :].partition("/")
    if not slash or not inner or len(digits) > _MAX_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    if inner.startswith(PREFIX):  # nested delays would exceed the limits
        return None
    return int(digits), inner


def with_mountpoint(topic: str, mountpoint: str) -> str:
    """Return ``topic`` with ``mountpoint`` before its inner topic; before the whole topic if it has no inner one."""
    found = split(topic) if topic.startswith("$") else None
    return mountpoint + topic if found is None else f"{PREFIX}{found[0]}/{mountpoint}{found[1]}"


def without_mountpoint(topic: str, mountpoint: str) -> str:
    """Reverse ``with_mountpoint``."""
    found = split(topic) if topic.startswith("$") else None
    if found is None:
        return topic.removeprefix(mountpoint)
    return f"{PREFIX}{found[0]}/{found[1].removeprefix(mountpoint)}"


def reserved(topic: str) -> bool:
    """Return whether only the server may publish to ``topic``, whatever the access rules say: ``$SYS`` and topics below
    it, also as the inner topic of a delay, whether delayed publish is loaded or not."""
    if not topic.startswith("$"):
        return False
    found = split(topic)
    real = topic if found is None else found[1]
    return real == "$SYS" or real.startswith("$SYS/")
