"""/metrics, /stats and Prometheus under the prefixes; /status and /metrics without a prefix."""

from typing import Literal

import msgspec
from aiohttp import web

from ..http.envelope import Extra
from ..http.routes import Call, Endpoints, OfNodes, Raw
from ..operations.prometheus import CONTENT_TYPE

routes = Endpoints("Metrics and stats")
root_routes = Endpoints("Metrics and stats")


class NodeMetrics(msgspec.Struct):
    """The counters of one node."""

    node: str
    metrics: dict[str, int]


class NodeStats(msgspec.Struct):
    """The gauges of one node."""

    node: str
    stats: dict[str, int]


class PrometheusQuery(msgspec.Struct):
    """``json``: EMQX's form; ``prometheus``: the form that Prometheus reads. ``node``: this node by default."""

    type: Literal["json", "prometheus"] = "json"
    node: str | None = None


@routes.get("/metrics", "Counters of all nodes", reply=OfNodes(list[NodeMetrics]))
async def list_all_metrics(call: Call) -> list[NodeMetrics] | Extra:
    return await call.on_all(NodeMetrics, call.operations.monitoring.metrics)


@routes.get("/nodes/{node}/metrics", "Counters of a node", reply=dict[str, int])
async def list_node_metrics(call: Call) -> dict[str, int]:
    return await call.on_node(call.operations.monitoring.metrics)


@routes.get("/stats", "Gauges of all nodes", reply=OfNodes(list[NodeStats]))
async def list_all_stats(call: Call) -> list[NodeStats] | Extra:
    return await call.on_all(NodeStats, call.operations.monitoring.stats)


@routes.get("/nodes/{node}/stats", "Gauges of a node", reply=dict[str, int])
async def list_node_stats(call: Call) -> dict[str, int]:
    return await call.on_node(call.operations.monitoring.stats)


@routes.get(
    "/emqx_prometheus",
    "Metrics for Prometheus",
    query=PrometheusQuery,
    reply=Raw({"application/json": {"type": "object"}, CONTENT_TYPE: {"type": "string"}}),
)
async def get_prometheus(call: Call) -> web.Response | dict[str, dict[str, int | float]]:
    calls, prometheus = call.operations.calls, call.operations.prometheus
    node = call.query.node or calls.name
    if call.query.type == "prometheus":
        return _page(await calls.on(node, prometheus.text))
    return await calls.on(node, prometheus.groups)


@root_routes.get("/metrics", "Metrics for Prometheus, as text", reply=Raw({CONTENT_TYPE: {"type": "string"}}))
def scrape(call: Call) -> web.Response:
    return _page(call.operations.prometheus.text())


def _page(text: str) -> web.Response:
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


@root_routes.get(
    "/status", "The status of the node, as text", reply=Raw({"text/plain": {"type": "string"}}, failures=("503",))
)
def get_status(call: Call) -> web.Response:
    """200 while the node accepts clients, otherwise 503. The answer has two lines; the second is as in EMQX, for
    programs that look for it."""
    monitoring = call.operations.monitoring
    state = "started" if monitoring.running else "stopping" if monitoring.stopping else "starting"
    if monitoring.running and monitoring.evacuating:
        state = "evacuating"
    serves = monitoring.running and not monitoring.evacuating
    word = "running" if serves else "not_running"
    text = f"Node {call.operations.nodes.name} is {state}\nemqx is {word}"
    return web.Response(text=text, status=200 if serves else 503)
