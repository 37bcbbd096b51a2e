"""/routes: which topic filters have subscribers."""

from ..http.routes import Call, Routes
from ..operations.listing import Listing, PageQuery
from ..operations.routes import RouteRecord

routes = Routes("Routes")


@routes.get("/routes", "Routes, page by page", query=PageQuery, reply=list[RouteRecord])
def list_routes(call: Call) -> Listing[RouteRecord]:
    query: PageQuery = call.query
    return call.operations.routes.listing(query.page, query.rows(call.operations.settings.max_row_limit))


@routes.get("/routes/{topic}", "The routes of a topic filter", reply=list[RouteRecord])
def lookup_routes(call: Call) -> list[RouteRecord]:
    return call.operations.routes.lookup(call.path["topic"])
