"""/subscribers: the clients that receive a message to a topic."""

from ..http.routes import Call, Endpoints
from ..operations.node_listing import Page
from ..operations.subscribers import SubscriberRecord, SubscribersQuery

routes = Endpoints("Subscriptions")


@routes.get("/subscribers", "The subscribers of a topic", query=SubscribersQuery, reply=list[SubscriberRecord])
async def list_subscribers(call: Call) -> Page[SubscriberRecord]:
    return await call.operations.subscribers.search(call.query, call.operations.settings.max_row_limit)
