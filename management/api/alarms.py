"""/alarms: conditions that require an operator's attention, and those that have ended."""

import msgspec

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.alarms import AlarmRecord, Which

routes = Endpoints("Alarms")


class NodeAlarms(msgspec.Struct):
    """The alarms of one node."""

    node: str
    alarms: list[AlarmRecord]


class DeactivateBody(msgspec.Struct):
    """The alarm to deactivate, and its node."""

    node: str
    name: str


async def _of_all_nodes(call: Call, which: Which) -> list[NodeAlarms] | Extra:
    return await call.on_all(NodeAlarms, call.operations.alarms.records, which)


async def _of_node(call: Call, which: Which) -> list[AlarmRecord]:
    return await call.on_node(call.operations.alarms.records, which)


@routes.get("/alarms", "Alarms of all nodes", reply=OfNodes(list[NodeAlarms]))
async def list_all_alarms(call: Call) -> list[NodeAlarms] | Extra:
    return await _of_all_nodes(call, "all")


@routes.get("/nodes/{node}/alarms", "Alarms of a node", reply=list[AlarmRecord])
async def list_node_alarms(call: Call) -> list[AlarmRecord]:
    return await _of_node(call, "all")


@routes.get("/alarms/activated", "Active alarms of all nodes", reply=OfNodes(list[NodeAlarms]))
async def list_all_activated_alarms(call: Call) -> list[NodeAlarms] | Extra:
    return await _of_all_nodes(call, "activated")


@routes.get("/alarms/present", "Active alarms, by their 4.0 and 4.1 name", reply=OfNodes(list[NodeAlarms]))
async def list_present_alarms(call: Call) -> list[NodeAlarms] | Extra:
    return await _of_all_nodes(call, "activated")


@routes.get("/nodes/{node}/alarms/activated", "Active alarms of a node", reply=list[AlarmRecord])
async def list_node_activated_alarms(call: Call) -> list[AlarmRecord]:
    return await _of_node(call, "activated")


@routes.get("/alarms/deactivated", "Deactivated alarms of all nodes", reply=OfNodes(list[NodeAlarms]))
async def list_all_deactivated_alarms(call: Call) -> list[NodeAlarms] | Extra:
    return await _of_all_nodes(call, "deactivated")


@routes.get("/alarms/history", "Deactivated alarms, by their 4.0 and 4.1 name", reply=OfNodes(list[NodeAlarms]))
async def list_alarm_history(call: Call) -> list[NodeAlarms] | Extra:
    return await _of_all_nodes(call, "deactivated")


@routes.get("/nodes/{node}/alarms/deactivated", "Deactivated alarms of a node", reply=list[AlarmRecord])
async def list_node_deactivated_alarms(call: Call) -> list[AlarmRecord]:
    return await _of_node(call, "deactivated")


@routes.post("/alarms/deactivated", "Deactivate an alarm", body=DeactivateBody)
async def deactivate_alarm(call: Call) -> None:
    body: DeactivateBody = call.body
    await call.operations.calls.on(body.node, call.operations.alarms.deactivate, body.name)


@routes.delete("/alarms/deactivated", "Delete the deactivated alarms of all nodes")
async def delete_all_deactivated_alarms(call: Call) -> None:
    await call.operations.alarms.forget_everywhere()


@routes.delete("/nodes/{node}/alarms/deactivated", "Delete the deactivated alarms of a node")
async def delete_node_deactivated_alarms(call: Call) -> None:
    await call.on_node(call.operations.alarms.forget)
