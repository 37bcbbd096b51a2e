"""Proxy subscription: the node subscribes clients that connect."""

from typing import Any

import pytest

from taipan.broker.config import AutoSubscribeSettings, RuleSettings
from tests.support.clients import Clients, StartClients, tcp, v4, v5
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS: dict[str, Any] = {
    "auto_subscribe": {"topics": [{"topic": "to/%c", "qos": 1}, {"topic": "all", "qos": 2}, {"topic": "for/%u"}]}
}


async def test_a_client_receives_what_it_did_not_subscribe_to(clients: Clients) -> None:
    name = clients.name()
    peer, publisher = await clients.connect(name), await clients.connect()
    await publisher.publish(f"to/{name}", b"1", 1)
    await peer.expect_publish(f"to/{name}", b"1", 1)
    await publisher.publish("all", b"2", 2)
    await peer.expect_publish("all", b"2", 2)
    await publisher.expect_publish("all", b"2", 2)
    await publisher.publish("for/%u", b"nobody has this name", 1)
    await peer.nothing()


async def test_unsubscribe_lasts_until_the_next_connection(clients: Clients) -> None:
    name = clients.name()
    peer = await clients.persistent(name)
    await peer.unsubscribe("all", f"to/{name}")
    publisher = await clients.connect()
    await publisher.publish(f"to/{name}", b"1", 1)
    await peer.nothing()
    await peer.disconnect()
    again = await clients.persistent(name)
    await publisher.publish(f"to/{name}", b"2", 1)
    await again.expect_publish(f"to/{name}", b"2", 1)


async def test_messages_wait_for_a_stored_session(clients: Clients) -> None:
    name = clients.name()
    peer = await clients.persistent(name)
    await peer.disconnect()
    publisher = await clients.connect()
    await publisher.publish(f"to/{name}", b"waits", 1)
    again = await clients.persistent(name)
    await again.expect_publish(f"to/{name}", b"waits", 1)


async def test_retained_messages_come_at_each_connection(clients: Clients) -> None:
    name = clients.name()
    publisher = await clients.connect()
    await publisher.publish(f"to/{name}", b"kept", 1, True)
    for _ in range(2):
        peer = await clients.persistent(name)
        await peer.expect_publish(f"to/{name}", b"kept", 1, retain=True)
        await peer.disconnect()
    await publisher.publish(f"to/{name}", b"", 1, True)


async def test_after_a_takeover(clients: Clients) -> None:
    name = clients.name()
    await clients.persistent(name)
    peer, publisher = await clients.persistent(name), await clients.connect()
    await publisher.publish(f"to/{name}", b"1", 1)
    await peer.expect_publish(f"to/{name}", b"1", 1)
    await peer.nothing()


@pytest.mark.parametrize("name", ["+", "#", "a/b", "$SYS"])
async def test_a_name_with_special_characters_is_not_filled_in(clients: Clients, name: str) -> None:
    peer, publisher = await clients.connect(name), await clients.connect()
    for topic in ("to/x", f"to/{name}" if name not in "+#" else "to/y"):
        await publisher.publish(topic, b"not for it", 1)
    await peer.nothing()
    await publisher.publish("all", b"it is connected", 1)
    await peer.expect_publish("all", b"it is connected")


@tcp
async def test_access_rules_do_not_apply(clients_of: StartClients) -> None:
    rules = [RuleSettings(allow=False, action="subscribe")]
    clients = await clients_of(**SETTINGS, access={"rules": rules})
    name = clients.name()
    peer, publisher = await clients.connect(name), await clients.connect()
    await peer.subscribe(f"to/{name}", expect=[0x87 if clients.version == 5 else 0x80])
    clients.server.context.reviews.rules_changed()
    await peer.ping()
    await publisher.publish(f"to/{name}", b"1", 1)
    await peer.expect_publish(f"to/{name}", b"1", 1)


@tcp
async def test_a_proved_username(clients_of: StartClients) -> None:
    clients = await clients_of(**SETTINGS, access={"users": users("ann")}, zone={"allow_anonymous": True})
    ann = await clients.connect(username="ann", password=PASSWORD)
    other = await clients.connect()
    await other.publish("for/ann", b"1", 1)
    await ann.expect_publish("for/ann", b"1", 0)
    assert clients.server.metrics.refusals.snapshot()["subscribe_not_authorized"] == 1


@tcp
async def test_the_limits_of_the_zone_apply(clients_of: StartClients) -> None:
    clients = await clients_of(**SETTINGS, zone={"max_subscriptions": 1})
    peer = await clients.connect()
    session = clients.server.broker.sessions.get(peer.client_id)
    assert session is not None and list(session.subscriptions) == [f"to/{peer.client_id}"]
    assert clients.server.metrics.refusals.snapshot()["subscribe_quota_exceeded"] == 1


@tcp
@pytest.mark.parametrize("version", [4, 5])
async def test_options_are_for_clients_that_know_them(clients_of: StartClients) -> None:
    topic = {"topic": "a", "qos": 1, "nl": True, "rap": True, "rh": 2}
    clients = await clients_of(auto_subscribe={"topics": [topic]}, zone={"mountpoint": "m/"})
    peer = await clients.connect()
    session = clients.server.broker.sessions.get(peer.client_id)
    assert session is not None
    (subscription,) = session.subscriptions.values()
    known = int(clients.version == 5)
    assert subscription.info() == {"qos": 1, "nl": known, "rap": known, "rh": 2 * known}
    assert subscription.filter == "m/a" and subscription.by_operator


@tcp
@v5
async def test_an_identical_subscription_is_not_written_again(clients_of: StartClients, tmp_path: Any) -> None:
    clients = await clients_of(**SETTINGS, durability={"level": "disk"}, node={"data_dir": str(tmp_path)})
    name = clients.name()
    made: list[str] = []
    clients.server.hooks.session_subscribed.add(lambda client, subscription, new: made.append(subscription.filter))
    for _ in range(2):
        peer = await clients.persistent(name)
        assert made == [f"to/{name}", "all"]
        await peer.disconnect()


@tcp
@v4
async def test_a_reload_is_for_the_next_connection(clients_of: StartClients) -> None:
    clients = await clients_of(**SETTINGS)
    settings = clients.server.settings
    others = {key: getattr(settings, key) for key in settings.__struct_fields__ if key != "auto_subscribe"}
    clients.server.reload(type(settings)(**others, auto_subscribe=AutoSubscribeSettings()))
    peer = await clients.connect()
    session = clients.server.broker.sessions.get(peer.client_id)
    assert session is not None and not session.subscriptions


@pytest.mark.asyncio(loop_scope="function")
async def test_on_two_nodes() -> None:
    """The session moves to the other node with its subscription, and messages of either node reach it."""
    from tests.support.cluster_nodes import cluster_nodes

    async with cluster_nodes(2, level="disk", cluster={"strict_subscribe": True}, **SETTINGS) as cluster:
        first = await cluster[0].client("dev", expiry=3600)
        publisher = await cluster[1].client("p")
        await first.ping()
        await cluster.wait_until_quiet()
        await publisher.publish("to/dev", b"1", 1)
        await first.expect_publish("to/dev", b"1", 1)
        second = await cluster[1].client("dev", expiry=3600)
        await cluster.wait_until_quiet()
        await (await cluster[0].client("q")).publish("to/dev", b"2", 1)
        await second.expect_publish("to/dev", b"2", 1)
        session = cluster[1].server.broker.sessions.get("dev")
        assert session is not None and list(session.subscriptions) == ["to/dev", "all"]
