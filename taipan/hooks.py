"""Hooks: the hook points of a node for an embedding program, each with the types of its callbacks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from .broker.core.hooks import STOP, AuthResult, HookPoint
from .broker.core.hooks import Hooks as Points
from .broker.mqtt import constants as c
from .broker.mqtt.message import Message as BrokerMessage
from .broker.mqtt.packets import Properties as WireProperties
from .broker.mqtt.packets import TopicFilter
from .broker.mqtt.topics import parse_filter
from .message import Client, Message, from_wire, to_wire

if TYPE_CHECKING:
    from .broker.session.client_info import ClientInfo
    from .broker.session.session import Session
    from .broker.session.subscription import Subscription

F = TypeVar("F", bound=Callable[..., Any])

Action = Literal["publish", "subscribe"]


@dataclass(frozen=True, slots=True)
class Filter:
    """One entry of a SUBSCRIBE: a Topic Filter and its options."""

    topic: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class Hook(Generic[F]):
    """One hook point. Call it with a function, or use it as a decorator.

    The node calls the callbacks on its event loop, the highest ``priority`` first. They must not wait: a callback is a
    plain function. If a callback raises an exception, the node logs it (``hook_failed``) and counts it in ``errors``.
    """

    def __init__(self, point: HookPoint[Any], adapt: Callable[[F], Callable[..., Any]]) -> None:
        self._point = point
        self._adapt = adapt
        self._added: list[tuple[F, Callable[..., Any]]] = []

    @overload
    def __call__(self, callback: F, *, priority: int = 0) -> F: ...

    @overload
    def __call__(self, *, priority: int) -> Callable[[F], F]: ...

    def __call__(self, callback: F | None = None, *, priority: int = 0) -> F | Callable[[F], F]:
        if callback is None:
            return lambda given: self(given, priority=priority)
        if is_async(callback):
            raise TypeError(f"{self._point.name}: a hook cannot wait; use a plain function")
        if not callable(callback):
            raise TypeError(f"{self._point.name}: expected a function, got {type(callback).__name__}")
        adapted = functools.wraps(callback)(self._adapt(callback))
        self._added.append((callback, adapted))
        self._point.add(adapted, priority)
        return callback

    def remove(self, callback: F) -> None:
        """Remove the first registration of ``callback``. Raises ValueError if it has none."""
        for index, (given, adapted) in enumerate(self._added):
            if given is callback:
                del self._added[index]
                self._point.remove(adapted)
                return
        raise ValueError(f"{self._point.name}: no such callback")

    @property
    def errors(self) -> int:
        """The number of failed calls of its callbacks."""
        return self._point.errors


def is_async(callback: object) -> bool:
    """Return whether a call returns a coroutine."""
    call = getattr(callback, "__call__", None)  # noqa: B004 - an object may have an async __call__
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call)


Told = Callable[[Client], object]
ToldReason = Callable[[Client, str], object]
ToldMessage = Callable[[Client, Message], object]


class Hooks:
    """The hook points of a node, with EMQX's names. Each is a ``Hook``.

    *Observe*: the return value of the callback is ignored. *Change*: the callback returns the value that replaces the
    old one. *Veto*: the callback can refuse. If a callback that can veto fails, the node refuses the client, topic or
    message.
    """

    def __init__(self, points: Points) -> None:
        # A CONNECT arrived; nothing has been checked yet. Observe.
        self.on_client_connect: Hook[Told] = Hook(
            points.client_connect, lambda f: lambda client, properties: f(Client.of(client))
        )
        # The node sends a CONNACK: (client, Reason Code of 5.0, properties) -> properties. Change.
        self.on_client_connack: Hook[Callable[[Client, int, dict[str, Any]], dict[str, Any]]] = Hook(
            points.client_connack, _connack
        )
        # A client was accepted. Observe.
        self.on_client_connected: Hook[Told] = Hook(points.client_connected, _client)
        # The connection of an accepted client ended: (client, reason). Observe.
        self.on_client_disconnected: Hook[ToldReason] = Hook(
            points.client_disconnected, lambda f: lambda client, reason: f(Client.of(client), reason)
        )
        # The final decision on the identity of a client: (client, password, accepted so far) -> accepted. Veto.
        self.on_client_authenticate: Hook[Callable[[Client, bytes | None, bool], bool]] = Hook(
            points.client_authenticate, functools.partial(_authenticate, points)
        )
        # The final decision on one topic: (client, action, topic, allowed so far) -> allowed. Veto.
        self.on_client_check_acl: Hook[Callable[[Client, Action, str, bool], bool]] = Hook(
            points.client_check_acl, functools.partial(_check_acl, points)
        )
        # The node has decided about a topic: (client, action, topic, allowed, cached). Observe.
        self.on_client_check_acl_complete: Hook[Callable[[Client, Action, str, bool, bool], object]] = Hook(
            points.client_check_acl_complete, lambda f: lambda client, *rest: f(Client.of(client), *rest)
        )
        # A SUBSCRIBE arrived and has no effect yet: (client, filters) -> as many filters. Change.
        self.on_client_subscribe: Hook[Callable[[Client, list[Filter]], list[Filter]]] = Hook(
            points.client_subscribe, _subscribe
        )
        # An UNSUBSCRIBE arrived and has no effect yet: (client, Topic Filters) -> as many. Change.
        self.on_client_unsubscribe: Hook[Callable[[Client, list[str]], list[str]]] = Hook(
            points.client_unsubscribe, _unsubscribe
        )
        # Events of sessions: (client), or (client, reason) when a session ends. Observe.
        self.on_session_created: Hook[Told] = Hook(points.session_created, _client)
        self.on_session_resumed: Hook[Told] = Hook(points.session_resumed, _client)
        self.on_session_discarded: Hook[Told] = Hook(points.session_discarded, _client)
        self.on_session_takeovered: Hook[Told] = Hook(points.session_takeovered, _client)
        self.on_session_terminated: Hook[ToldReason] = Hook(
            points.session_terminated,
            lambda f: lambda client, session, reason: f(Client.of(client, session.client_id), reason),
        )
        # A subscription became active: (client, filter, is_new). Observe.
        self.on_session_subscribed: Hook[Callable[[Client, Filter, bool], object]] = Hook(
            points.session_subscribed,
            lambda f: lambda client, made, new: f(Client.of(client, made.session.client_id), _filter(made), new),
        )
        # A subscription ended, by UNSUBSCRIBE or an operator: (client, filter). Observe.
        self.on_session_unsubscribed: Hook[Callable[[Client, Filter], object]] = Hook(
            points.session_unsubscribed,
            lambda f: lambda client, made: f(Client.of(client, made.session.client_id), _filter(made)),
        )
        # A message from any publisher, before routing -> the message to route, or None for none. Change and veto.
        self.on_message_publish: Hook[Callable[[Message], Message | None]] = Hook(
            points.message_publish, functools.partial(_publish, points)
        )
        # A message was sent to a client: (client, message). Observe.
        self.on_message_delivered: Hook[ToldMessage] = Hook(points.message_delivered, _client_message)
        # A client acknowledged a QoS 1 (PUBACK) or 2 (PUBREC) message: (client, message). Observe.
        self.on_message_acked: Hook[ToldMessage] = Hook(points.message_acked, _client_message)
        # A message has no subscriber: (message, reason). Observe.
        self.on_message_dropped: Hook[Callable[[Message, str], object]] = Hook(
            points.message_dropped, lambda f: lambda message, reason: f(Message.of(message), reason)
        )
        # One subscriber does not receive a message: (client, message, reason). Observe.
        self.on_delivery_dropped: Hook[Callable[[Client, Message, str], object]] = Hook(
            points.delivery_dropped,
            lambda f: (
                lambda client, session, message, reason: f(
                    Client.of(client, session.client_id), Message.of(message), reason
                )
            ),
        )
        # A delivery is complete: (client, message, published_at). Observe.
        self.on_delivery_completed: Hook[Callable[[Client, Message, float], object]] = Hook(
            points.delivery_completed,
            lambda f: lambda client, message, since: f(Client.of(client), Message.of(message), since),
        )


def _client(callback: Callable[[Client], object]) -> Callable[..., object]:
    def told(client: ClientInfo | None, session: Session | None = None) -> None:
        callback(Client.of(client, "" if session is None else session.client_id))

    return told


def _client_message(callback: ToldMessage) -> Callable[..., object]:
    def told(client: ClientInfo, message: BrokerMessage) -> None:
        callback(Client.of(client), Message.of(message))

    return told


def _filter(made: Subscription) -> Filter:
    return Filter(made.filter, made.qos, made.no_local, made.retain_as_published, made.retain_handling)


def _boolean(answer: object) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"expected True or False, got {answer!r}")
    return answer


def _authenticate(points: Points, callback: Callable[[Client, bytes | None, bool], bool]) -> Callable[..., Any]:
    def decide(so_far: AuthResult, client: ClientInfo, password: bytes | None) -> AuthResult | STOP[AuthResult]:
        try:
            return "allow" if _boolean(callback(Client.of(client), password, so_far == "allow")) else "deny"
        except Exception as error:
            points.client_authenticate.failed(callback, error)
            return STOP("deny")

    return decide


def _check_acl(points: Points, callback: Callable[[Client, Action, str, bool], bool]) -> Callable[..., Any]:
    def decide(allowed: bool, client: ClientInfo, action: Action, topic: str) -> bool | STOP[bool]:
        try:
            return _boolean(callback(Client.of(client), action, topic, allowed))
        except Exception as error:
            points.client_check_acl.failed(callback, error)
            return STOP(False)

    return decide


def _publish(points: Points, callback: Callable[[Message], Message | None]) -> Callable[..., Any]:
    def change(message: BrokerMessage) -> BrokerMessage | STOP[BrokerMessage | None] | None:
        given = Message.of(message)
        try:
            answer: object = callback(given)
            if answer is None:
                return None
            if answer is given:
                return message
            if not isinstance(answer, Message):
                raise TypeError(f"expected a Message or None, got {answer!r}")
            made = answer.publishable()
        except Exception as error:
            points.message_publish.failed(callback, error)
            return STOP(None)
        made.publisher, made.timestamp = message.publisher, message.timestamp
        made.hops = message.hops
        return made

    return change


def _connack(callback: Callable[[Client, int, dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    def change(properties: WireProperties, client: ClientInfo, code: int) -> WireProperties:
        return to_wire(callback(Client.of(client), code, from_wire(properties)), c.CONNACK)

    return change


def _subscribe(callback: Callable[[Client, list[Filter]], list[Filter]]) -> Callable[..., Any]:
    def change(filters: list[TopicFilter], client: ClientInfo, properties: WireProperties) -> list[TopicFilter]:
        given = [
            Filter(each.filter, each.qos, each.no_local, each.retain_as_published, each.retain_handling)
            for each in filters
        ]
        answer: object = callback(Client.of(client), given)
        if not isinstance(answer, list) or len(answer) != len(given):
            raise TypeError(f"expected as many filters as were passed in, which is {len(given)}")
        return [_topic_filter(each) for each in answer]

    return change


def _topic_filter(filter: object) -> TopicFilter:
    if not isinstance(filter, Filter):
        raise TypeError(f"expected a Filter, got {filter!r}")
    if filter.qos not in (0, 1, 2) or filter.retain_handling not in (0, 1, 2):
        raise ValueError(f"not valid subscription options: {filter}")
    return TopicFilter(filter.topic, filter.qos, filter.no_local, filter.retain_as_published, filter.retain_handling)


def _unsubscribe(callback: Callable[[Client, list[str]], list[str]]) -> Callable[..., Any]:
    def change(filters: list[str], client: ClientInfo, properties: WireProperties) -> list[str]:
        answer: object = callback(Client.of(client), list(filters))
        if not isinstance(answer, list) or len(answer) != len(filters):
            raise TypeError(f"expected as many filters as were passed in, which is {len(filters)}")
        for each in answer:
            parse_filter(each)
        return answer

    return change
