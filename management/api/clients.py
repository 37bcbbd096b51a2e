"""/clients and /nodes/{node}/clients: connected clients and stored sessions, and operations on them."""

from typing import ClassVar

import msgspec

from ..http.envelope import Extra, of_nodes
from ..http.routes import Call, Endpoints, OfNodes
from ..operations.client_record import ClientRecord
from ..operations.clients import AclCacheEntry, ClientsQuery
from ..operations.listing import PageQuery
from ..operations.node_listing import Page
from ..operations.refusal import wrong
from ..operations.waiting_messages import WaitingMessage

routes = Endpoints("Clients")


class UsernameQuery(PageQuery, kw_only=True):
    """Pages only if they are requested."""

    pages_on_demand: ClassVar[bool] = True


class KeepAliveBody(msgspec.Struct):
    """``interval``: seconds, as a number or as text in digits; 0: no Keep Alive."""

    interval: int | str


class RateLimitBody(msgspec.Struct):
    """Rate limits, each like ``"100,1s"``, for bytes like ``"100KB,10s"``; limits that are not given remain
    unchanged."""

    conn_messages_in: str | None = None
    conn_bytes_in: str | None = None


class QuotaBody(msgspec.Struct):
    """Like ``"100,1s"``."""

    conn_messages_routing: str | None = None


@routes.get("/clients", "Clients, page by page", query=ClientsQuery, reply=list[ClientRecord])
@routes.get("/nodes/{node}/clients", "Clients of a node, page by page", query=ClientsQuery, reply=list[ClientRecord])
async def list_clients(call: Call) -> Page[ClientRecord]:
    return await call.operations.clients.search(
        call.query, call.operations.settings.max_row_limit, call.path.get("node")
    )


@routes.get("/clients/{clientid}", "A client", reply=OfNodes(list[ClientRecord]))
@routes.get("/nodes/{node}/clients/{clientid}", "A client of a node", reply=list[ClientRecord])
async def lookup_client(call: Call) -> list[ClientRecord] | Extra:
    if "node" in call.path:
        return await call.on_node(call.operations.clients.lookup, call.path["clientid"])
    return call.operations.clients.lookup(call.path["clientid"]) or of_nodes(
        *await call.operations.clients.find(call.path["clientid"])
    )


@routes.delete("/clients/{clientid}", "End a client's connection and session")
@routes.delete("/nodes/{node}/clients/{clientid}", "End a client's connection and session")
async def kickout_client(call: Call) -> None:
    if "node" in call.path:
        return await call.on_node(call.operations.clients.kick_here, call.path["clientid"])
    return await call.operations.clients.kick(call.path["clientid"])


@routes.get("/clients/username/{username}", "Clients of a user", query=UsernameQuery, reply=list[ClientRecord])
@routes.get(
    "/nodes/{node}/clients/username/{username}", "Clients of a user", query=UsernameQuery, reply=list[ClientRecord]
)
async def lookup_clients_by_username(call: Call) -> Page[ClientRecord]:
    """All clients with this username, as in the specification; with ``_limit``, page by page."""
    query: UsernameQuery = call.query
    limit = None if query.limit is None else query.rows(call.operations.settings.max_row_limit)
    return await call.operations.clients.by_username(call.path["username"], query.page, limit, call.path.get("node"))


@routes.get("/clients/{clientid}/queue", "Messages queued for a client", query=PageQuery, reply=list[WaitingMessage])
async def list_queue(call: Call) -> Page[WaitingMessage]:
    return await call.operations.waiting.of(
        call.path["clientid"], True, call.query, call.operations.settings.max_row_limit
    )


@routes.get(
    "/clients/{clientid}/inflight", "Messages in flight to a client", query=PageQuery, reply=list[WaitingMessage]
)
async def list_inflight(call: Call) -> Page[WaitingMessage]:
    return await call.operations.waiting.of(
        call.path["clientid"], False, call.query, call.operations.settings.max_row_limit
    )


@routes.get("/clients/{clientid}/acl_cache", "Cached access decisions of a client", reply=list[AclCacheEntry])
async def list_acl_cache(call: Call) -> list[AclCacheEntry]:
    return await call.operations.clients.acl_cache(call.path["clientid"])


@routes.delete("/clients/{clientid}/acl_cache", "Clear the cached access decisions of a client")
async def clean_acl_cache(call: Call) -> None:
    await call.operations.clients.clean_acl_cache(call.path["clientid"])


@routes.delete("/acl-cache", "Clear the cached access decisions of all clients")
@routes.delete("/nodes/{node}/acl-cache", "Clear the cached access decisions of all clients of a node")
async def clean_acl_cache_all(call: Call) -> None:
    if "node" in call.path:
        return await call.on_node(call.operations.clients.clean_acl_caches)
    return await call.operations.clients.clean_all_acl_caches()


@routes.put("/clients/{clientid}/keepalive", "Change a connected client's keep alive", body=KeepAliveBody)
async def set_keepalive(call: Call) -> None:
    given: int | str = call.body.interval
    if isinstance(given, str):
        digits = given.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise wrong("interval", "expected seconds")
        given = int(given)
    await call.operations.clients.set_keep_alive(call.path["clientid"], given)


@routes.post(
    "/clients/{clientid}/ratelimit",
    "Limit the rate at which the node reads from a connected client",
    body=RateLimitBody,
)
async def set_ratelimit_policy(call: Call) -> None:
    body: RateLimitBody = call.body
    await call.operations.clients.limit_rates(call.path["clientid"], body.conn_messages_in, body.conn_bytes_in)


@routes.delete("/clients/{clientid}/ratelimit", "Restore the rate limits of the zone for a connected client")
async def clean_ratelimit(call: Call) -> None:
    await call.operations.clients.lift_rates(call.path["clientid"])


@routes.post(
    "/clients/{clientid}/quota", "Limit the rate of a connected client's messages and their deliveries", body=QuotaBody
)
async def set_quota_policy(call: Call) -> None:
    body: QuotaBody = call.body
    await call.operations.clients.limit_routing(call.path["clientid"], body.conn_messages_routing)


@routes.delete("/clients/{clientid}/quota", "Remove the quota of a connected client")
async def clean_quota(call: Call) -> None:
    await call.operations.clients.lift_routing(call.path["clientid"])
