"""/subscriptions and /nodes/{node}/subscriptions: who has subscribed to what."""

from typing import Any, Literal

import msgspec

from ..http.reading import PageQuery
from ..http.routes import Call, Routes
from ..operations.subscriptions import SubscriptionFilters

routes = Routes("Subscriptions")


class SubscriptionRecord(msgspec.Struct):
    """Specification, Subscription record."""

    node: str
    clientid: str
    topic: str
    qos: Literal[0, 1, 2]


class SubscriptionsQuery(PageQuery, kw_only=True):
    """Conditions of a listing of subscriptions; see ``SubscriptionFilters``."""

    clientid: str | None = None
    topic: str | None = None
    qos: Literal[0, 1, 2] | None = None
    share: str | None = None
    match_topic: str | None = msgspec.field(default=None, name="_match_topic")

    def filters(self) -> SubscriptionFilters:
        return SubscriptionFilters(**{key: getattr(self, key) for key in SubscriptionFilters.__struct_fields__})


@routes.get("/subscriptions", "Subscriptions, page by page", query=SubscriptionsQuery, reply=list[SubscriptionRecord])
@routes.get(
    "/nodes/{node}/subscriptions",
    "Subscriptions of a node, page by page",
    query=SubscriptionsQuery,
    reply=list[SubscriptionRecord],
)
def list_subscriptions(call: Call) -> Any:
    query: SubscriptionsQuery = call.query
    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.subscriptions.search(query.filters(), query.page, limit)


@routes.get("/subscriptions/{clientid}", "Subscriptions of a client", reply=list[SubscriptionRecord])
@routes.get("/nodes/{node}/subscriptions/{clientid}", "Subscriptions of a client", reply=list[SubscriptionRecord])
def lookup_subscriptions(call: Call) -> Any:
    return call.operations.subscriptions.lookup(call.path["clientid"])
