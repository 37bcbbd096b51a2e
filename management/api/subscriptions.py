"""/subscriptions and /nodes/{node}/subscriptions: who has subscribed to what."""

from ..http.routes import Call, Routes
from ..operations.listing import Listing
from ..operations.subscriptions import SubscriptionRecord, SubscriptionsQuery

routes = Routes("Subscriptions")


@routes.get("/subscriptions", "Subscriptions, page by page", query=SubscriptionsQuery, reply=list[SubscriptionRecord])
@routes.get(
    "/nodes/{node}/subscriptions",
    "Subscriptions of a node, page by page",
    query=SubscriptionsQuery,
    reply=list[SubscriptionRecord],
)
def list_subscriptions(call: Call) -> Listing[SubscriptionRecord]:
    return call.operations.subscriptions.search(call.query, call.operations.settings.max_row_limit)


@routes.get("/subscriptions/{clientid}", "Subscriptions of a client", reply=list[SubscriptionRecord])
@routes.get("/nodes/{node}/subscriptions/{clientid}", "Subscriptions of a client", reply=list[SubscriptionRecord])
def lookup_subscriptions(call: Call) -> Listing[SubscriptionRecord]:
    return call.operations.subscriptions.lookup(call.path["clientid"])
