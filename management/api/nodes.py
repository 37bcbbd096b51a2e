"""/brokers, /nodes and /cluster_links: version and resource usage of each node, and the links between them."""

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.membership import LinkRecord
from ..operations.nodes import BrokerRecord, NodeRecord

routes = Endpoints("Nodes")


@routes.get("/brokers", "Version and uptime of each node", reply=list[BrokerRecord])
async def list_brokers(call: Call) -> list[BrokerRecord]:
    return await call.operations.nodes.brokers()


@routes.get("/brokers/{node}", "Version and uptime of a node", reply=BrokerRecord)
async def get_broker(call: Call) -> BrokerRecord:
    return await call.on_node(call.operations.nodes.broker)


@routes.get("/nodes", "Resource usage of each node", reply=list[NodeRecord])
async def list_nodes(call: Call) -> list[NodeRecord]:
    return await call.operations.nodes.statuses()


@routes.get("/nodes/{node}", "Resource usage of a node", reply=NodeRecord)
async def get_node(call: Call) -> NodeRecord:
    return await call.on_node(call.operations.nodes.status, memory_text=False)


@routes.get("/cluster_links", "Messages between the nodes: rate, and what waits", reply=OfNodes(list[LinkRecord]))
async def list_links(call: Call) -> list[LinkRecord] | Extra:
    return of_nodes(*await call.operations.membership.links())
