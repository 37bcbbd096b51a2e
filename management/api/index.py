"""All endpoints, in the order of the specification, and their description by the node: a list and an OpenAPI
document."""

from typing import Final

import msgspec
from aiohttp import web

from ..ctl import endpoint as control
from ..http.envelope import json_response
from ..http.openapi import document
from ..http.routes import Call, Endpoint, Endpoints, Raw
from . import (
    access,
    acl,
    actions,
    alarm_targets,
    alarms,
    annotations,
    apps,
    audit,
    auth_mnesia,
    auth_user,
    banned,
    broker_acl,
    clients,
    configuration,
    dashboard_openid,
    dashboard_users,
    data,
    delayed,
    explain,
    listeners,
    log_view,
    lwm2m,
    modules,
    monitor,
    monitoring,
    nodes,
    pubsub,
    reasons,
    resource_types,
    resources,
    retained,
    rule_events,
    rules,
    schemas,
    shared_groups,
    slow_subscriptions,
    subscribers,
    subscriptions,
    top,
    topic_metrics,
    topic_tree,
    tracing,
)
from .routes import routes as topic_routes

routes = Endpoints("Index")


class EndpointRecord(msgspec.Struct):
    """``path`` contains its variables as ``:name``."""

    name: str
    method: str
    path: str
    descr: str


ALL: Final[list[Endpoints]] = [
    routes,
    nodes.routes,
    auth_user.routes,
    clients.routes,
    subscriptions.routes,
    subscribers.routes,
    shared_groups.routes,
    topic_routes,
    broker_acl.routes,
    pubsub.routes,
    listeners.routes,
    lwm2m.routes,
    monitoring.routes,
    monitor.routes,
    rules.routes,
    rule_events.routes,
    actions.routes,
    resource_types.routes,
    resources.routes,
    schemas.routes,
    data.routes,
    retained.routes,
    delayed.routes,
    alarms.routes,
    alarm_targets.routes,
    audit.routes,
    annotations.routes,
    topic_metrics.routes,
    explain.routes,
    top.routes,
    reasons.routes,
    tracing.routes,
    log_view.routes,
    slow_subscriptions.routes,
    auth_mnesia.routes,
    acl.routes,
    apps.routes,
    dashboard_users.routes,
    dashboard_openid.routes,
    modules.routes,
    banned.routes,
    access.routes,
    topic_tree.routes,
    configuration.routes,
    control.routes,
]


@routes.get("/", "List of the endpoints", reply=list[EndpointRecord])
def list_endpoints(call: Call) -> list[EndpointRecord]:
    return [
        EndpointRecord(
            each.name,
            each.method,
            "".join(f"/:{part[1:-1]}" if part.startswith("{") else f"/{part}" for part in each.segments),
            each.descr,
        )
        for each in all_routes()
        if each.segments
    ]


@routes.get("/openapi.json", "This document", reply=Raw({"application/json": {"type": "object"}}))
async def get_openapi(call: Call) -> web.Response:
    settings, version = call.operations.settings, call.operations.nodes.broker().version
    return json_response(await document(all_routes(), monitoring.root_routes.all, settings, version))


def all_routes() -> list[Endpoint]:
    return [endpoint for routes in ALL for endpoint in routes.all]
