"""/routes: which topic filters have subscribers."""

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.listing import PageQuery
from ..operations.node_listing import Page
from ..operations.routes import RouteRecord

routes = Endpoints("Routes")


@routes.get("/routes", "Routes, page by page", query=PageQuery, reply=list[RouteRecord])
async def list_routes(call: Call) -> Page[RouteRecord]:
    return await call.operations.routes.search(call.query, call.operations.settings.max_row_limit)


@routes.get("/routes/{topic}", "The routes of a topic filter", reply=OfNodes(list[RouteRecord]))
async def lookup_routes(call: Call) -> list[RouteRecord] | Extra:
    return of_nodes(*await call.operations.routes.find(call.path["topic"]))
