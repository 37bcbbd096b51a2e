"""/brokers and /nodes: what the node is and what it uses."""

from typing import Any

from ..http.routes import Call, Routes
from ..operations.nodes import BrokerRecord, NodeRecord

routes = Routes("Nodes")


@routes.get("/brokers", "What each node is", reply=list[BrokerRecord])
def list_brokers(call: Call) -> Any:
    return [call.operations.nodes.broker()]


@routes.get("/brokers/{node}", "What a node is", reply=BrokerRecord)
def get_broker(call: Call) -> Any:
    return call.operations.nodes.broker()


@routes.get("/nodes", "What each node uses", reply=list[NodeRecord])
def list_nodes(call: Call) -> Any:
    return [call.operations.nodes.status(memory_text=True)]


@routes.get("/nodes/{node}", "What a node uses", reply=NodeRecord)
def get_node(call: Call) -> Any:
    return call.operations.nodes.status(memory_text=False)
