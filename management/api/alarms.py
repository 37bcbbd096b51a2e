"""/alarms: what an operator has to look at, and what is over."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes
from ..operations.alarms import AlarmRecord, Which

routes = Routes("Alarms")


class NodeAlarms(msgspec.Struct):
    """The alarms of one node."""

    node: str
    alarms: list[AlarmRecord]


class DeactivateBody(msgspec.Struct):
    """Which alarm of which node is over."""

    node: str
    name: str


def _of_all_nodes(call: Call, which: Which) -> Any:
    return [NodeAlarms(call.operations.nodes.name, call.operations.alarms.records(which))]


@routes.get("/alarms", "Alarms of all nodes", reply=list[NodeAlarms])
def list_all_alarms(call: Call) -> Any:
    return _of_all_nodes(call, "all")


@routes.get("/nodes/{node}/alarms", "Alarms of a node", reply=list[AlarmRecord])
def list_node_alarms(call: Call) -> Any:
    return call.operations.alarms.records()


@routes.get("/alarms/activated", "Active alarms of all nodes", reply=list[NodeAlarms])
def list_all_activated_alarms(call: Call) -> Any:
    return _of_all_nodes(call, "activated")


@routes.get("/alarms/present", "Active alarms, by their 4.0 and 4.1 name", reply=list[NodeAlarms])
def list_present_alarms(call: Call) -> Any:
    return _of_all_nodes(call, "activated")


@routes.get("/nodes/{node}/alarms/activated", "Active alarms of a node", reply=list[AlarmRecord])
def list_node_activated_alarms(call: Call) -> Any:
    return call.operations.alarms.records("activated")


@routes.get("/alarms/deactivated", "Alarms of all nodes that are over", reply=list[NodeAlarms])
def list_all_deactivated_alarms(call: Call) -> Any:
    return _of_all_nodes(call, "deactivated")


@routes.get("/alarms/history", "Alarms that are over, by their 4.0 and 4.1 name", reply=list[NodeAlarms])
def list_alarm_history(call: Call) -> Any:
    return _of_all_nodes(call, "deactivated")


@routes.get("/nodes/{node}/alarms/deactivated", "Alarms of a node that are over", reply=list[AlarmRecord])
def list_node_deactivated_alarms(call: Call) -> Any:
    return call.operations.alarms.records("deactivated")


@routes.post("/alarms/deactivated", "Say that an alarm is over", body=DeactivateBody)
def deactivate_alarm(call: Call) -> Any:
    body: DeactivateBody = call.body
    call.operations.nodes.check(body.node)
    call.operations.alarms.deactivate(body.name)


@routes.delete("/alarms/deactivated", "Forget the alarms of all nodes that are over")
def delete_all_deactivated_alarms(call: Call) -> Any:
    call.operations.alarms.forget()


@routes.delete("/nodes/{node}/alarms/deactivated", "Forget the alarms of a node that are over")
def delete_node_deactivated_alarms(call: Call) -> Any:
    call.operations.alarms.forget()
