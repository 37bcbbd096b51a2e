"""/listeners: where each node accepts connections."""

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.listeners import ListenerRecord

routes = Endpoints("Listeners")


class NodeListeners(msgspec.Struct):
    """The listeners of one node."""

    node: str
    listeners: list[ListenerRecord]


@routes.get("/listeners", "Listeners of all nodes", reply=OfNodes(list[NodeListeners]))
async def list_listeners(call: Call) -> list[NodeListeners] | Extra:
    return await call.on_all(NodeListeners, call.operations.listeners.records)


@routes.get("/nodes/{node}/listeners", "Listeners of a node", reply=list[ListenerRecord])
async def list_node_listeners(call: Call) -> list[ListenerRecord]:
    return await call.on_node(call.operations.listeners.records)


@routes.put("/listeners/{identifier}/restart", "Restart a listener on all nodes")
async def restart_listener(call: Call) -> None:
    await call.operations.listeners.restart_everywhere(call.path["identifier"])


@routes.put("/nodes/{node}/listeners/{identifier}/restart", "Restart a listener on a node")
async def restart_node_listener(call: Call) -> None:
    return await call.on_node(call.operations.listeners.restart, call.path["identifier"])


@routes.put("/listeners/{identifier}/stop", "Close a listener on all nodes until it is restarted; clients stay")
async def stop_listener(call: Call) -> None:
    await call.operations.listeners.stop_everywhere(call.path["identifier"])


@routes.put(
    "/nodes/{node}/listeners/{identifier}/stop", "Close a listener on a node until it is restarted; clients stay"
)
async def stop_node_listener(call: Call) -> None:
    return await call.on_node(call.operations.listeners.stop, call.path["identifier"])
