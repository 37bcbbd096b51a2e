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
"""The result of authentication; ``"ignore"``: no source knew the client, so the configured default decides."""


class STOP(Generic[T]):
    """A callback of a fold returns this to end the fold with ``value``: later callbacks are not called."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class HookPoint(list[C]):
    """A list of callbacks, ordered by priority (highest first), then by registration.

    It is a list so that ``if hooks.message_acked:`` costs no call. Change it only by ``add`` and ``remove``, which
    callbacks may also call: the callbacks that were registered when the firing began are called."""

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
        """Remove the first registration of ``callback``; ``ValueError`` if there is none."""
        at = self.index(callback)
        del self._priorities[at]
        del self[at]

    def failed(self, callback: object, error: Exception) -> None:
        """Count and log the error of a callback."""
        self.errors += 1
        name = getattr(callback, "__qualname__", repr(callback))
        logger.error("hook_failed point=%s callback=%s", self.name, name, exc_info=error)


class Notify(HookPoint[Callable[P, object]], Generic[P]):
    """Calls every callback. The results are ignored. An error in a callback is logged and counted, and does not stop
    the others."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in tuple(self):
            try:
                callback(*args, **kwargs)
            except Exception as error:
                self.failed(callback, error)


class Fold(HookPoint[Callable[..., T | STOP[T]]], Generic[T]):
    """Passes a value from callback to callback: each receives the value, then ``args``, and returns the next value.

    ``STOP(value)`` ends the fold. A callback that fails leaves the value unchanged."""

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
    """A fold over the Message to be published; ``None`` or ``STOP(None)`` prevents its publication.

    To publish another message, a callback returns a new one: it never changes the given message."""

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

    Reasons are the words of EMQX (``normal``, ``kicked``, ``keepalive_timeout``, ...); Reason Codes are those of
    5.0."""

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
        # A CONNECT arrived: (client, its properties). Nothing has been checked yet.
        self.client_connect = Notify[[ClientInfo, Properties]]("client.connect")
        # A CONNACK is sent: (properties, client, Reason Code) -> properties.
        self.client_connack = Fold[Properties]("client.connack")
        # A client was accepted: (client).
        self.client_connected = Notify[[ClientInfo]]("client.connected")
        # The connection of an accepted client ended: (client, reason).
        self.client_disconnected = Notify[[ClientInfo, str]]("client.disconnected")
        # The sources of access/ have decided, and a callback may change that: (decision, client, password) -> decision.
        self.client_authenticate = Fold[AuthResult]("client.authenticate")
        # The same for one topic: (allowed, client, action, topic) -> allowed.
        self.client_check_acl = Fold[bool]("client.check_acl")
        # Access to a topic was decided: (client, "publish" or "subscribe", topic, allowed, whether from the cache).
        self.client_check_acl_complete = Notify[[ClientInfo, str, str, bool, bool]]("client.check_acl_complete")
        # A SUBSCRIBE before it is executed: (filters, client, its properties) -> the same number of filters.
        self.client_subscribe = Fold[list[TopicFilter]]("client.subscribe")
        # An UNSUBSCRIBE before it is executed: (filters, client, its properties) -> the same number of filters.
        self.client_unsubscribe = Fold[list[str]]("client.unsubscribe")

        self.session_created = Notify[[ClientInfo, "Session"]]("session.created")
        # A subscription is active: (client, subscription, whether the session did not have this filter before).
        self.session_subscribed = Notify[[ClientInfo, "Subscription", bool]]("session.subscribed")
        # A subscription was removed by UNSUBSCRIBE or an operator; not called for each filter of a session that ends.
        self.session_unsubscribed = Notify[[ClientInfo, "Subscription"]]("session.unsubscribed")
        self.session_resumed = Notify[[ClientInfo, "Session"]]("session.resumed")
        # A new connection with Clean Start ends a session: (its last client, session); replaces ``session_terminated``.
        self.session_discarded = Notify[[ClientInfo, "Session"]]("session.discarded")
        # A new connection takes a session over from a connected client: (the old client, session).
        self.session_takeovered = Notify[[ClientInfo, "Session"]]("session.takeovered")
        # A session has ended in any other way: (its last client, session, reason).
        self.session_terminated = Notify[[ClientInfo, "Session", str]]("session.terminated")

        # A message of any publisher, before it is routed: (message) -> message, None: not published.
        self.message_publish = PublishFold("message.publish")
        # A message was sent to a client. Notification only: all receivers share the message.
        self.message_delivered = Notify[[ClientInfo, Message]]("message.delivered")
        # A client acknowledged a message of QoS 1 (PUBACK) or 2 (PUBREC).
        self.message_acked = Notify[[ClientInfo, Message]]("message.acked")
        # A message has no subscriber: (message, reason), with reasons such as "no_subscribers".
        self.message_dropped = Notify[[Message, str]]("message.dropped")
        # A message will not reach one subscriber: (client, session, message, reason); reasons as in
        # session.protocols.
        self.delivery_dropped = Notify[[ClientInfo, "Session", Message, str]]("delivery.dropped")
        # A delivery is complete: (client, message, when it was published). QoS 1: PUBACK, QoS 2: PUBCOMP.
        self.delivery_completed = Notify[[ClientInfo, Message, float]]("delivery.completed")

    @property
    def points(self) -> dict[str, HookPoint[Any]]:
        """Return EMQX's name -> point, for callers that register by name."""
        found: list[HookPoint[Any]] = [getattr(self, attribute) for attribute in self.__slots__]
        return {point.name: point for point in found}

    @property
    def errors(self) -> int:
        """The number of callbacks that have failed."""
        return sum(point.errors for point in self.points.values())
