"""/top: the clients, topics and shared groups behind the node's figures."""

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.top_lists import (
    TopClientRecord,
    TopClientsQuery,
    TopGroupRecord,
    TopGroupsQuery,
    TopTopicRecord,
    TopTopicsQuery,
    TopTroublesQuery,
    TroubleRecord,
)

routes = Endpoints("Top lists")


@routes.get(
    "/top/clients",
    "The clients that send and receive most now",
    query=TopClientsQuery,
    reply=OfNodes(list[TopClientRecord]),
)
async def top_clients(call: Call) -> list[TopClientRecord] | Extra:
    return of_nodes(*await call.operations.top_lists.clients(call.query))


@routes.get(
    "/top/topics", "The topics with most messages now", query=TopTopicsQuery, reply=OfNodes(list[TopTopicRecord])
)
async def top_topics(call: Call) -> list[TopTopicRecord] | Extra:
    return of_nodes(*await call.operations.top_lists.topics(call.query))


@routes.get(
    "/top/refused",
    "The clients that were refused most in the last ten minutes",
    query=TopTroublesQuery,
    reply=OfNodes(list[TroubleRecord]),
)
async def top_refused(call: Call) -> list[TroubleRecord] | Extra:
    return of_nodes(*await call.operations.top_lists.refused(call.query))


@routes.get(
    "/top/dropped",
    "The clients that lost most messages in the last ten minutes",
    query=TopTroublesQuery,
    reply=OfNodes(list[TroubleRecord]),
)
async def top_dropped(call: Call) -> list[TroubleRecord] | Extra:
    return of_nodes(*await call.operations.top_lists.dropped(call.query))


@routes.get(
    "/top/groups",
    "The shared subscriptions with most messages now, or with most lost messages",
    query=TopGroupsQuery,
    reply=OfNodes(list[TopGroupRecord]),
)
async def top_groups(call: Call) -> list[TopGroupRecord] | Extra:
    return of_nodes(*await call.operations.top_lists.groups(call.query))
