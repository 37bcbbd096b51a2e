"""Roles: which role of a dashboard user each endpoint requires. Only this table decides it; an endpoint that it does
not name requires an administrator."""

from typing import Final

from ..operations.caller import ADMINISTRATOR, ANYBODY, OPERATOR, VIEWER

_OWN_LOGIN: Final = """
POST /auth
GET /auth
DELETE /auth
GET /auth/openid
GET /auth/openid/start
GET /auth/openid/callback
PUT /change_pwd/{name}
"""
"""About the own login."""

_READ: Final = """
GET /
GET /openapi.json
GET /brokers
GET /brokers/{node}
GET /nodes
GET /nodes/{node}
GET /cluster_links
GET /nodes/{node}/clients
GET /clients
GET /nodes/{node}/clients/{clientid}
GET /clients/{clientid}
GET /nodes/{node}/clients/username/{username}
GET /clients/username/{username}
GET /clients/{clientid}/queue
GET /clients/{clientid}/inflight
GET /clients/{clientid}/acl_cache
GET /nodes/{node}/subscriptions
GET /subscriptions
GET /nodes/{node}/subscriptions/{clientid}
GET /subscriptions/{clientid}
GET /subscribers
GET /shared_groups
GET /shared_groups/members
GET /routes
GET /routes/{topic}
GET /broker_acl
GET /broker_acl/{login}
GET /listeners
GET /nodes/{node}/listeners
GET /nodes/{node}/lwm2m_channels
GET /lwm2m_channels
GET /nodes/{node}/lookup_cmd/{ep}
GET /lookup_cmd/{ep}
GET /metrics
GET /nodes/{node}/metrics
GET /stats
GET /nodes/{node}/stats
GET /emqx_prometheus
GET /monitor
GET /live
GET /rules
GET /rules/{id}
GET /rules/{id}/trace
GET /rule_events
GET /rule_functions
GET /actions
GET /actions/{name}
GET /resource_types
GET /resource_types/{name}
GET /resource_types/{name}/resources
GET /resources
GET /resources/{id}
GET /resources/{id}/dead_letters
GET /resource_status/{id}
GET /schemas
GET /schemas/{name}
GET /data/loss
GET /data/export
GET /retained
GET /retained/{topic}
GET /delayed
GET /nodes/{node}/delayed/{id}
GET /alarms
GET /nodes/{node}/alarms
GET /alarms/activated
GET /alarms/present
GET /nodes/{node}/alarms/activated
GET /alarms/deactivated
GET /alarms/history
GET /nodes/{node}/alarms/deactivated
GET /alarm_targets
GET /alarm_targets/{id}
GET /alarm_silences
GET /alarm_silences/{id}
GET /alarm_thresholds
GET /alarm_thresholds/{name}
GET /annotations
GET /annotations/{id}
GET /topic-metrics
GET /topic-metrics/{topic}
GET /clients/{clientid}/explain
GET /refused_clients
GET /explain/delivery
GET /explain
GET /top/clients
GET /top/topics
GET /top/refused
GET /top/dropped
GET /top/groups
GET /reasons
GET /trace
GET /trace/{name}/download
GET /trace/{name}/log
GET /slow_subscriptions
GET /auth_clientid
GET /auth_username
GET /auth_clientid/{clientid}
GET /auth_username/{username}
GET /acl/clientid
GET /acl/username
GET /acl/$anonymous
GET /acl/$all
GET /acl/clientid/{clientid}
GET /acl/username/{username}
GET /apps
GET /apps/{app_id}
GET /users
GET /modules
GET /nodes/{node}/modules
GET /plugins
GET /nodes/{node}/plugins
GET /banned
GET /access/explain
GET /access/sources
GET /nodes/{node}/access/sources
GET /topic_tree
GET /retained_tree
GET /configuration
GET /nodes/{node}/configuration/file
GET /certificates
GET /status
"""
"""Endpoints that change nothing, and reveal neither a secret nor anything that helps to guess one, such as the names of
superusers or log lines."""

_OPERATE: Final = """
DELETE /clients/{clientid}
DELETE /nodes/{node}/clients/{clientid}
POST /banned
DELETE /banned/{as}/{who}
POST /alarm_silences
DELETE /alarm_silences/{id}
POST /mqtt/publish
POST /mqtt/publish_batch
"""
"""Disconnect clients, ban them, silence alarms, publish messages."""

ROLE_OF: Final = {
    line: role
    for role, lines in ((ANYBODY, _OWN_LOGIN), (VIEWER, _READ), (OPERATOR, _OPERATE))
    for line in lines.split("\n")
    if line
}
"""``"GET /clients"`` -> the least role that may call it."""


def role_for(method: str, path: str) -> str:
    """Return the least role that may call this endpoint."""
    return ROLE_OF.get(f"{method} {path}", ADMINISTRATOR)
