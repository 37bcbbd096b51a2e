"""Rights that are taken away end what was subscribed to with them: live, in sessions that come back, and in queues."""

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.http.declaration import HttpAccessSettings
from taipan.broker.channel.review import SessionReview
from taipan.broker.channel.subscribe import FILTERS_PER_ITERATION
from taipan.broker.mqtt.packets import Connack, Connect, Suback, Subscribe, TopicFilter
from taipan.broker.session.subscription import Subscription
from tests.support.api import ManagedNode, managed_node
from tests.support.auth_service import auth_service
from tests.support.patience import patience
from tests.support.peer import TIMEOUT, Peer
from tests.support.users import PASSWORD, users

pytestmark = pytest.mark.asyncio

ACCESS: dict[str, Any] = {"hash_cost": 10, "users": users("ann", "bob")}
DENY = {"login": "ann", "topic": "secret/#", "action": "sub", "allow": False}
MANY = 20_000
"""To end so many subscriptions in one turn would hold the loop for a third of a second."""

versions = pytest.mark.parametrize("version, transport", [(4, "tcp"), (5, "tcp"), (5, "ws")])
five = pytest.mark.parametrize("version", [4, 5])


async def reviewed(node: ManagedNode) -> None:
    async with asyncio.timeout(patience(TIMEOUT)):
        while node.server.context.reviews.busy:
            await asyncio.sleep(0.01)


async def enter(node: ManagedNode, version: int = 5, transport: str = "tcp", name: str = "ann") -> Peer:
    """``name`` as client identifier and user, with a session that stays."""
    return await node.client(name, version, transport, username=name, password=PASSWORD, expiry=3600)


async def filters_of(node: ManagedNode, client_id: str = "ann") -> list[str]:
    return sorted(each["topic"] for each in (await node.api.get(f"/subscriptions/{client_id}")).data)


async def told(node: ManagedNode, event: str, client_id: str = "ann") -> list[dict[str, Any]]:
    events = (await node.api.get(f"/clients/{client_id}/explain")).data["events"]
    return [each for each in events if each["event"] == event]


def refused(node: ManagedNode, reason: str) -> int:
    return node.server.metrics.refusals.snapshot().get(reason, 0)


@versions
async def test_a_rule_ends_what_is_subscribed_to(
    version: int, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with managed_node(access=ACCESS) as node:
        ann = await enter(node, version, transport)
        await ann.subscribe("secret/a", "$share/g/secret/b", "open", "#", qos=1)
        bob = await enter(node, version, name="bob")
        await bob.subscribe("secret/a")
        with caplog.at_level("WARNING"):
            assert (await node.api.post("/broker_acl", DENY)).code == 0
            await reviewed(node)
        # "#" could match what is denied.
        assert await filters_of(node) == ["open"]
        assert "subscription_revoked client_id=ann topic=secret/a reason=not_authorized" in caplog.text
        assert "setting=/broker_acl/ann/secret%2F%23" in caplog.text
        (event,) = await told(node, "subscription_revoked")
        assert (event["count"], event["setting"]) == (3, "/broker_acl/ann/secret%2F%23")
        assert refused(node, "subscription_revoked") == 3
        writer = await node.client("writer")
        for topic in ("secret/a", "secret/b", "other", "open"):
            await writer.publish(topic, b"x", 1)
        await ann.expect_publish("open", b"x", 1)
        await ann.nothing()
        await bob.expect_publish("secret/a", b"x")


@five
async def test_nothing_is_taken_from_who_may(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        ann = await enter(node, version)
        await ann.subscribe("a", "secret/a", "#")
        await node.api.post("/broker_acl", {**DENY, "login": "bob"})
        await node.api.post("/broker_acl", {**DENY, "action": "pub"})
        await reviewed(node)
        assert await filters_of(node) == ["#", "a", "secret/a"]


@five
async def test_what_waits_for_a_client_that_is_away(version: int) -> None:
    """What is queued of a filter that is over is dropped; what another one matches, or was sent, is not."""
    async with managed_node(access=ACCESS, zone={"max_inflight": 1}) as node:
        ann = await enter(node, version)
        await ann.subscribe("secret/a", "secret/b", "open/#", "secret/sent", qos=1)
        writer = await node.client("writer")
        await writer.publish("secret/sent", b"0", 1)
        await ann.expect_publish("secret/sent", b"0", 1, acknowledge=False)
        await ann.drop()
        for topic in ("secret/a", "open/x", "secret/b", "open/y"):
            await writer.publish(topic, topic.encode(), 1)
        await node.api.post("/broker_acl", {**DENY, "topic": "secret/a"})
        await reviewed(node)
        assert await filters_of(node) == ["open/#", "secret/b", "secret/sent"]
        await writer.publish("secret/a", b"later", 1)
        assert refused(node, "delivery_revoked") == 1
        (event,) = await told(node, "delivery_dropped")
        assert (event["reason"], event["topic"]) == ("revoked", "secret/a")
        (session,) = [each for each in node.server.broker.sessions if each.client_id == "ann"]
        assert session.queued == 3
        ann = await enter(node, version)
        await ann.expect_publish("secret/sent", b"0", 1, dup=True)
        for topic in ("open/x", "secret/b", "open/y"):
            await ann.expect_publish(topic, topic.encode(), 1)
        await ann.nothing()


@five
async def test_another_member_gets_what_waits_of_a_shared_subscription(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        ann = await enter(node, version)
        await ann.subscribe("$share/g/secret/a", qos=1)
        await ann.drop()
        writer = await node.client("writer")
        await writer.publish("secret/a", b"x", 1)
        bob = await enter(node, version, name="bob")
        await bob.subscribe("$share/g/secret/a", qos=1)
        await node.api.post("/broker_acl", DENY)
        await reviewed(node)
        await bob.expect_publish("secret/a", b"x", 1)
        assert refused(node, "delivery_revoked") == 0


@pytest.mark.parametrize("level", ["disk", "memory"])
async def test_a_session_that_comes_back_is_judged_before_it_gets_anything(level: str, tmp_path: Path) -> None:
    """Also by rules of the file that were not there when the node went down; and it stays so."""
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": level}}
    rules = [{"allow": False, "action": "subscribe", "topics": ["secret/#"]}]
    async with managed_node(access=ACCESS, **config) as node:
        ann = await enter(node)
        await ann.subscribe("secret/a", "open", qos=1)
        await ann.drop()
        writer = await node.client("writer")
        for topic in ("secret/a", "open"):
            await writer.publish(topic, b"x", 1)
        if level == "memory":
            # Nobody tells that the rules are others now: only that it comes back has them judged.
            node.server.access.authorization.on_change = lambda: None
            access = node.settings.access
            changed = msgspec.convert({**ACCESS, "rules": rules}, type(access))
            node.server.reload(msgspec.structs.replace(node.settings, access=changed))
            ann = await enter(node)
            await ann.expect_publish("open", b"x", 1)
            await ann.nothing()
            assert await filters_of(node) == ["open"]
            return
    async with managed_node(access={**ACCESS, "rules": rules}, **config) as node:
        node.server.context.reviews.stop()
        ann = await enter(node)
        await ann.expect_publish("open", b"x", 1)
        await ann.nothing()
    async with managed_node(access=ACCESS, **config) as node:
        assert await filters_of(node) == ["open"]


@five
async def test_a_filter_that_is_refused_when_it_is_asked_for_again(version: int) -> None:
    async with managed_node(access=ACCESS) as node:
        ann = await enter(node, version)
        await ann.subscribe("secret/a", qos=1)
        node.server.context.reviews.stop()
        await node.api.post("/broker_acl", DENY)
        packet_id = ann.next_packet_id()
        await ann.send(Subscribe(packet_id, [TopicFilter("secret/a", 1)]))
        suback = await ann.answer(Suback, packet_id=packet_id)
        assert suback.reason_codes == [0x87 if version == 5 else 0x80]
        assert await filters_of(node) == []
        writer = await node.client("writer")
        await writer.publish("secret/a", b"x", 1)
        await ann.nothing()
        assert await told(node, "subscription_revoked")


@five
@pytest.mark.parametrize("change", ["put", "delete", "import", "reload", "source"])
async def test_who_is_no_superuser_any_more(version: int, change: str) -> None:
    """Whoever is there, and whoever is away."""
    stored = change != "reload"
    access = {**ACCESS, "no_match": "deny"}
    if not stored:
        access["users"] = users("ann", superusers=("root",))
    async with managed_node(access=access) as node:
        if stored:
            await node.api.post("/auth_user", [{"login": "root", "password": "x", "is_superuser": True}])
        here = await node.client("here", version, username="root", password=b"x")
        await here.subscribe("#")
        await node.leave_session("away", "#", username="root", password=b"x")
        if change == "put":
            await node.api.put("/auth_user/root", {"password": "x", "is_superuser": False})
        elif change == "delete":
            await node.api.delete("/auth_user/root")
        elif change == "import":
            user = {"login": "root", "type": "username", "password": "YWFhYWFh", "is_superuser": False}
            assert (await node.api.post("/data/import", {"version": "4.4", "auth_mnesia": [user]})).code == 0
        else:
            # A user is no superuser any more, or those of a source do not count any more.
            less = {"authenticators": ["configuration"]} if stored else {"users": users("ann", "root")}
            now = msgspec.convert({**access, **less}, type(node.settings.access))
            node.server.reload(msgspec.structs.replace(node.settings, access=now))
            node.management.reload(node.management.settings)
            await asyncio.sleep(0)
        await reviewed(node)
        assert await filters_of(node, "here") == [] and await filters_of(node, "away") == []
        if change == "delete":
            await here.expect_disconnect(0x87)
        else:
            await here.nothing()


async def test_retained_messages_of_who_is_no_superuser_any_more() -> None:
    """``check_source`` asks for the right that the publisher has now, also of one that has left before it lost it."""
    rules = [{"allow": True, "action": "subscribe", "topics": ["#"]}]
    access = {**ACCESS, "no_match": "deny", "rules": rules}
    async with managed_node(access=access, retained={"check_source": True}) as node:
        await node.api.post("/auth_user", [{"login": "root", "password": "x", "is_superuser": True}])
        root = await node.client("root", username="root", password=b"x")
        await root.publish("t", b"kept", 1, retain=True)
        await root.disconnect()
        reader = await node.client("reader")
        await reader.subscribe("t")
        await reader.expect_publish("t", b"kept", retain=True)
        await node.api.put("/auth_user/root", {"password": "x", "is_superuser": False})
        await reader.subscribe("t")
        await reader.nothing()


async def test_who_is_no_superuser_any_more_by_an_import_that_stops_at_its_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with managed_node(access={**ACCESS, "no_match": "deny"}) as node:
        await node.api.post("/auth_user", [{"login": "root", "password": "x", "is_superuser": True}])
        here = await node.client("here", username="root", password=b"x")
        await here.subscribe("#")
        begun, asked = asyncio.Event(), asyncio.Event()

        async def adopt(*given: object) -> None:
            begun.set()
            await asked.wait()

        monkeypatch.setattr(node.engine, "adopt", adopt)
        user = {"login": "root", "type": "username", "password": "YWFhYWFh", "is_superuser": False}
        importing = asyncio.ensure_future(node.api.post("/data/import", {"version": "4.4", "auth_mnesia": [user]}))
        await begun.wait()
        await reviewed(node)
        assert await filters_of(node, "here") == []
        asked.set()
        assert (await importing).code == 0


@five
@pytest.mark.parametrize("change", ["import", "reload", "acl", "delete"])
async def test_every_way_in_which_rules_change(version: int, change: str) -> None:
    access = {**ACCESS, "no_match": "deny" if change == "delete" else "allow"}
    allow = {"login": "ann", "topic": "secret/a", "action": "sub", "allow": True}
    async with managed_node(access=access) as node:
        await node.api.post("/broker_acl", allow)
        ann = await enter(node, version)
        await ann.subscribe("secret/a")
        if change == "import":
            rule = {"login": "ann", "topic": "secret/a", "action": "sub", "allow": False, "type": "username"}
            rule["type_value"] = "ann"
            body = {"version": "4.1", "acl_mnesia": [{k: v for k, v in rule.items() if not k.startswith("type")}]}
            reply = await node.api.post("/data/import", body)
            assert reply.code == 0, reply.text
        elif change == "reload":
            rules = [{"allow": False, "topics": ["secret/a"]}]
            now = {**access, "rules": rules, "authorizers": ["configuration", "stored"]}
            changed = msgspec.convert(now, type(node.settings.access))
            node.server.reload(msgspec.structs.replace(node.settings, access=changed))
        elif change == "acl":
            await node.api.post("/acl", {"username": "ann", "topic": "secret/a", "action": "sub", "access": "deny"})
        else:
            assert (await node.api.delete("/broker_acl/ann/secret%2Fa")).code == 0
        await reviewed(node)
        assert await filters_of(node) == []


@five
async def test_what_an_operator_subscribed_to_stays(version: int, tmp_path: Path) -> None:
    """As no rule was asked when it was made; until the client asks for it itself, and may."""
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(access=ACCESS, **config) as node:
        ann = await enter(node, version)
        assert (await node.api.post("/mqtt/subscribe", {"clientid": "ann", "topic": "secret/a", "qos": 1})).code == 0
        await node.api.post("/broker_acl", DENY)
        await reviewed(node)
        await ann.subscribe("open")
        await ann.send(Subscribe(77, [TopicFilter("secret/a", 1)]))
        assert (await ann.answer(Suback, packet_id=77)).reason_codes[0] >= 0x80
        assert await filters_of(node) == ["open", "secret/a"]
    async with managed_node(access=ACCESS, **config) as node:
        await enter(node, version)
        await reviewed(node)
        assert await filters_of(node) == ["open", "secret/a"]


@five
async def test_a_service_is_asked_again(version: int) -> None:
    async with auth_service() as service:
        http = {"acl_url": service.url("/acl")}
        async with managed_node(access={**ACCESS, "http": http}) as node:
            ann = await enter(node, version)
            await ann.subscribe("a", "b")
            service.replies["/acl"] = lambda question: 403 if question["topic"] == "a" else 200
            assert (await node.api.delete("/acl-cache")).code == 0
            await reviewed(node)
            assert await filters_of(node) == ["b"]
            # The session that comes back, too.
            await ann.drop()
            service.replies["/acl"] = 403
            await enter(node, version)
            assert await filters_of(node) == []


@five
async def test_rules_that_change_while_many_filters_are_subscribed_to(version: int) -> None:
    """What a service allowed before is judged by what is in force after it."""
    async with auth_service() as service:
        http = {"acl_url": service.url("/acl")}
        async with managed_node(access={**ACCESS, "http": http}) as node:
            ann = await enter(node, version)
            rules = node.server.stored_rules

            def deny(client: object, subscription: Subscription, new: bool) -> None:
                if subscription.filter == "open/0":
                    rules.append("username", "ann", "secret/#", "sub", False, 0.0)
                    node.server.access.authorization.forget_decisions()

            node.server.hooks.session_subscribed.add(deny)
            filters = [f"open/{number}" for number in range(2 * FILTERS_PER_ITERATION)]
            await ann.send(Subscribe(77, [TopicFilter(each, 1) for each in (*filters, "secret/a")]))
            await ann.answer(Suback, packet_id=77)
            await reviewed(node)
            assert "secret/a" not in await filters_of(node)


@five
async def test_a_service_that_is_away_takes_nothing_from_anybody(version: int) -> None:
    """Nor is anything delivered that it was not asked about: who comes back is told that the service is unavailable."""
    async with auth_service() as service:
        http = {"acl_url": service.url("/acl")}
        async with managed_node(access={**ACCESS, "http": http, "cache": False}) as node:
            ann = await enter(node, version)
            await ann.subscribe("a")
            service.replies["/acl"] = 503
            await node.api.delete("/acl-cache")
            await reviewed(node)
            assert await filters_of(node) == ["a"]
            await ann.drop()
            again = node.peer(version)
            await again.connect("ann", False, username="ann", password=PASSWORD, expect=None)
            assert again.connack.reason_code == (0x88 if version == 5 else 3)
            assert await filters_of(node) == ["a"]
            service.replies["/acl"] = 200
            await enter(node, version)
            assert await filters_of(node) == ["a"]


async def test_a_review_that_fails_keeps_no_other_session_from_being_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node(access=ACCESS) as node:
        await node.leave_session("first", "secret/a", username="ann", password=PASSWORD)
        await node.leave_session("second", "secret/a", username="ann", password=PASSWORD)
        judge = SessionReview._authorize_all

        def failing(review: SessionReview) -> Iterator[None]:
            if review.session.client_id == "first":
                raise RuntimeError("on purpose")
            yield from judge(review)

        with monkeypatch.context() as patch:
            patch.setattr(SessionReview, "_authorize_all", failing)
            await node.api.post("/broker_acl", DENY)
            await reviewed(node)
        (complaint,) = node._complaints.records
        assert "review_failed client_id=first" in complaint
        node._complaints.records.clear()
        assert await filters_of(node, "first") == ["secret/a"] and await filters_of(node, "second") == []
        node.clock.shift += 11
        await node.server.tick()
        await reviewed(node)
        assert await filters_of(node, "first") == []


async def test_a_service_that_answers_later_is_asked_later() -> None:
    async with auth_service() as service:
        http = msgspec.to_builtins(HttpAccessSettings(acl_url=service.url("/acl")))
        async with managed_node(access={**ACCESS, "http": http, "cache": False}) as node:
            ann = await enter(node)
            await ann.subscribe("a")
            service.replies["/acl"] = 503
            await node.api.delete("/acl-cache")
            await reviewed(node)
            service.replies["/acl"] = 403
            node.clock.shift += 11
            await node.server.tick()
            await reviewed(node)
            assert await filters_of(node) == []


async def test_a_mount_point_that_is_another_one_now() -> None:
    """What was subscribed to below the old one is not within what the client may see."""
    async with managed_node(access=ACCESS, zone={"mountpoint": "here/"}) as node:
        ann = await enter(node)
        await ann.subscribe("a")
        (session,) = [each for each in node.server.broker.sessions if each.client_id == "ann"]
        (subscription,) = session.subscriptions.values()
        assert subscription.topic_filter == "here/a"
        await ann.drop()
        for facts in node.server._facts.values():
            facts.zone = msgspec.structs.replace(facts.zone, mountpoint="there/")
        await enter(node)
        assert await filters_of(node) == []
        (event,) = await told(node, "subscription_revoked")
        assert event["setting"] == "mountpoint"


@pytest.mark.parametrize("back", [False, True])
async def test_very_many_subscriptions_hold_the_loop_in_slices_only(back: bool) -> None:
    zone = {"max_subscriptions": 0}
    async with managed_node(access=ACCESS, zone=zone, durability={"level": "memory"}) as node:
        ann = await enter(node)
        for start in range(0, MANY, 1000):
            await ann.subscribe(*[f"secret/{number}" for number in range(start, start + 1000)], qos=1)
        longest = 0.0
        done = False

        async def watch() -> None:
            """How long a turn of the loop takes, in processor time: other programs' is not ours."""
            nonlocal longest
            before = time.thread_time()
            while not done:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest = max(longest, now - before)
                before = now

        if back:
            node.server.access.authorization.on_change = lambda: None
            await ann.drop()
        await node.api.post("/broker_acl", DENY)
        # As a node does: what is there is not looked at again by the garbage collector.
        gc.collect()
        gc.freeze()
        watching = asyncio.create_task(watch())
        if back:
            again = node.peer(5)
            await again.open()
            await again.send(Connect(5, "ann", False, 60, "ann", PASSWORD, None, {17: 3600}, False))
            await again.expect(Connack, 60, session_present=True)
        else:
            async with asyncio.timeout(patience(60)):
                while node.server.context.reviews.busy:
                    await asyncio.sleep(0.01)
        done = True
        await watching
        gc.unfreeze()
        assert await filters_of(node) == []
        assert longest < 0.05
