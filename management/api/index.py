"""All endpoints, in the order of the specification, and the list of them that ``GET /api/v4`` gives."""

from typing import Any, Final

from ..http.routes import Call, Route, Routes
from . import explain, nodes

routes = Routes("Index")

ALL: Final[list[Routes]] = [
    routes,
    nodes.routes,
    explain.routes,
]


@routes.get("/", "List of the endpoints")
def list_endpoints(call: Call) -> Any:
    return [
        {
            "name": route.name,
            "method": route.method,
            "path": "".join(f"/:{each[1:-1]}" if each.startswith("{") else f"/{each}" for each in route.segments),
            "descr": route.descr,
        }
        for route in all_routes()
        if route.segments
    ]


def all_routes() -> list[Route]:
    return [route for resource in ALL for route in resource.all]
