"""Hooks, authenticators, authorizers, functions and actions of a program that has a node."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from taipan import BackgroundNode, Client, Filter, Message, Node, NodeError
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes
from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter
from tests.support.waiting import until

from .test_node import MEMORY, client

SERVER_UNAVAILABLE = reason_codes.SERVER_UNAVAILABLE
BAD_USER = reason_codes.BAD_USER_NAME_OR_PASSWORD
NOT_AUTHORIZED = reason_codes.NOT_AUTHORIZED


# --------------------------------------------------------------------- observe


@pytest.mark.asyncio
async def test_observers_are_told_what_happens() -> None:
    told: list[tuple[object, ...]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *facts: told.append((name, *[_short(each) for each in facts]))

    async with Node(**MEMORY) as node:
        points = [name for name in vars(node) if name.startswith("on_")]
        assert len(points) == 22
        changing = {"message_publish", "client_authenticate", "client_check_acl", "client_connack", "client_subscribe"}
        for name in points:
            if name.removeprefix("on_") not in changing | {"client_unsubscribe"}:
                getattr(node, name)(note(name.removeprefix("on_")))
        peer = await client(node, "ann")
        await peer.subscribe("a", qos=1)
        await node.publish("a", b"1", qos=1)
        await peer.expect_publish("a")
        await peer.publish("nobody", b"2", qos=1)
        await peer.unsubscribe("a")
        await peer.disconnect()
        await until(lambda: told[-1][0] == "client_disconnected")
    assert told == [
        ("client_connect", "ann"),
        ("session_created", "ann"),
        ("client_connected", "ann"),
        ("client_check_acl_complete", "ann", "subscribe", "a", True, False),
        ("session_subscribed", "ann", "a", True),
        ("message_delivered", "ann", b"1"),
        ("message_acked", "ann", b"1"),
        ("delivery_completed", "ann", b"1", "time"),
        ("client_check_acl_complete", "ann", "publish", "nobody", True, False),
        ("message_dropped", b"2", "no_subscribers"),
        ("session_unsubscribed", "ann", "a"),
        ("session_terminated", "ann", "normal"),
        ("client_disconnected", "ann", "normal"),
    ]


def _short(fact: object) -> object:
    if isinstance(fact, Client):
        return fact.client_id
    if isinstance(fact, Message):
        return fact.payload
    if isinstance(fact, Filter):
        return fact.topic
    return "time" if isinstance(fact, float) else fact


@pytest.mark.asyncio
async def test_sessions_that_go_on_and_end() -> None:
    told: list[tuple[str, str]] = []
    async with Node(**MEMORY) as node:
        node.on_session_resumed(lambda who: told.append(("resumed", who.client_id)))
        node.on_session_takeovered(lambda who: told.append(("takeovered", who.client_id)))
        node.on_session_discarded(lambda who: told.append(("discarded", who.client_id)))
        node.on_delivery_dropped(lambda who, message, reason: told.append((reason, who.client_id)))
        expiry = {c.SESSION_EXPIRY_INTERVAL: 100}
        first = await client(node, "ann", clean_start=False, properties=expiry)
        await first.subscribe("a", qos=1)
        second = await client(node, "ann", clean_start=False, properties=expiry)
        await first.close()
        await second.disconnect()
        await second.close()
        await until(lambda: not node._server.connections)
        await node.publish("a", b"", qos=0)
        third = await client(node, "ann", clean_start=True)
        await third.close()
    assert told == [("takeovered", "ann"), ("resumed", "ann"), ("qos0_msg", "ann"), ("discarded", "ann")]


@pytest.mark.asyncio
async def test_a_failing_observer_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with Node(**MEMORY) as node:

        @node.on_client_connected
        def breaks(who: Client) -> None:
            raise RuntimeError("mine")

        peer = await client(node, "ann")
        await peer.close()
        assert node.on_client_connected.errors == 1
        assert "hook_failed point=client.connected callback=" in caplog.text and "breaks" in caplog.text
        node.on_client_connected.remove(breaks)
        with pytest.raises(ValueError, match=r"client\.connected: no such callback"):
            node.on_client_connected.remove(breaks)
        with pytest.raises(TypeError, match="expected a function, got int"):
            node.on_client_connected(3)  # type: ignore[call-overload]


# ---------------------------------------------------------------- change, veto


@pytest.mark.asyncio
async def test_messages_are_changed_and_vetoed(caplog: pytest.LogCaptureFixture) -> None:
    async with Node(**MEMORY) as node:

        @node.on_message_publish(priority=10)
        def veto(message: Message) -> Message | None:
            if message.topic == "breaks":
                raise RuntimeError("mine")
            if message.topic == "wrong":
                return message.replace(topic="a/#")
            return None if message.topic == "secret" else message

        @node.on_message_publish
        def change(message: Message) -> Message:
            if message.topic == "x":
                return message.replace(
                    topic="y", payload=message.payload.upper(), qos=1, properties={"content_type": "t"}
                )
            return message

        everything = node.subscribe("#")
        peer = await client(node, "ann")
        for topic in ("secret", "breaks", "wrong", "x", "plain"):
            await peer.publish(topic, b"abc", qos=1)
        changed, plain = await anext(everything), await anext(everything)
        assert changed == Message("y", b"ABC", 1, properties={"content_type": "t"}) and changed.client_id == "ann"
        assert plain == Message("plain", b"abc", 1)
        assert node.on_message_publish.errors == 2
        assert caplog.text.count("hook_failed point=message.publish") == 2
        await peer.close()


@pytest.mark.asyncio
async def test_subscriptions_and_connacks_are_changed(caplog: pytest.LogCaptureFixture) -> None:
    async with Node(**MEMORY) as node:
        node.on_client_subscribe(lambda who, filters: [Filter(f"{who.client_id}/{f.topic}", 0) for f in filters])
        node.on_client_unsubscribe(lambda who, filters: [f"{who.client_id}/{each}" for each in filters])
        node.on_client_connack(lambda who, code, properties: {**properties, "reason_string": f"hello {code}"})
        peer = await client(node, "ann")
        assert peer.connack is not None and peer.connack.properties[c.REASON_STRING] == "hello 0"
        await peer.subscribe("a", qos=0)
        await node.publish("ann/a", b"1", qos=1)
        await peer.expect_publish("ann/a", b"1", 0)
        await peer.unsubscribe("a", expect=[0])
        node.on_client_subscribe(lambda who, filters: [])
        await peer.subscribe("b")
        assert node._server.broker.sessions.get("ann").subscriptions.keys() == {"ann/b"}  # type: ignore[union-attr]
        assert node.on_client_subscribe.errors == 1 and "expected as many filters" in caplog.text
        await peer.close()


@pytest.mark.asyncio
async def test_the_last_word_on_access(caplog: pytest.LogCaptureFixture) -> None:
    async with Node(**MEMORY) as node:

        @node.on_client_authenticate
        def who(client: Client, password: bytes | None, so_far: bool) -> bool:
            if client.client_id == "breaks":
                raise RuntimeError("mine")
            return so_far and client.client_id != "mallory"

        @node.on_client_check_acl
        def what(client: Client, action: str, topic: str, so_far: bool) -> bool:
            return 5 if topic == "odd" else so_far and topic != "secret"  # type: ignore[return-value]

        await (await client(node, "mallory", expect=NOT_AUTHORIZED)).close()
        await (await client(node, "breaks", expect=NOT_AUTHORIZED)).close()
        peer = await client(node, "ann")
        assert await peer.publish("secret", qos=1, expect=None) == NOT_AUTHORIZED
        assert await peer.publish("odd", qos=1, expect=None) == NOT_AUTHORIZED
        assert await peer.publish("a", qos=1, expect=None) < 0x80
        assert (node.on_client_authenticate.errors, node.on_client_check_acl.errors) == (1, 1)
        await peer.close()


# --------------------------------------------------------------------- access


async def _slowly(who: Client, password: bytes | None) -> Any:
    await asyncio.sleep(0)
    if who.username == "never":
        await asyncio.Event().wait()
    return _at_once(who, password)


def _at_once(who: Client, password: bytes | None) -> Any:
    if who.username == "breaks":
        raise RuntimeError("mine")
    if who.username == "odd":
        return "yes"
    if who.username == "boss":
        return "superuser"
    return None if who.username is None else password == b"secret"


@pytest.mark.asyncio
@pytest.mark.parametrize("callback", [_at_once, _slowly])
async def test_authenticators(callback: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(**MEMORY, access={"rules": [{"allow": False, "topics": ["secret"]}]})
    node.add_authenticator(callback, timeout=1.0)
    async with node:
        cases = [("ann", b"secret", 0), ("ann", b"wrong", BAD_USER), ("ann", None, BAD_USER), (None, None, 0),
                 ("breaks", None, SERVER_UNAVAILABLE), ("odd", None, SERVER_UNAVAILABLE)]  # fmt: skip
        if callback is _slowly:
            cases.append(("never", None, SERVER_UNAVAILABLE))
        for username, password, code in cases:
            await (await client(node, "it", username=username, password=password, expect=code)).close()
        boss = await client(node, "boss", username="boss")
        assert await boss.publish("secret", qos=1, expect=None) < 0x80
        ann = await client(node, "ann", username="ann", password=b"secret")
        assert await ann.publish("secret", qos=1, expect=None) == NOT_AUTHORIZED
        failed = [each for each in caplog.records if each.message.startswith("authenticator_failed")]
        assert len(failed) == node._server.metrics.refusals.snapshot()["authenticator_failed"] == len(cases) - 4
        await boss.close()
        await ann.close()


@pytest.mark.asyncio
async def test_authenticators_are_asked_in_order_and_prove_the_name() -> None:
    node = Node(**MEMORY, access={"rules": [{"allow": True, "username": "ann"}], "no_match": "deny"})
    asked: list[str] = []

    def first(who: Client, password: bytes | None) -> bool | None:
        asked.append("first")
        return None

    def second(who: Client, password: bytes | None) -> bool:
        asked.append("second")
        return True

    node.add_authenticator(first)
    node.add_authenticator(second)
    async with node:
        ann = await client(node, "ann", username="ann")
        assert await ann.publish("a", qos=1, expect=None) < 0x80
        bob = await client(node, "bob", username="bob")
        assert await bob.publish("a", qos=1, expect=None) == NOT_AUTHORIZED
        assert asked == ["first", "second"] * 2
        await ann.close()
        await bob.close()


async def _may_slowly(who: Client, action: str, topic: str) -> Any:
    await asyncio.sleep(0)
    if topic == "never":
        await asyncio.Event().wait()
    return _may(who, action, topic)


def _may(who: Client, action: str, topic: str) -> Any:
    if topic == "breaks":
        raise RuntimeError("mine")
    if topic == "odd":
        return 5
    if topic.startswith("mine/"):
        return topic.startswith(f"mine/{who.client_id}/") and action == "publish"
    return None


@pytest.mark.asyncio
@pytest.mark.parametrize("callback", [_may, _may_slowly])
async def test_authorizers(callback: Any, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(**MEMORY, access={"rules": [{"allow": False, "topics": ["secret"]}]})
    node.add_authorizer(callback, timeout=1.0)
    async with node:
        ann = await client(node, "ann")
        cases = {"mine/ann/a": True, "mine/bob/a": False, "secret": False, "else": True, "breaks": False, "odd": False}
        if callback is _may_slowly:
            cases["never"] = False
        for _ in range(2):
            for topic, allowed in cases.items():
                assert (await ann.publish(topic, qos=1, expect=None) < 0x80) is allowed, topic
        await ann.send(Subscribe(7, [TopicFilter(each) for each in ("mine/ann/a", "else", "breaks")]))
        assert (await ann.expect(Suback)).reason_codes == [NOT_AUTHORIZED, 0, NOT_AUTHORIZED]
        failed = node._server.metrics.refusals.snapshot()["authorizer_failed"]
        # What fails is asked again each time.
        assert failed == 2 * (len(cases) - 4) + 1
        assert caplog.text.count("authorizer_failed name=python:_may") == failed
        await ann.close()


@pytest.mark.asyncio
async def test_several_authorizers_that_wait() -> None:
    """Two of them, with the rules of the settings behind."""
    asked: list[str] = []

    async def first(who: Client, action: str, topic: str) -> bool | None:
        asked.append("first")
        return True if topic == "one" else None

    async def second(who: Client, action: str, topic: str) -> bool | None:
        asked.append("second")
        return False if topic == "two" else None

    node = Node(**MEMORY)
    node.add_authorizer(first)
    node.add_authorizer(second)
    async with node:
        ann = await client(node, "ann")
        for topic, refused in (("one", False), ("two", True), ("three", False)):
            assert (await ann.publish(topic, qos=1, expect=None) >= 0x80) is refused
        assert asked == ["first", "first", "second", "first", "second"]
        await ann.close()


def test_what_cannot_be_asked() -> None:
    node = Node(**MEMORY)
    with pytest.raises(TypeError, match="add_authenticator: expected a function, got str"):
        node.add_authenticator("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="add_authorizer: expected a function, got str"):
        node.add_authorizer("x")  # type: ignore[arg-type]


# ------------------------------------------------------------------------ rules


@pytest.mark.asyncio
async def test_functions_and_actions() -> None:
    rows: list[object] = []
    one, other = Node(**MEMORY), Node(**MEMORY)

    def celsius(fahrenheit: float, digits: int = 1) -> float:
        return round((fahrenheit - 32) / 1.8, digits)

    async def store(row: Any) -> None:
        await asyncio.sleep(0)
        if row["c"] > 100:
            raise RuntimeError("too hot")
        rows.append(("store", row["c"]))

    for node in (one, other):  # one node's are not the other's
        node.add_function(celsius)
    one.add_function(lambda *each: len(each), "count_all")
    one.add_action("keep", lambda row: rows.append(("keep", row["c"])))
    one.add_action("store", store)
    async with one, other:
        id = await one.add_rule("SELECT celsius(payload.f) as c FROM 't/#'", "keep", ("store", {}))
        for value in (212, 32, 500):
            await one.publish("t/1", f'{{"f": {value}}}')
        await other.publish("t/1", '{"f": 1}')
        actions = {each.stored.name: each for each in one._assembly.engine.rules.get(id).actions}
        await until(lambda: actions["store"].counters.failed == 1)
        assert actions["store"].counters.success == 2 and actions["keep"].counters.success == 3
        with pytest.raises(NodeError, match=r"add_rule: .*count_all"):
            await other.add_rule("SELECT count_all(1) FROM 'a'")
        with pytest.raises(NodeError, match=r"add_rule: .*keep"):
            await other.add_rule("SELECT * FROM 'a'", "keep")
        assert await one.add_rule("SELECT count_all(1, 2) as n FROM 'a'")
        await one.remove_rule(id)
        with pytest.raises(NodeError, match="remove_rule: there is no rule"):
            await one.remove_rule(id)
    assert sorted(map(str, rows)) == sorted(
        map(str, [("keep", 100.0), ("keep", 0.0), ("keep", 260.0), ("store", 100.0), ("store", 0.0)])
    )


@pytest.mark.asyncio
async def test_an_action_that_waits_is_done_before_the_node_has_stopped() -> None:
    done: list[bytes] = []

    async def store(row: Any) -> None:
        await asyncio.sleep(0.01)
        done.append(row["payload"])

    node = Node(**MEMORY)
    node.add_action("store", store)
    async with node:
        await node.add_rule("SELECT * FROM 'a'", "store")
        for number in range(5):
            await node.publish("a", str(number))
    assert done == ["0", "1", "2", "3", "4"]


def test_what_cannot_be_added() -> None:
    async def waits(x: int) -> int:
        return x

    node = Node(**MEMORY)
    with pytest.raises(TypeError, match="waits is asynchronous"):
        node.add_function(waits)
    with pytest.raises(ValueError, match="function upper already exists"):
        node.add_function(str.upper, "upper")
    with pytest.raises(ValueError, match="cannot be a function's name"):
        node.add_function(lambda x: x)
    with pytest.raises(TypeError, match="SQL has no keyword arguments such as y"):
        node.add_function(_wants_keyword)
    with pytest.raises(ValueError, match="action inspect already exists"):
        node.add_action("inspect", print)
    with pytest.raises(ValueError, match="cannot be an action's name"):
        node.add_action("a b", print)
    with pytest.raises(TypeError, match="add_action: expected a function"):
        node.add_action("a", 3)  # type: ignore[arg-type]


def _wants_keyword(x: int, *, y: int) -> int:
    return x + y


# ------------------------------------------------------------------- in a thread


def test_a_node_in_a_thread(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    background = BackgroundNode(**MEMORY)
    with pytest.raises(NodeError, match="has not been started"):
        background.publish("a")
    seen: list[str] = []
    background.node.on_message_publish(lambda message: seen.append(message.topic) or message)
    background.add_function(lambda: 1, "one")
    background.add_action("note", lambda row: seen.append("note"))
    with background as node:
        assert node.running and node.url == node.urls[0] == f"mqtt://{node.host}:{node.port}"
        assert node.management_url is None
        subscription = node.subscribe("a")
        rule = node.add_rule("SELECT one() FROM 'a'", "note")
        node.publish("a", "1", qos=1)
        assert subscription.get(timeout=10).payload == b"1"
        with pytest.raises(TimeoutError, match=r"no message for 'a' within 0.01 s"):
            subscription.get(timeout=0.01)
        node.remove_rule(rule)
        node.publish("a", "2")
        with pytest.raises(NodeError, match="was already started"):
            node.start()
        with pytest.raises(ValueError, match="is not a Topic Filter"):
            node.subscribe("#/#")
        with node.subscribe("b") as other:
            pass
        with pytest.raises(EOFError):
            other.get(10)
    assert not background.running
    assert [each.payload for each in subscription] == [b"2"] and subscription.dropped == 0
    assert seen == ["a", "note", "a"]
    with pytest.raises(NodeError, match="has stopped"):
        background.publish("a")
    background.stop()


def test_a_node_in_a_thread_that_cannot_start() -> None:
    with BackgroundNode(**MEMORY) as node:
        other = BackgroundNode(listeners=[f"tcp://127.0.0.1:{node.port}"], durability="memory")
        with pytest.raises(NodeError, match="Address already in use"):
            other.start()
        assert not other.running


def test_a_callback_cannot_wait_for_its_own_node() -> None:
    told: list[str] = []
    with BackgroundNode(**MEMORY) as node:

        def waits(message: Message) -> Message:
            for wait in (lambda: node.publish("b"), node.stop):
                try:
                    wait()
                except NodeError as error:
                    told.append(str(error))
            return message

        node.node.on_message_publish(waits)
        node.publish("a")
    assert [each.partition(":")[0] for each in told] == [
        "a callback of the node cannot wait for the node",
        "a callback of the node cannot stop the node",
    ]
