"""/subscriptions and /nodes/{node}/subscriptions: the subscriptions of all clients."""

from ..http.routes import Call, Endpoints
from ..operations.node_listing import Page
from ..operations.subscriptions import SubscriptionRecord, SubscriptionsQuery

routes = Endpoints("Subscriptions")


@routes.get("/subscriptions", "Subscriptions, page by page", query=SubscriptionsQuery, reply=list[SubscriptionRecord])
@routes.get(
    "/nodes/{node}/subscriptions",
    "Subscriptions of a node, page by page",
    query=SubscriptionsQuery,
    reply=list[SubscriptionRecord],
)
async def list_subscriptions(call: Call) -> Page[SubscriptionRecord]:
    return await call.operations.subscriptions.search(
        call.query, call.operations.settings.max_row_limit, call.path.get("node")
    )


@routes.get("/subscriptions/{clientid}", "Subscriptions of a client", reply=list[SubscriptionRecord])
@routes.get("/nodes/{node}/subscriptions/{clientid}", "Subscriptions of a client", reply=list[SubscriptionRecord])
async def lookup_subscriptions(call: Call) -> Page[SubscriptionRecord]:
    return await call.operations.subscriptions.of_client(call.path["clientid"], call.path.get("node"))
