"""/clients/{clientid}/explain, /refused_clients, /explain and /explain/delivery: why something happened, which clients
would receive a message, and why one does not."""

from typing import Any

import msgspec

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.delivery_check import DeliveryExplained, DeliveryQuery
from ..operations.explain import RefusedRecord

routes = Endpoints("Explain")


class TopicQuery(msgspec.Struct):
    """The topic that the question is about."""

    topic: str


@routes.get(
    "/clients/{clientid}/explain",
    "Recent events of a client, with reasons and settings",
    reply=OfNodes(dict[str, Any]),
)
async def explain_client(call: Call) -> dict[str, Any] | Extra:
    return of_nodes(*await call.operations.explain.client(call.path["clientid"]))


@routes.get(
    "/refused_clients",
    "List the clients that were refused most recently at CONNECT",
    reply=OfNodes(list[RefusedRecord]),
)
async def list_refused(call: Call) -> list[RefusedRecord] | Extra:
    return of_nodes(*await call.operations.explain.refused())


@routes.get(
    "/explain/delivery",
    "Why a client does or does not receive the messages of a topic",
    query=DeliveryQuery,
    reply=DeliveryExplained,
)
async def explain_delivery(call: Call) -> DeliveryExplained:
    return await call.operations.delivery_checks.explain(call.query)


@routes.get(
    "/explain", "The clients that would receive a message to a topic", query=TopicQuery, reply=OfNodes(dict[str, Any])
)
async def explain_topic(call: Call) -> dict[str, Any] | Extra:
    return of_nodes(*await call.operations.explain.topic(call.query.topic))
