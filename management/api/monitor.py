"""/monitor and /live: the metrics of the node, past and present."""

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes, Raw
from ..operations.history import MonitorQuery, MonitorRecord
from ..operations.live import LiveQuery, LiveStream

routes = Endpoints("Monitor")


@routes.get(
    "/monitor", "Metrics of the last hour, two days or 30 days", query=MonitorQuery, reply=OfNodes(MonitorRecord)
)
async def get_monitor(call: Call) -> MonitorRecord | Extra:
    query: MonitorQuery = call.query
    return of_nodes(*await call.operations.history.monitor(query))


@routes.get(
    "/live", "Live metrics, events and messages", query=LiveQuery, reply=Raw({"text/event-stream": {"type": "string"}})
)
def get_live(call: Call) -> LiveStream:
    """Server-sent events until the caller disconnects; the data of each event is a JSON object."""
    query: LiveQuery = call.query
    return call.operations.live.open(query)
