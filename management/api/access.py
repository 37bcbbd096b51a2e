"""/access: why a client may publish, subscribe or log in, and the sources that decide."""

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.access import AccessExplained, AccessQuery, LoginBody, LoginExplained
from ..operations.access_sources import AccessSourceRecord

routes = Endpoints("Access")


class NodeAccessSources(msgspec.Struct):
    """The access sources of one node."""

    node: str
    sources: list[AccessSourceRecord]


@routes.get(
    "/access/explain", "Which rule decides whether a client may do this", query=AccessQuery, reply=AccessExplained
)
async def explain_access(call: Call) -> AccessExplained:
    return await call.operations.access.explain(call.query)


@routes.post("/access/try_login", "Test a login", body=LoginBody, reply=LoginExplained)
async def try_login(call: Call) -> LoginExplained:
    return await call.operations.access.try_login(call.body)


@routes.get("/access/sources", "Access sources of all nodes, with their status", reply=OfNodes(list[NodeAccessSources]))
async def list_access_sources(call: Call) -> list[NodeAccessSources] | Extra:
    return await call.on_all(NodeAccessSources, call.operations.access_sources.records)


@routes.get(
    "/nodes/{node}/access/sources", "Access sources of a node, with their status", reply=list[AccessSourceRecord]
)
async def list_node_access_sources(call: Call) -> list[AccessSourceRecord]:
    return await call.on_node(call.operations.access_sources.records)
