"""/clients/{clientid}/explain, /refused_clients and /explain: why something happened, and which clients would receive a
message."""

from typing import Any

import msgspec

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
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
    "/explain", "The clients that would receive a message to a topic", query=TopicQuery, reply=OfNodes(dict[str, Any])
)
async def explain_topic(call: Call) -> dict[str, Any] | Extra:
    return of_nodes(*await call.operations.explain.topic(call.query.topic))
