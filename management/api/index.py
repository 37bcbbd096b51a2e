"""All endpoints, in the order of the specification, and what the node tells of them: a list and an OpenAPI document."""

from typing import Any, Final

import msgspec
from aiohttp import web

from ..http.envelope import json_response
from ..http.openapi import document
from ..http.routes import Call, Raw, Route, Routes
from . import (
    acl,
    actions,
    alarms,
    apps,
    auth_mnesia,
    auth_user,
    banned,
    broker_acl,
    clients,
    data,
    explain,
    listeners,
    monitoring,
    nodes,
    pubsub,
    resource_types,
    resources,
    retained,
    rule_events,
    rules,
    slow_subscriptions,
    subscriptions,
    topic_metrics,
    tracing,
)
from .routes import routes as topic_routes

routes = Routes("Index")


class Endpoint(msgspec.Struct):
    """``path`` with its variables as ``:name``."""

    name: str
    method: str
    path: str
    descr: str


ALL: Final[list[Routes]] = [
    routes,
    nodes.routes,
    auth_user.routes,
    clients.routes,
    subscriptions.routes,
    topic_routes,
    broker_acl.routes,
    pubsub.routes,
    listeners.routes,
    monitoring.routes,
    rules.routes,
    rule_events.routes,
    actions.routes,
    resource_types.routes,
    resources.routes,
    data.routes,
    retained.routes,
    alarms.routes,
    topic_metrics.routes,
    explain.routes,
    tracing.routes,
    slow_subscriptions.routes,
    auth_mnesia.routes,
    acl.routes,
    apps.routes,
    banned.routes,
]


@routes.get("/", "List of the endpoints", reply=list[Endpoint])
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


@routes.get("/openapi.json", "This document", reply=Raw({"application/json": {"type": "object"}}))
async def get_openapi(call: Call) -> web.Response:
    settings, version = call.operations.settings, call.operations.nodes.broker().version
    return json_response(await document(all_routes(), monitoring.root_routes.all, settings, version))


def all_routes() -> list[Route]:
    return [route for resource in ALL for route in resource.all]
