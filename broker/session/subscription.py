"""A Subscription: one Topic Filter of one session with its options."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .session import Session

_NONE: Final[tuple[int, ...]] = ()


class Subscription:
    """Immutable, but for ``judged``. Subscribing again makes a new one that takes the old one's place [MQTT-3.8.4-3].

    ``filter`` is the whole string as the client sent it (``$share/...`` included, mount point applied);
    ``topic_filter`` the part that is matched; ``group`` the name of the shared subscription or ``None``.
    ``identifiers`` has at most one entry, but any number in the merged form that the router makes where several
    filters of one session match.

    ``by_operator``: an operator made it for the client, whatever the access rules say.

    ``judged``: rules are asked about each topic that it matches, for they deny a part of them. The only attribute that
    changes.

    ``plain``: neither No Local, Retain As Published nor identifiers nor shared; the publish path then needs
    only ``session`` and ``qos``.
    """

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

    def info(self) -> dict[str, Any]:
        """Its options under the names EMQX gives them in ``subopts``."""
        return {
            "qos": self.qos,
            "nl": int(self.no_local),
            "rap": int(self.retain_as_published),
            "rh": self.retain_handling,
        }

    def __repr__(self) -> str:
        return f"Subscription({self.filter!r}, qos={self.qos})"


class VolatileSubscription(Subscription):
    """Of a session that outlives the process, for what need not: nobody it is for has a durable session. It is not
    written down where it goes out at once (``Session.deliver_volatile``)."""

    __slots__ = ()


def merge(overlapping: list[Subscription]) -> Subscription:
    """Several matching filters of one session as one delivery: highest QoS, all identifiers [MQTT-3.3.4-2..4].

    Retain As Published is on where any of them has it. No Local suppresses only what came through its own filter,
    so the parts are kept for the publisher's own case (``without_no_local``).
    """
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
    """What is left of a match for a message of the subscriber's own; ``None``: nothing [MQTT-3.8.3-3]."""
    if not subscription.no_local:
        return subscription
    left = [part for part in subscription.parts if not part.no_local]
    return merge(left) if left else None
