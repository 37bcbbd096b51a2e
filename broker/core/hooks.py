"""The hook points, and the arguments of their callbacks. Names are EMQX 4.x's with "_"."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeVar

from ..mqtt.message import Message
from ..mqtt.packets import Properties, TopicFilter
from ..session.client_info import ClientInfo

if TYPE_CHECKING:
    from ..session.session import Session  # noqa: F401 - in type arguments below
    from ..session.subscription import Subscription  # noqa: F401

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

AuthResult = Literal["allow", "deny", "ignore"]
"""Of authentication; ``"ignore"``: no source knew the client, so the configured default decides."""


class STOP(Generic[T]):
    """What a fold's callback returns to end the fold with ``value``: later callbacks are not asked."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class HookPoint(list[C]):
    """One place where callbacks are called, ordered by priority (highest first), then by arrival.

    It is a list so that ``if hooks.message_acked:`` costs no call. Change it only by ``add`` and ``remove``, which a
    callback may do too: who was there when the firing began is called.
    """

    __slots__ = ("_priorities", "errors", "name")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name: Final = name
        self.errors = 0
        self._priorities: list[int] = []

    def add(self, callback: C, priority: int = 0) -> None:
        """Register ``callback``; the same one may be registered several times."""
        at = sum(1 for each in self._priorities if each >= priority)
        self._priorities.insert(at, priority)
        self.insert(at, callback)

    def remove(self, callback: C, /) -> None:
        """Take out the first registration of ``callback``; ``ValueError`` if there is none."""
        at = self.index(callback)
        del self._priorities[at]
        del self[at]

    def failed(self, callback: object, error: Exception) -> None:
        """Count and log it."""
        self.errors += 1
        name = getattr(callback, "__qualname__", repr(callback))
        logger.error("hook_failed point=%s callback=%s", self.name, name, exc_info=error)


class Notify(HookPoint[Callable[P, object]], Generic[P]):
    """Calls every callback. What they return is ignored; an error in one is logged and counted, and stops no other."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in tuple(self):
            try:
                callback(*args, **kwargs)
            except Exception as error:
                self.failed(callback, error)


class Fold(HookPoint[Callable[..., T | STOP[T]]], Generic[T]):
    """Hands a value from callback to callback: each is given it first, then ``args``, and returns the next value.

    ``STOP(value)`` ends the fold. A callback that fails leaves the value as it was.
    """

    __slots__ = ()

    def __call__(self, value: T, *args: object) -> T:
        for callback in tuple(self):
            try:
                result = callback(value, *args)
            except Exception as error:
                self.failed(callback, error)
                continue
            if isinstance(result, STOP):
                return result.value
            value = result
        return value


class PublishFold(HookPoint[Callable[[Message], Message | STOP[Message | None] | None]]):
    """A fold over the Message about to be published; ``None`` or ``STOP(None)`` means that it is not published.

    A callback that wants another message returns a new one: the one it is given is never changed in place.
    """

    __slots__ = ()

    def __call__(self, message: Message) -> Message | None:
        for callback in tuple(self):
            try:
                result = callback(message)
            except Exception as error:
                self.failed(callback, error)
                continue
            if isinstance(result, STOP):
                return result.value
            if result is None:
                return None
            message = result
        return message


class Hooks:
    """Every hook point of the broker. Firing sites read ``if hooks.x: hooks.x(...)``.

    Reasons are EMQX's words (``normal``, ``kicked``, ``keepalive_timeout``, ...); Reason Codes are those of 5.0.
    """

    __slots__ = (
        "client_authenticate",
        "client_check_acl",
        "client_check_acl_complete",
        "client_connack",
        "client_connect",
        "client_connected",
        "client_disconnected",
        "client_subscribe",
        "client_unsubscribe",
        "delivery_completed",
        "delivery_dropped",
        "message_acked",
        "message_delivered",
        "message_dropped",
        "message_publish",
        "session_created",
        "session_discarded",
        "session_resumed",
        "session_subscribed",
        "session_takeovered",
        "session_terminated",
        "session_unsubscribed",
    )

    def __init__(self) -> None:
        # A CONNECT arrived: (client, its properties). Nothing is checked yet.
        self.client_connect = Notify[[ClientInfo, Properties]]("client.connect")
        # A CONNACK goes out: (properties, client, Reason Code) -> properties.
        self.client_connack = Fold[Properties]("client.connack")
        # Accepted: (client).
        self.client_connected = Notify[[ClientInfo]]("client.connected")
        # The connection of an accepted client ended: (client, reason).
        self.client_disconnected = Notify[[ClientInfo, str]]("client.disconnected")
        # What the sources of access/ decided, and last word on it: (decision, client, password) -> decision.
        self.client_authenticate = Fold[AuthResult]("client.authenticate")
        # Likewise for one topic: (allowed, client, action, topic) -> allowed.
        self.client_check_acl = Fold[bool]("client.check_acl")
        # A topic was decided: (client, "publish" or "subscribe", topic, allowed, whether from the cache).
        self.client_check_acl_complete = Notify[[ClientInfo, str, str, bool, bool]]("client.check_acl_complete")
        # A SUBSCRIBE before it is carried out: (filters, client, its properties) -> filters, as many as came in.
        self.client_subscribe = Fold[list[TopicFilter]]("client.subscribe")
        # An UNSUBSCRIBE before it is carried out: (filters, client, its properties) -> filters, as many as came in.
        self.client_unsubscribe = Fold[list[str]]("client.unsubscribe")

        self.session_created = Notify[[ClientInfo, "Session"]]("session.created")
        # One filter is in force: (client, subscription, whether the session did not have this filter before).
        self.session_subscribed = Notify[[ClientInfo, "Subscription", bool]]("session.subscribed")
        # One filter no longer is, by UNSUBSCRIBE or an operator; not fired for each filter of a session that ends.
        self.session_unsubscribed = Notify[[ClientInfo, "Subscription"]]("session.unsubscribed")
        self.session_resumed = Notify[[ClientInfo, "Session"]]("session.resumed")
        # A new connection with Clean Start ends it: (its last client, session), in place of ``session_terminated``.
        self.session_discarded = Notify[[ClientInfo, "Session"]]("session.discarded")
        # A new connection takes it over from a live one: (the old client, session).
        self.session_takeovered = Notify[[ClientInfo, "Session"]]("session.takeovered")
        # It has ended in any other way: (its last client, session, reason).
        self.session_terminated = Notify[[ClientInfo, "Session", str]]("session.terminated")

        # A message before it is routed, whoever publishes it: (message) -> message, None: not published.
        self.message_publish = PublishFold("message.publish")
        # A message went out to a client. Told, not asked: the message is shared by all its receivers.
        self.message_delivered = Notify[[ClientInfo, Message]]("message.delivered")
        # A client acknowledged a message of QoS 1 (PUBACK) or 2 (PUBREC).
        self.message_acked = Notify[[ClientInfo, Message]]("message.acked")
        # A message has no subscriber: (message, reason), as "no_subscribers".
        self.message_dropped = Notify[[Message, str]]("message.dropped")
        # A message will not reach one subscriber: (client, session, message, reason); reasons as in
        # session.protocols.
        self.delivery_dropped = Notify[[ClientInfo, "Session", Message, str]]("delivery.dropped")
        # A delivery is over: (client, message, when it was published). QoS 1: PUBACK, QoS 2: PUBCOMP.
        self.delivery_completed = Notify[[ClientInfo, Message, float]]("delivery.completed")

    @property
    def points(self) -> dict[str, HookPoint[Any]]:
        """EMQX's name -> point, for whoever attaches by name."""
        found: list[HookPoint[Any]] = [getattr(self, attribute) for attribute in self.__slots__]
        return {point.name: point for point in found}

    @property
    def errors(self) -> int:
        """How many callbacks have failed."""
        return sum(point.errors for point in self.points.values())
