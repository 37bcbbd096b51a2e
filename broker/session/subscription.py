"""A Subscription: one Topic Filter of one session with its options."""

from typing import TYPE_CHECKING, Any, Final

from ..mqtt.topics import EXCLUSIVE_PREFIX

if TYPE_CHECKING:
    from .session import Session

_NONE: Final[tuple[int, ...]] = ()


class Subscription:
    """Immutable except for ``judged``. Subscribing again creates a new one that replaces the old one [MQTT-3.8.4-3].

    ``filter`` is the whole string as the client sent it (``$share/...`` and ``$exclusive/`` included, mount point
    applied);
    ``topic_filter`` the part that is matched; ``group`` the name of the shared subscription or ``None``.
    ``identifiers`` has at most one entry, but any number in the merged form that the router creates if several filters
    of one session match.

    ``by_operator``: an operator created it for the client, regardless of access rules.

    ``judged``: access rules deny some of the topics that it matches, so they are checked for each topic. Only this
    attribute changes.

    ``plain``: without No Local, Retain As Published and identifiers, and not shared; the publish path then needs only
    ``session`` and ``qos``."""

    __slots__ = (
        "by_operator",
        "filter",
        "group",
        "identifiers",
        "judged",
        "no_local",
        "parts",
        "plain",
        "qos",
        "retain_as_published",
        "retain_handling",
        "session",
        "topic_filter",
    )

    def __init__(
        self,
        session: "Session",
        filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifiers: tuple[int, ...] = _NONE,
        group: str | None = None,
        topic_filter: str | None = None,
        parts: "tuple[Subscription, ...]" = (),
        by_operator: bool = False,
    ) -> None:
        self.session = session
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling
        self.identifiers = identifiers
        self.group = group
        self.topic_filter = filter if topic_filter is None else topic_filter
        self.parts = parts
        self.by_operator = by_operator
        self.judged = False
        self.plain = not (no_local or retain_as_published or identifiers or group is not None)

    @property
    def exclusive(self) -> bool:
        """Whether no other session may have an exclusive subscription to the same ``topic_filter``."""
        return self.filter.startswith(EXCLUSIVE_PREFIX) and self.filter != self.topic_filter

    def info(self) -> dict[str, Any]:
        """Return the options under EMQX's names in ``subopts``."""
        return {
            "qos": self.qos,
            "nl": int(self.no_local),
            "rap": int(self.retain_as_published),
            "rh": self.retain_handling,
        }

    def __repr__(self) -> str:
        return f"Subscription({self.filter!r}, qos={self.qos})"


class VolatileSubscription(Subscription):
    """Subscription of a durable session for messages that need not be durable, because they are not for any durable
    session of a client. Such a message is not written to disk if it can be sent immediately
    (``Session.deliver_volatile``)."""

    __slots__ = ()


def merge(overlapping: list[Subscription]) -> Subscription:
    """Merge several matching filters of one session into one delivery: highest QoS, all identifiers [MQTT-3.3.4-2..4].

    Retain As Published is set if any of them has it. No Local suppresses only the match of its own filter, so the parts
    are kept for messages that the subscriber itself publishes (``without_no_local``)."""
    first = overlapping[0]
    identifiers: list[int] = []
    for each in overlapping:
        identifiers.extend(each.identifiers)
    return Subscription(
        first.session,
        first.filter,
        max(each.qos for each in overlapping),
        any(each.no_local for each in overlapping),
        any(each.retain_as_published for each in overlapping),
        0,
        tuple(identifiers),
        parts=tuple(overlapping),
    )


def without_no_local(subscription: Subscription) -> Subscription | None:
    """Return the rest of a match for a message that the subscriber itself has published; ``None``: nothing
    [MQTT-3.8.3-3]."""
    if not subscription.no_local:
        return subscription
    left = [part for part in subscription.parts if not part.no_local]
    return merge(left) if left else None
