"""The actions ``lookup_sub_to_...``: a client that connects is subscribed to the filters that a database has for it.

The row of a client that has connected waits in the buffer of the resource, as rows that are written do: while the
database is away, clients wait for their subscriptions, and nothing else does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..delivery.buffer import DELIVERED, DeliveryOutcome
from ..delivery.buffered_row import BufferedRow
from ..event import Event
from ..events.kinds import CLIENT_CONNECTED
from ..params import Text, resource_param
from ..resources.resource import ConnectedClients
from ..resources.sink import Sink, SinkRequest
from .action import ActionContext, ActionFailed, ActionType, Row
from .sink_action import to_sink

LOOKUP: Final = "\0lookup_sub"
"""The group of the requests. No other group contains a null character."""
MAX_FOUND: Final = 10_000
"""How many subscriptions of a client are read at most."""

Find = Callable[[str], Awaitable[list[tuple[object, object]]]]
"""Returns the filters of a client ID with their QoS, at most ``MAX_FOUND`` and one more. Raises OSError or
ResourceError."""


class LookupSubscriptions:
    """Requests the subscriptions of the event's client."""

    def __init__(self, context: ActionContext) -> None:
        """It has no parameters besides the resource."""

    def request(self, row: Row, event: Event, sink: Sink) -> SinkRequest:
        client = event.client
        if event.kind is not CLIENT_CONNECTED or client is None:
            raise ActionFailed(f'subscriptions are looked up for clients that connect: SELECT * FROM "{_EVENT}"')
        return SinkRequest(client.client_id.encode(), client.client_id, LOOKUP, linger=0.0, volatile=True)


_EVENT: Final = CLIENT_CONNECTED.topic


async def subscribed(row: BufferedRow, clients: ConnectedClients, find: Find) -> DeliveryOutcome:
    """Subscribe the client of a request to what ``find`` returns for it. A client that has disconnected needs nothing:
    its subscriptions are looked up when it connects again. Raises what ``find`` raises."""
    client_id = row.request.decode()
    if not clients.connected(client_id):
        return DELIVERED
    found = await find(client_id)
    refused = await clients.subscribe(client_id, found[:MAX_FOUND])
    if refused:
        topic, outcome = refused[0]
        why = outcome.detail or f"setting {outcome.setting}"
        return DeliveryOutcome(
            f"the client was not subscribed to {len(refused)} of {len(found)} filters, such as {topic[:64]!r}: {why}"
        )
    if len(found) > MAX_FOUND:
        return DeliveryOutcome(f"the client has more than {MAX_FOUND} subscriptions; it was subscribed to the first")
    return DELIVERED


def lookup_action(name: str, title: str, sink: type[Any], resources: tuple[str, ...], order: int) -> ActionType:
    """Return the action for a database."""
    return ActionType(
        name,
        Text(f"Subscriptions from {title}", f"从 {title} 获取订阅关系"),
        Text(
            f"Subscribe each client that connects to the topics that {title} has for it",
            f"客户端上线时，按 {title} 中的订阅关系为其代理订阅",
        ),
        to_sink(sink, LookupSubscriptions),
        (resource_param(" or ".join([", ".join(resources[:-1]), resources[-1]]) if resources[1:] else resources[0]),),
        resource_types=resources,
        events="client.connected",
        category="offline_msgs",
        order=order,
    )
