"""/clients and /nodes/{node}/clients: who is there, and what is ordered about them."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..http.reading import PageQuery
from ..http.routes import Call, Routes
from ..operations.clients import ClientFilters
from ..operations.refusal import wrong

routes = Routes("Clients")


class ClientRecord(msgspec.Struct, kw_only=True):
    """Specification, Client record, and what EMQX 4.4 has beside it."""

    node: str
    clientid: str
    username: str
    proto_name: str
    proto_ver: int
    ip_address: str
    port: int
    is_bridge: bool
    connected_at: str
    disconnected_at: str | msgspec.UnsetType = msgspec.UNSET
    connected: bool
    zone: str
    keepalive: int
    clean_start: bool
    expiry_interval: int
    created_at: str
    subscriptions_cnt: int
    max_subscriptions: int
    inflight: int
    max_inflight: int
    mqueue_len: int
    max_mqueue: int
    mqueue_dropped: int
    awaiting_rel: int
    max_awaiting_rel: int
    recv_oct: int
    recv_cnt: int
    recv_pkt: int
    recv_msg: int
    recv_msg_qos0: int = msgspec.field(name="recv_msg.qos0")
    recv_msg_qos1: int = msgspec.field(name="recv_msg.qos1")
    recv_msg_qos2: int = msgspec.field(name="recv_msg.qos2")
    recv_msg_dropped: int = msgspec.field(name="recv_msg.dropped")
    send_oct: int
    send_cnt: int
    send_pkt: int
    send_msg: int
    send_msg_qos0: int = msgspec.field(name="send_msg.qos0")
    send_msg_qos1: int = msgspec.field(name="send_msg.qos1")
    send_msg_qos2: int = msgspec.field(name="send_msg.qos2")
    send_msg_dropped: int = msgspec.field(name="send_msg.dropped")
    send_msg_dropped_expired: int = msgspec.field(name="send_msg.dropped.expired")
    send_msg_dropped_queue_full: int = msgspec.field(name="send_msg.dropped.queue_full")
    send_msg_dropped_too_large: int = msgspec.field(name="send_msg.dropped.too_large")
    mailbox_len: int
    heap_size: int
    reductions: int
    mountpoint: str | msgspec.UnsetType = msgspec.UNSET


class AclCacheEntry(msgspec.Struct):
    """Specification, ACL cache entry; ``updated_time`` is unix milliseconds."""

    access: Literal["publish", "subscribe"]
    topic: str
    result: Literal["allow", "deny"]
    updated_time: int


When = Annotated[int, Meta(ge=0, le=253_402_300_799_999, extra={"unit": "unix milliseconds"})]
"""Unix seconds or milliseconds."""


class ClientsQuery(PageQuery, kw_only=True):
    """Conditions of a listing of clients; see ``ClientFilters``."""

    clientid: str | None = None
    username: str | None = None
    zone: str | None = None
    ip_address: str | None = None
    conn_state: Literal["connected", "idle", "disconnected"] | None = None
    clean_start: bool | None = None
    proto_name: Literal["MQTT", "CoAP", "LwM2M", "MQTT-SN"] | None = None
    proto_ver: int | None = None
    like_clientid: str | None = msgspec.field(default=None, name="_like_clientid")
    like_username: str | None = msgspec.field(default=None, name="_like_username")
    gte_created_at: When | None = msgspec.field(default=None, name="_gte_created_at")
    lte_created_at: When | None = msgspec.field(default=None, name="_lte_created_at")
    gte_connected_at: When | None = msgspec.field(default=None, name="_gte_connected_at")
    lte_connected_at: When | None = msgspec.field(default=None, name="_lte_connected_at")
    gte_mqueue_len: int | None = msgspec.field(default=None, name="_gte_mqueue_len")
    lte_mqueue_len: int | None = msgspec.field(default=None, name="_lte_mqueue_len")
    gte_mqueue_dropped: int | None = msgspec.field(default=None, name="_gte_mqueue_dropped")
    lte_mqueue_dropped: int | None = msgspec.field(default=None, name="_lte_mqueue_dropped")

    def filters(self) -> ClientFilters:
        return ClientFilters(**{key: getattr(self, key) for key in ClientFilters.__struct_fields__})


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
def list_clients(call: Call) -> Any:
    query: ClientsQuery = call.query
    limit = query.rows(call.operations.settings.max_row_limit)
    return call.operations.clients.search(query.filters(), query.page, limit)


@routes.get("/clients/{clientid}", "A client", reply=list[ClientRecord])
@routes.get("/nodes/{node}/clients/{clientid}", "A client of a node", reply=list[ClientRecord])
def lookup_client(call: Call) -> Any:
    return call.operations.clients.lookup(call.path["clientid"])


@routes.delete("/clients/{clientid}", "End a client's connection and session")
@routes.delete("/nodes/{node}/clients/{clientid}", "End a client's connection and session")
async def kickout_client(call: Call) -> Any:
    await call.operations.clients.kick(call.path["clientid"])


@routes.get("/clients/username/{username}", "Clients of a user", query=UsernameQuery, reply=list[ClientRecord])
@routes.get(
    "/nodes/{node}/clients/username/{username}", "Clients of a user", query=UsernameQuery, reply=list[ClientRecord]
)
def lookup_clients_by_username(call: Call) -> Any:
    """All of them, as the specification has it; with ``_limit`` page by page."""
    query: UsernameQuery = call.query
    limit = None if query.limit is None else query.rows(call.operations.settings.max_row_limit)
    return call.operations.clients.by_username(call.path["username"], query.page, limit)


@routes.get("/clients/{clientid}/acl_cache", "Access decisions kept for a client", reply=list[AclCacheEntry])
def list_acl_cache(call: Call) -> Any:
    return call.operations.clients.acl_cache(call.path["clientid"])


@routes.delete("/clients/{clientid}/acl_cache", "Forget the access decisions kept for a client")
def clean_acl_cache(call: Call) -> Any:
    call.operations.clients.clean_acl_cache(call.path["clientid"])


@routes.delete("/acl-cache", "Forget the access decisions kept for all clients")
@routes.delete("/nodes/{node}/acl-cache", "Forget the access decisions kept for all clients of a node")
def clean_acl_cache_all(call: Call) -> Any:
    call.operations.clients.clean_acl_caches()


@routes.put("/clients/{clientid}/keepalive", "Change a connected client's keep alive", body=KeepAliveBody)
def set_keepalive(call: Call) -> Any:
    given: int | str = call.body.interval
    if isinstance(given, str):
        digits = given.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise wrong("interval", "expected seconds")
        given = int(given)
    call.operations.clients.set_keep_alive(call.path["clientid"], given)


@routes.post("/clients/{clientid}/ratelimit", "Bound what is read from a connected client", body=RateLimitBody)
def set_ratelimit_policy(call: Call) -> Any:
    body: RateLimitBody = call.body
    call.operations.clients.limit_rates(call.path["clientid"], body.conn_messages_in, body.conn_bytes_in)


@routes.delete("/clients/{clientid}/ratelimit", "Give a connected client the bounds of its zone again")
def clean_ratelimit(call: Call) -> Any:
    call.operations.clients.lift_rates(call.path["clientid"])


@routes.post("/clients/{clientid}/quota", "Bound what a connected client may have routed", body=QuotaBody)
def set_quota_policy(call: Call) -> Any:
    body: QuotaBody = call.body
    call.operations.clients.limit_routing(call.path["clientid"], body.conn_messages_routing)


@routes.delete("/clients/{clientid}/quota", "Lift the bound of what a connected client may have routed")
def clean_quota(call: Call) -> Any:
    call.operations.clients.lift_routing(call.path["clientid"])
