"""clients, subscriptions, routes: who is there, who wants what, and orders about them."""

from contextlib import AbstractContextManager
from sys import maxsize
from typing import Any, Final

from ..operations.client_record import ClientRecord
from ..operations.clients import ClientsQuery
from ..operations.pubsub import SubscribeRequest, UnsubscribeRequest
from ..operations.refusal import NOT_ONLINE, WRONG
from ..operations.routes import RouteRecord
from ..operations.subscriptions import SubscriptionRecord, SubscriptionsQuery
from .command import NOT_FOUND, OK, CommandCall, CommandResult, Commands, Failure, not_found, telling, told, word

commands = Commands()

EVERYTHING: Final = maxsize // 2
"""Rows a page, where everything is wanted."""


@commands.add("clients list", "List all clients")
def list_clients(call: CommandCall) -> CommandResult:
    return CommandResult(
        call.operations.clients.search(ClientsQuery(), EVERYTHING), lambda row: _client_line(call, row)
    )


@commands.add("clients show <ClientId>", "Show a client")
def show_client(call: CommandCall) -> CommandResult:
    found = call.operations.clients.lookup(call["ClientId"])
    if not found:
        raise not_found(f"client {call['ClientId']}", NOT_ONLINE)
    return CommandResult(found, lambda rows: [_client_line(call, row) for row in rows])


@commands.add("clients kick <ClientId>", "End a client's connection and its session")
async def kick_client(call: CommandCall) -> CommandResult:
    with _online(NOT_FOUND):
        await call.operations.clients.kick(call["ClientId"])
    return CommandResult(None, OK)


@commands.add("subscriptions list", "List all subscriptions")
def list_subscriptions(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.subscriptions.search(SubscriptionsQuery(), EVERYTHING), _subscription_line)


@commands.add("subscriptions show <ClientId>", "Show the subscriptions of a client")
def show_subscriptions(call: CommandCall) -> CommandResult:
    # No more than max_subscriptions of one client: they may be found at once.
    rows = [row for row in call.operations.subscriptions.lookup(call["ClientId"]) if row is not None]
    if not rows:
        raise not_found(f"subscription of client {call['ClientId']}", NOT_ONLINE)
    return CommandResult(rows, lambda rows: [_subscription_line(row) for row in rows])


@commands.add("subscriptions add <ClientId> <Topic> <QoS>", "Subscribe a client, online or not, to a topic filter")
async def add_subscription(call: CommandCall) -> CommandResult:
    if call["QoS"] not in ("0", "1", "2"):
        raise Failure(WRONG, "QoS should be 0, 1, 2", "QoS should be 0, 1, 2")
    request = SubscribeRequest(client_id=call["ClientId"], topic=call["Topic"], qos=int(call["QoS"]))
    with _online("Error: Channel not found!"):
        await call.operations.pubsub.subscribe(request)
    return CommandResult(None, OK)


@commands.add("subscriptions del <ClientId> <Topic>", "Unsubscribe a client, online or not, from a topic filter")
async def delete_subscription(call: CommandCall) -> CommandResult:
    with _online("Error: Channel not found!"):
        await call.operations.pubsub.unsubscribe(UnsubscribeRequest(client_id=call["ClientId"], topic=call["Topic"]))
    return CommandResult(None, OK)


@commands.add("routes list", "List all routes")
def list_routes(call: CommandCall) -> CommandResult:
    return CommandResult(call.operations.routes.listing(1, EVERYTHING), _route_line)


@commands.add("routes show <Topic>", "Show the routes of a topic filter")
def show_routes(call: CommandCall) -> CommandResult:
    found = call.operations.routes.lookup(call["Topic"])
    if not found:
        raise not_found(f"route of {call['Topic']}")
    return CommandResult(found, lambda rows: [_route_line(row) for row in rows])


def _online(otherwise: str) -> AbstractContextManager[None]:
    """emqx_ctl's words where there is no such client."""
    return telling(lambda refusal: otherwise if refusal.code == NOT_ONLINE else None)


def _client_line(call: CommandCall, row: ClientRecord) -> str:
    facts: dict[str, Any] = {
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
    # The record has its times as text and no user name as a word, this line has milliseconds and ``-``. It is written
    # in the iteration that made the record.
    session = call.operations.server.broker.sessions.get(row.clientid)
    if session is not None:
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
