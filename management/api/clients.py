"""/clients and /nodes/{node}/clients: who is there, and what is ordered about them."""

from typing import ClassVar

import msgspec

from ..http.routes import Call, Routes
from ..operations.client_record import ClientRecord
from ..operations.clients import AclCacheEntry, ClientsQuery
from ..operations.listing import Listing, PageQuery
from ..operations.refusal import wrong

routes = Routes("Clients")


class UsernameQuery(PageQuery, kw_only=True):
    """Pages only where they are asked for."""

    pages_on_demand: ClassVar[bool] = True


class KeepAliveBody(msgspec.Struct):
    """``interval``: seconds, as a number or in digits; 0: no keep alive."""

    interval: int | str


class RateLimitBody(msgspec.Struct):
    """Each like ``"100,1s"``, bytes like ``"100KB,10s"``; what is not given stays."""

    conn_messages_in: str | None = None
    conn_bytes_in: str | None = None


class QuotaBody(msgspec.Struct):
    """Like ``"100,1s"``."""

    conn_messages_routing: str | None = None


@routes.get("/clients", "Clients, page by page", query=ClientsQuery, reply=list[ClientRecord])
@routes.get("/nodes/{node}/clients", "Clients of a node, page by page", query=ClientsQuery, reply=list[ClientRecord])
def list_clients(call: Call) -> Listing[ClientRecord]:
    return call.operations.clients.search(call.query, call.operations.settings.max_row_limit)


@routes.get("/clients/{clientid}", "A client", reply=list[ClientRecord])
@routes.get("/nodes/{node}/clients/{clientid}", "A client of a node", reply=list[ClientRecord])
def lookup_client(call: Call) -> list[ClientRecord]:
    return call.operations.clients.lookup(call.path["clientid"])


@routes.delete("/clients/{clientid}", "End a client's connection and session")
@routes.delete("/nodes/{node}/clients/{clientid}", "End a client's connection and session")
async def kickout_client(call: Call) -> None:
    await call.operations.clients.kick(call.path["clientid"])


@routes.get("/clients/username/{username}", "Clients of a user", query=UsernameQuery, reply=list[ClientRecord])
@routes.get(
    "/nodes/{node}/clients/username/{username}", "Clients of a user", query=UsernameQuery, reply=list[ClientRecord]
)
def lookup_clients_by_username(call: Call) -> Listing[ClientRecord]:
    """All of them, as the specification has it; with ``_limit`` page by page."""
    query: UsernameQuery = call.query
    limit = None if query.limit is None else query.rows(call.operations.settings.max_row_limit)
    return call.operations.clients.by_username(call.path["username"], query.page, limit)


@routes.get("/clients/{clientid}/acl_cache", "Access decisions kept for a client", reply=list[AclCacheEntry])
def list_acl_cache(call: Call) -> list[AclCacheEntry]:
    return call.operations.clients.acl_cache(call.path["clientid"])


@routes.delete("/clients/{clientid}/acl_cache", "Forget the access decisions kept for a client")
def clean_acl_cache(call: Call) -> None:
    call.operations.clients.clean_acl_cache(call.path["clientid"])


@routes.delete("/acl-cache", "Forget the access decisions kept for all clients")
@routes.delete("/nodes/{node}/acl-cache", "Forget the access decisions kept for all clients of a node")
def clean_acl_cache_all(call: Call) -> None:
    call.operations.clients.clean_acl_caches()


@routes.put("/clients/{clientid}/keepalive", "Change a connected client's keep alive", body=KeepAliveBody)
def set_keepalive(call: Call) -> None:
    given: int | str = call.body.interval
    if isinstance(given, str):
        digits = given.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise wrong("interval", "expected seconds")
        given = int(given)
    call.operations.clients.set_keep_alive(call.path["clientid"], given)


@routes.post("/clients/{clientid}/ratelimit", "Bound what is read from a connected client", body=RateLimitBody)
def set_ratelimit_policy(call: Call) -> None:
    body: RateLimitBody = call.body
    call.operations.clients.limit_rates(call.path["clientid"], body.conn_messages_in, body.conn_bytes_in)


@routes.delete("/clients/{clientid}/ratelimit", "Give a connected client the bounds of its zone again")
def clean_ratelimit(call: Call) -> None:
    call.operations.clients.lift_rates(call.path["clientid"])


@routes.post("/clients/{clientid}/quota", "Bound what a connected client may have routed", body=QuotaBody)
def set_quota_policy(call: Call) -> None:
    body: QuotaBody = call.body
    call.operations.clients.limit_routing(call.path["clientid"], body.conn_messages_routing)


@routes.delete("/clients/{clientid}/quota", "Lift the bound of what a connected client may have routed")
def clean_quota(call: Call) -> None:
    call.operations.clients.lift_routing(call.path["clientid"])
