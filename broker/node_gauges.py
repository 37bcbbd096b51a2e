"""The gauges of a node, and the parts of its memory, which ``Server`` reads on request."""

from functools import partial
from typing import TYPE_CHECKING

from .persistence.durability import Durability
from .transport.memory_guard import sources

if TYPE_CHECKING:
    from .server import Server


def add_gauges(server: "Server") -> None:
    """Register functions that read the parts of the node with ``server.stats`` and ``server.memory``."""
    broker, memory, gauge = server.broker, server.memory, server.stats.gauge
    router = broker.router
    gauge("connections", lambda: len(server.context.channels))
    gauge("live_connections", lambda: len(server.connections))
    gauge("channels", lambda: len(broker.sessions))
    gauge("sessions", lambda: len(broker.sessions))
    gauge("topics", router.route_count)
    gauge("routes", router.route_count)
    gauge("suboptions", lambda: router.subscription_count)
    gauge("subscriptions", lambda: router.subscription_count)
    gauge("subscribers", lambda: router.subscription_count - router.shared_count)
    gauge("subscriptions.shared", lambda: router.shared_count)
    gauge("retained", lambda: len(broker.retained))
    gauge("delayed", lambda: server.delayed.count)
    gauge("alarms", lambda: len(server.alarms.active))
    _add_memory(server)
    gauge("memory.limit", lambda: memory.limit)
    gauge("memory.used", lambda: memory.used)
    for name in memory.parts():
        gauge(f"memory.{name}", partial(_memory_part, server, name))
    gauge("nodes.hosted", lambda: len(server.hosted))
    if server.store is not None:
        gauge("store.trouble", lambda: int(_durability(server).commit.trouble is not None))
        gauge("store.pending", lambda: _durability(server).commit.pending)
        gauge("store.bytes", lambda: _durability(server).commit.log.size_bytes)


def _add_memory(server: "Server") -> None:
    memory = server.memory
    found = sources(
        server.broker, server.connections, server.guard, server.before_login, partial(_socket_bytes, server)
    )
    for name, octets in found.items():
        memory.source(name, octets)
    memory.source("http", lambda: sum([octets() for octets in server.http_bytes]))
    memory.source("delayed", lambda: server.delayed.size)
    memory.source(
        "hosted",
        lambda: sum([each.own_bytes for each in server.hosted_servers]),
        lambda: sum([each.own_sheddable for each in server.hosted_servers]),
    )


def _socket_bytes(server: "Server") -> int:
    return sum([listener.socket_bytes for listener in server.listeners])


def _memory_part(server: "Server", name: str) -> int:
    return server.memory.parts()[name]


def _durability(server: "Server") -> Durability:
    durability = server.broker.durability
    assert durability is not None
    return durability
