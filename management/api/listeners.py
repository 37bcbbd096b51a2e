"""/listeners: where the node accepts connections."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes
from ..operations.listeners import ListenerRecord

routes = Routes("Listeners")


class NodeListeners(msgspec.Struct):
    """The listeners of one node."""

    node: str
    listeners: list[ListenerRecord]


@routes.get("/listeners", "Listeners of all nodes", reply=list[NodeListeners])
def list_listeners(call: Call) -> Any:
    return [NodeListeners(call.operations.nodes.name, call.operations.listeners.records())]


@routes.get("/nodes/{node}/listeners", "Listeners of a node", reply=list[ListenerRecord])
def list_node_listeners(call: Call) -> Any:
    return call.operations.listeners.records()


@routes.put("/listeners/{identifier}/restart", "Restart a listener on all nodes")
async def restart_listener(call: Call) -> Any:
    await call.operations.listeners.restart(call.path["identifier"])


@routes.put("/nodes/{node}/listeners/{identifier}/restart", "Restart a listener on a node")
async def restart_node_listener(call: Call) -> Any:
    await call.operations.listeners.restart(call.path["identifier"])
