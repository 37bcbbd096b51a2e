"""The commands clients, subscriptions and routes: connected clients, their subscriptions, and operations on them."""

from msgspec import UnsetType

from ..operations.client_record import ClientRecord
from ..operations.clients import ClientsQuery
from ..operations.listing import EVERYTHING, PageQuery
from ..operations.pubsub import SubscribeRequest, UnsubscribeRequest
from ..operations.refusal import NOT_ONLINE, WRONG, Refusal
from ..operations.routes import RouteRecord
from ..operations.subscriptions import SubscriptionRecord, SubscriptionsQuery
from ..operations.times import milliseconds
from .command import OK, CommandCall, CommandResult, Commands, finding, not_found, told, word

commands = Commands()


@commands.add("clients list", "List all clients")
async def list_clients(call: CommandCall) -> CommandResult:
    found = await call.operations.clients.search(ClientsQuery(), EVERYTHING)
    return CommandResult(found, lambda row: _client_line(call, row))


@commands.add("clients show <ClientId>", "Show a client")
async def show_client(call: CommandCall) -> CommandResult:
    found, _ = await call.operations.clients.find(call["ClientId"])
    if not found:
        raise not_found(f"client {call['ClientId']}", NOT_ONLINE)
    return CommandResult(found, lambda rows: [_client_line(call, row) for row in rows])


@commands.add("clients kick <ClientId>", "Close a client's connection and end its session")
async def kick_client(call: CommandCall) -> CommandResult:
    with finding(NOT_ONLINE):
        await call.operations.clients.kick(call["ClientId"])
    return CommandResult(None, OK)


@commands.add("subscriptions list", "List all subscriptions")
async def list_subscriptions(call: CommandCall) -> CommandResult:
    found = await call.operations.subscriptions.search(SubscriptionsQuery(), EVERYTHING)
    return CommandResult(found, _subscription_line)


@commands.add("subscriptions show <ClientId>", "Show the subscriptions of a client")
async def show_subscriptions(call: CommandCall) -> CommandResult:
    # At most max_subscriptions of one client, so they can be found without a pause.
    found = await call.operations.subscriptions.of_client(call["ClientId"])
    rows = [row async for row in found if row is not None]
    if not rows:
        raise not_found(f"subscription of client {call['ClientId']}", NOT_ONLINE)
    return CommandResult(rows, lambda rows: [_subscription_line(row) for row in rows])


@commands.add("subscriptions add <ClientId> <Topic> <QoS>", "Subscribe a client, online or not, to a topic filter")
async def add_subscription(call: CommandCall) -> CommandResult:
    if call["QoS"] not in ("0", "1", "2"):
        raise Refusal(WRONG, "QoS: expected 0, 1 or 2")
    request = SubscribeRequest(client_id=call["ClientId"], topic=call["Topic"], qos=int(call["QoS"]))
    with finding(NOT_ONLINE):
        await call.operations.pubsub.subscribe(request)
    return CommandResult(None, OK)


@commands.add("subscriptions del <ClientId> <Topic>", "Unsubscribe a client, online or not, from a topic filter")
async def delete_subscription(call: CommandCall) -> CommandResult:
    with finding(NOT_ONLINE):
        await call.operations.pubsub.unsubscribe(UnsubscribeRequest(client_id=call["ClientId"], topic=call["Topic"]))
    return CommandResult(None, OK)


@commands.add("routes list", "List all routes")
async def list_routes(call: CommandCall) -> CommandResult:
    return CommandResult(await call.operations.routes.search(PageQuery(), EVERYTHING), _route_line)


@commands.add("routes show <Topic>", "Show the routes of a topic filter")
async def show_routes(call: CommandCall) -> CommandResult:
    found, _ = await call.operations.routes.find(call["Topic"])
    if not found:
        raise not_found(f"route of {call['Topic']}")
    return CommandResult(found, lambda rows: [_route_line(row) for row in rows])


def _client_line(call: CommandCall, row: ClientRecord) -> str:
    facts: dict[str, object] = {
        "username": row.username,
        "peername": f"{row.ip_address}:{row.port}",
        "clean_start": word(row.clean_start),
        "keepalive": row.keepalive,
        "session_expiry_interval": row.expiry_interval,
        "subscriptions": row.subscriptions_cnt,
        "inflight": row.inflight,
        "awaiting_rel": row.awaiting_rel,
        "delivered_msgs": row.send_msg,
        "enqueued_msgs": row.mqueue_len,
        "dropped_msgs": row.mqueue_dropped,
        "connected": word(row.connected),
    }
    # The record has times as text, and null for a missing username; this line has milliseconds and ``-``. For a client
    # of this node the line is written in the same iteration as the record; for a client of another node, only the
    # record is available.
    session = call.operations.server.broker.sessions.get(row.clientid)
    if session is None or row.node != call.operations.nodes.name:
        facts["created_at"] = milliseconds(row.created_at)
        facts["connected_at"] = milliseconds(row.connected_at)
        if not isinstance(row.disconnected_at, UnsetType):
            facts["disconnected_at"] = milliseconds(row.disconnected_at)
    else:
        facts["username"] = told(session.client.username)
        skew = call.operations.server.clock.skew
        facts["created_at"] = int((session.created_at + skew) * 1000)
        facts["connected_at"] = int((session.client.connected_at + skew) * 1000)
        if not row.connected:
            facts["disconnected_at"] = int((session.disconnected_at + skew) * 1000)
    return f"Client({row.clientid}, {', '.join(f'{key}={value}' for key, value in facts.items())})"


def _subscription_line(row: SubscriptionRecord) -> str:
    return f"{row.clientid} -> {row.topic}"


def _route_line(row: RouteRecord) -> str:
    return f"{row.topic} -> {row.node}"
