"""Topic rewrite: publications and subscriptions to one topic are those of another one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.config import RewriteRule, RewriteSettings, RuleSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.clients import Clients, StartClients, tcp, v4, v5
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = [  # the first ones are those of EMQX's documentation
    {"action": "subscribe", "source_topic": "y/+/z/#", "re": "^y/(.+)/z/(.+)$", "dest_topic": "y/z/$2"},
    {"action": "publish", "source_topic": "x/y/+", "re": r"^x/y/(\d+)$", "dest_topic": "z/y/$1"},
    {"action": "publish", "source_topic": "x/#", "re": "^x/y/(.+)$", "dest_topic": "z/y/x/$1"},
    {"source_topic": "mine/#", "re": "^mine/(.*)$", "dest_topic": "of/%c/$1"},
    {"source_topic": "user/#", "re": "^user/(.*)$", "dest_topic": "of/%u/$1"},
    {"action": "publish", "source_topic": "whole/#", "re": "^whole/(.*)$", "dest_topic": "$1"},
    {"action": "subscribe", "source_topic": "inner/#", "re": "^inner/(.*)$", "dest_topic": "$1"},
]
SETTINGS: dict[str, Any] = {"rewrite": {"rules": RULES}}


@pytest_asyncio.fixture(loop_scope="module")
async def watcher(clients: Clients) -> AsyncIterator[Any]:
    peer = await clients.connect()
    await peer.subscribe("x/#", "z/#", "of/#", "y/z/b", "SYS/#", qos=2)
    yield peer
    await peer.unsubscribe("x/#", "z/#", "of/#", "y/z/b", "SYS/#")


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "published, arrives",
    [
        ("x/1/2", "x/1/2"),  # the expression of x/# is not found
        ("x/y/2", "z/y/2"),
        ("x/y/z", "x/y/z"),  # x/y/+ decides, and its expression is not found
        ("x/y/2/3", "z/y/x/2/3"),
        ("x/y/ä/§", "z/y/x/ä/§"),
        ("whole/z/1", "z/1"),
        ("whole/x/y/2", "x/y/2"),  # once
    ],
)
async def test_publish(clients: Clients, watcher: Any, published: str, arrives: str, qos: int) -> None:
    publisher = await clients.connect()
    for number in range(3):
        await publisher.publish(published, b"%d" % number, qos)
        await watcher.expect_publish(arrives, b"%d" % number, qos)


async def test_many_in_one_read(clients: Clients, watcher: Any) -> None:
    from tests.support.wire import Publish

    publisher = await clients.connect()
    await publisher.publish("z/y/1", b"first")
    await watcher.expect_publish("z/y/1", b"first")
    await publisher.send(*[Publish(topic, b"%d" % at) for topic in ("z/y/1", "x/y/1") for at in range(50)])
    for at in [*range(50), *range(50)]:
        await watcher.expect_publish("z/y/1", b"%d" % at)


@v5
async def test_topic_aliases_stay_those_of_the_client(clients: Clients, watcher: Any) -> None:
    publisher = await clients.connect()
    await publisher.publish("x/y/1", b"1", properties={c.TOPIC_ALIAS: 1})
    await publisher.publish("", b"2", properties={c.TOPIC_ALIAS: 1})
    await watcher.expect_publish("z/y/1", b"1")
    await watcher.expect_publish("z/y/1", b"2")


async def test_subscribe_and_unsubscribe(clients: Clients) -> None:
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe("y/a/z/b", qos=1)
    session = clients.server.broker.sessions.get(peer.client_id)
    if session is not None:  # on this node
        assert list(session.subscriptions) == ["y/z/b"]
    await publisher.publish("y/z/b", b"1", 1)
    await peer.expect_publish("y/z/b", b"1", 1)
    await publisher.publish("y/a/z/b", b"not rewritten: the rule is for subscriptions", 1)
    await peer.unsubscribe("y/a/z/b")
    await publisher.publish("y/z/b", b"2", 1)
    await peer.nothing()


async def test_a_shared_subscription_keeps_its_group(clients: Clients) -> None:
    one, other, publisher = await clients.connect(), await clients.connect(), await clients.connect()
    for peer in (one, other):
        await peer.subscribe("$share/g/y/a/z/c", qos=1)
    await publisher.publish("y/z/c", b"1", 1)
    await clients.connect()
    got = [len(await _payloads(peer)) for peer in (one, other)]
    assert sorted(got) == [0, 1]
    await one.unsubscribe("$share/g/y/a/z/c")
    await other.unsubscribe("$share/g/y/a/z/c")


async def _payloads(peer: Any) -> list[bytes]:
    from .until_quiet import payloads

    return await payloads(peer)


async def test_client_id_and_username(clients: Clients, watcher: Any) -> None:
    name = clients.name()
    peer = await clients.connect(name)
    await peer.publish("mine/a", b"1", 1)
    await watcher.expect_publish(f"of/{name}/a", b"1", 1)
    await peer.publish("user/a", b"as in EMQX", 1)
    await watcher.expect_publish("of/%u/a", b"as in EMQX", 1)
    await peer.subscribe("mine/#", qos=1)
    await peer.publish("mine/%u", b"2", 1)  # the text of a topic is no placeholder
    await peer.expect_publish(f"of/{name}/%u", b"2", 1)


@pytest.mark.parametrize("client_id", ["+", "a/b", "#", "$x"])
async def test_a_name_with_special_characters_is_refused(clients: Clients, watcher: Any, client_id: str) -> None:
    peer = await clients.connect(client_id)
    await peer.publish("mine/a", b"1", 1, expect=0x90 if clients.version == 5 else 0)
    await peer.subscribe("mine/a", expect=[0x8F if clients.version == 5 else 0x80])
    await watcher.nothing()


async def test_what_would_be_no_topic_is_refused(clients: Clients, watcher: Any) -> None:
    peer = await clients.connect()
    code = 0x90 if clients.version == 5 else 0
    for qos in (0, 1, 2):
        await peer.publish("whole/", b"x", qos, expect=code)
    await peer.publish("whole/$SYS/x", b"x", 1, expect=0x87 if clients.version == 5 else 0)
    await peer.publish("whole/" + "z" * 1100, b"longer than is searched", 1, expect=code)
    await watcher.nothing()
    for refused in ("inner/", "inner/$share/g/x"):
        await peer.subscribe(refused, expect=[0x8F if clients.version == 5 else 0x80])
    assert clients.server.metrics.refusals.snapshot()["publish_topic_name_invalid"] >= 4


async def test_a_will(clients: Clients, watcher: Any) -> None:
    name = clients.name()
    dying = await clients.connect(name, will=Will("mine/will", b"gone", 1))
    await dying.drop()
    await watcher.expect_publish(f"of/{name}/will", b"gone", 1)
    bad = clients.peer()
    await bad.connect(clients.name(), will=Will("whole/", b"x"), expect=0x90 if clients.version == 5 else None)


async def test_a_delayed_message(clients: Clients, watcher: Any) -> None:
    peer = await clients.connect()
    await peer.publish("$delayed/5/x/y/7", b"later", 1)
    await clients.pass_time(5.5)
    await watcher.expect_publish("z/y/7", b"later", 1)


async def test_retained_messages(clients: Clients, watcher: Any) -> None:
    peer = await clients.connect()
    await peer.publish("x/y/8", b"kept", 1, True)
    late = await clients.connect()
    await late.subscribe("z/y/8", qos=1)
    await late.expect_publish("z/y/8", b"kept", 1, retain=True)
    await peer.publish("x/y/8", b"", 1, True)
    last = await clients.connect()
    await last.subscribe("z/y/8", qos=1)
    await last.nothing()


@tcp
async def test_access_is_asked_about_the_new_topic(clients_of: StartClients) -> None:
    rules = [
        RuleSettings(allow=False, topics=["old/#"]),  # has no effect: old/1 is new/1
        RuleSettings(allow=True, topics=["new/1"]),
        RuleSettings(allow=False),
    ]
    rewrite = {"rules": [{"source_topic": "old/#", "re": "^old/(.*)$", "dest_topic": "new/$1"}]}
    clients = await clients_of(rewrite=rewrite, access={"rules": rules})
    peer = await clients.connect()
    denied = 0x87 if clients.version == 5 else 0x80
    await peer.subscribe("old/1", "old/2", expect=[0, denied])
    await peer.publish("old/1", b"1", 1)
    await peer.expect_publish("new/1", b"1")
    await peer.publish("old/2", b"2", 1, expect=0x87 if clients.version == 5 else 0)
    clients.server.context.reviews.rules_changed()  # the subscription is reviewed by the same topic
    await peer.ping()
    await peer.publish("new/1", b"3", 1)
    await peer.expect_publish("new/1", b"3")
    dying = await clients.connect(will=Will("old/2", b"not allowed", 1))
    await dying.drop()
    assert clients.server.metrics.refusals.snapshot()["will_not_authorized"] == 1


@tcp
async def test_below_a_mount_point(clients_of: StartClients) -> None:
    """The rules apply to the topics that the client names, and what they rewrite to is below its mount point."""
    clients = await clients_of(
        rewrite={"rules": [{"source_topic": "a/#", "re": "^a/(.*)$", "dest_topic": "b/$1"}]},
        zone={"mountpoint": "m/"},
    )
    peer = await clients.connect()
    await peer.subscribe("a/1")
    await peer.publish("a/1", b"1", 1)
    await peer.expect_publish("b/1", b"1")
    session = clients.server.broker.sessions.get(peer.client_id)
    assert session is not None and list(session.subscriptions) == ["m/b/1"]


@tcp
@v4
async def test_a_username(clients_of: StartClients) -> None:
    clients = await clients_of(
        rewrite={"rules": [{"source_topic": "user/#", "re": "^user/(.*)$", "dest_topic": "of/%u/$1"}]},
        access={"users": users("ann")},
    )
    peer = await clients.connect(username="ann", password=PASSWORD)
    await peer.subscribe("user/#")
    await peer.publish("user/a", b"1", 1)
    await peer.expect_publish("of/ann/a", b"1")


@tcp
@v4
async def test_a_reload_changes_the_rules(clients_of: StartClients) -> None:
    rule = {"source_topic": "a/#", "re": "^a/(.*)$", "dest_topic": "b/$1"}
    clients = await clients_of(rewrite={"rules": [rule]})
    peer = await clients.connect()
    await peer.subscribe("b/1", "c/1")
    await peer.publish("a/1", b"1", 1)
    await peer.expect_publish("b/1", b"1")
    settings = clients.server.settings
    others = {name: getattr(settings, name) for name in settings.__struct_fields__ if name != "rewrite"}
    changed = RewriteSettings(rules=[RewriteRule(source_topic="a/#", re="^a/(.*)$", dest_topic="c/$1")])
    clients.server.reload(type(settings)(**others, rewrite=changed))
    await peer.publish("a/1", b"2", 1)
    await peer.expect_publish("c/1", b"2")
