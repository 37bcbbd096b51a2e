"""/delayed: messages to ``$delayed/...`` that wait to be published."""

from ..http.routes import Call, Endpoints
from ..operations.delayed import DelayedContent, DelayedQuery, DelayedRecord
from ..operations.node_listing import SortedListing

routes = Endpoints("Delayed messages")


@routes.get("/delayed", "Delayed messages of all nodes", query=DelayedQuery, reply=list[DelayedRecord])
async def list_delayed(call: Call) -> SortedListing[DelayedRecord]:
    return await call.operations.delayed.listing(call.query, call.operations.settings.max_row_limit)


@routes.get("/nodes/{node}/delayed/{id}", "A delayed message with its payload", reply=DelayedContent)
async def get_delayed(call: Call) -> DelayedContent:
    return await call.on_node(call.operations.delayed.get_here, call.path["id"])


@routes.delete("/nodes/{node}/delayed/{id}", "Delete a delayed message")
async def delete_delayed(call: Call) -> None:
    _: bool = await call.on_node(call.operations.delayed.delete_here, call.path["id"])
