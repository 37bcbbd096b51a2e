"""/brokers and /nodes: what the node is and what it uses."""

from typing import Any

import msgspec

from ..http.routes import Call, Routes

routes = Routes("Nodes")


class BrokerRecord(msgspec.Struct):
    """Specification, Broker node record."""

    node: str
    node_status: str
    otp_release: str
    sysdescr: str
    uptime: str
    version: str
    datetime: str


class NodeRecord(msgspec.Struct):
    """Specification, Node status record."""

    node: str
    node_status: str
    otp_release: str
    version: str
    uptime: str
    connections: int
    live_connections: int
    load1: str
    load5: str
    load15: str
    max_fds: int
    memory_total: str | int
    memory_used: str | int
    process_available: int
    process_used: int


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
