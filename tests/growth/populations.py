"""Populations: many sessions, subscriptions or retained messages in a fake node, which nobody asks for just now."""

from taipan.broker.mqtt.message import Message
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.support.fake_node import FakeNode

FILTERS = 10


def session(node: FakeNode, client_id: str, expiry: int = 3600) -> Session:
    """A new session whose client is away."""
    client = ClientInfo("n", node.zone, client_id=client_id)
    limits = node.facts.limits
    opened, _ = node.broker.life.open_session(client, True, expiry, limits, node.clock.time)
    node.broker.life.leave(opened, None, 0, node.clock.time, "")
    return opened


def subscribed(node: FakeNode, count: int) -> list[Session]:
    """So many subscriptions, one in ten with a wildcard, ten to a session; their sessions."""
    sessions = []
    broker = node.broker
    for number in range(count):
        if number % FILTERS == 0:
            sessions.append(session(node, f"idle-{number}"))
        filter = f"site/{number % 100}/device/{number}/" + ("state" if number % FILTERS else "+")
        broker.subscribe(sessions[-1], Subscription(sessions[-1], filter, 1))
    return sessions


def retained(node: FakeNode, count: int) -> None:
    """So many retained messages."""
    for number in range(count):
        topic = f"site/{number % 100}/device/{number}/state"
        node.broker.retained.put(Message(topic, b"x", 0, True, timestamp=node.clock.time))
