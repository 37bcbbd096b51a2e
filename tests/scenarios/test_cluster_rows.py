"""What an operator stores on one node is in force on all: users, rules of access, bans, applications, rules, resources,
counted topics, traces."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from taipan.management.http.roles import role_for
from taipan.management.operations.caller import is_at_least
from tests.support.api import ApiClient, assert_refused, connect_code, segment
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.http_sink import HttpSink
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

BAD_USER_NAME_OR_PASSWORD = 0x86
NOT_AUTHORIZED = 0x87
BANNED = 0x8A
ADMINISTRATIVE_ACTION = 0x98


def both(**options: Any) -> Any:
    return cluster_nodes(2, managed=True, **options)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.005)


def apis(cluster: ClusterNodes) -> tuple[ApiClient, ApiClient]:
    return cluster.managed_node(0).api, cluster.managed_node(1).api


async def test_a_user_is_let_in_by_every_node_and_no_more_when_deleted() -> None:
    async with both(access={"unknown_user": "refuse"}) as cluster:
        a, b = apis(cluster)
        for name in ("u", "other"):
            assert (await a.post("/auth_username", {"username": name, "password": "secret"})).code == 0
        await until(lambda: cluster[1].server.stored_users.count("username") == 2)
        client = await cluster[1].client("c", username="u", password=b"secret")
        assert await connect_code(cluster[1], "d", "u", b"wrong") == BAD_USER_NAME_OR_PASSWORD
        assert (await a.delete("/auth_username/u")).code == 0
        await client.expect_disconnect(NOT_AUTHORIZED)
        assert (await b.get("/auth_username/u")).data in ([], {})
        assert await connect_code(cluster[1], "c", "u", b"secret") == BAD_USER_NAME_OR_PASSWORD


async def test_who_loses_the_right_of_a_superuser_is_checked_on_every_node() -> None:
    async with both(access={"no_match": "deny"}) as cluster:
        a, _ = apis(cluster)
        login = {"login": "u", "password": "secret", "is_superuser": True}
        assert (await a.post("/auth_user", login)).code == 0
        await until(lambda: cluster[1].server.stored_users.has_users)
        client = await cluster[1].client("c", username="u", password=b"secret")
        await client.subscribe("t")
        assert (await a.put("/auth_user/u", {"password": "secret", "is_superuser": False})).code == 0
        session = cluster[1].server.broker.sessions.get("c")
        assert session is not None
        await until(lambda: not session.subscriptions)


async def test_a_rule_of_access_ends_subscriptions_on_every_node_of_who_is_there_and_of_who_comes_back() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        here = await cluster[1].client("here")
        await here.subscribe("secret/1")
        await cluster[1].leave_session("away", "secret/2")
        deny = {"topic": "secret/#", "action": "sub", "access": "deny", "all": "$all"}
        assert (await a.post("/acl", deny)).code == 0
        sessions = cluster[1].server.broker.sessions
        await until(lambda: not any(session.subscriptions for session in sessions))
        assert [each["topic"] for each in (await b.get("/acl/$all")).data] == ["secret/#"]
        assert (await b.delete("/acl/$all/topic/secret%2F%23")).code == 0
        await until(lambda: not len(cluster[0].server.stored_rules))
        await here.subscribe("secret/1")


async def test_rules_of_access_that_are_added_on_both_nodes_at_once_are_all_there() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        rule = {"action": "sub", "access": "deny", "username": "u"}
        replies = await asyncio.gather(
            *(
                api.post("/acl", {**rule, "topic": f"{name}/{n}"})
                for n in range(10)
                for name, api in (("a", a), ("b", b))
            )
        )
        assert all(reply.code == 0 for reply in replies)
        both_rules = [cluster[number].server.stored_rules for number in (0, 1)]
        await until(lambda: all(len(each) == 20 for each in both_rules))
        assert both_rules[0].of("username", "u") == both_rules[1].of("username", "u")


async def test_a_ban_keeps_a_client_from_every_node_until_it_is_lifted_anywhere() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        assert (await a.post("/banned", {"as": "peerhost", "who": "127.0.0.1"})).code == 0
        await until(lambda: len(cluster[1].server.banned))
        assert await connect_code(cluster[1], "c") == BANNED
        assert (await b.delete("/banned/peerhost/127.0.0.1")).code == 0
        await until(lambda: not len(cluster[0].server.banned))
        assert await connect_code(cluster[0], "c") == 0


@pytest.mark.parametrize("kind, who", [("clientid", "c"), ("username", "u"), ("peerhost", "127.0.0.1")])
async def test_a_ban_ends_the_session_on_the_node_that_has_it(kind: str, who: str) -> None:
    async with both() as cluster:
        a, _ = apis(cluster)
        client = await cluster[1].client("c", username="u", password=b"secret")
        await cluster[1].leave_session("away", "t")
        assert (await a.post("/banned", {"as": kind, "who": who, "kick": True})).code == 0
        await client.expect_disconnect(ADMINISTRATIVE_ACTION)
        assert cluster[1].server.metrics.disconnects.snapshot()["banned"] == 1
        sessions = cluster[1].server.broker.sessions
        await until(lambda: "c" not in sessions)
        if kind == "peerhost":
            await until(lambda: "away" not in sessions)
        else:
            assert "away" in sessions


async def test_a_delayed_message_of_a_client_that_is_banned_on_another_node_is_dropped() -> None:
    async with both() as cluster:
        a, _ = apis(cluster)
        client = await cluster[1].client("c")
        await client.publish("$delayed/100/t", b"x", 1)
        assert (await a.post("/banned", {"as": "clientid", "who": "c"})).code == 0
        await client.expect_disconnect(ADMINISTRATIVE_ACTION)
        await cluster[1].pass_time(101)
        refusals = cluster[1].server.metrics.refusals
        await until(lambda: refusals.snapshot().get("delayed_banned") == 1)


async def test_an_application_is_let_in_by_every_node() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        secret = (await a.post("/apps", {"app_id": "mine", "name": "n"})).data["secret"]
        other = ApiClient(b.url, app=("mine", secret))
        try:
            async with asyncio.timeout(patience(40)):
                while (await other.get("/banned")).status == 401:
                    pass
            assert (await a.delete("/apps/mine")).code == 0
            async with asyncio.timeout(patience(40)):
                while (await other.get("/banned")).status != 401:
                    pass
        finally:
            await other.close()


async def test_a_rule_runs_on_every_node_and_counts_there_by_itself() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        republish = {"name": "republish", "params": {"target_topic": "out/${topic}"}}
        body = {"id": "r", "rawsql": 'SELECT * FROM "t/#"', "actions": [republish]}
        assert (await a.post("/rules", body)).code == 0
        engines = [cluster.managed_node(number).engine for number in (0, 1)]
        await until(lambda: "r" in engines[1].rules and engines[1].rules.get("r").running)
        client = await cluster[1].client("c")
        await client.subscribe("out/#")
        await client.publish("t/1", b"x", qos=1)
        assert (await client.expect_publish()).topic == "out/t/1"
        assert engines[1].rules.get("r").counters.matched == 1
        assert engines[0].rules.get("r").counters.matched == 0

        assert (await a.put("/rules/r", {"enabled": False})).code == 0
        await until(lambda: not engines[1].rules.get("r").running)
        await client.publish("t/2", b"x", qos=1)
        assert (await b.put("/rules/r", {"enabled": True})).code == 0
        await until(lambda: engines[0].rules.get("r").running)
        assert engines[1].rules.get("r").counters.matched == 1
        assert (await a.delete("/rules/r")).code == 0
        await until(lambda: "r" not in engines[1].rules)
        assert (await b.get("/rules/r")).status == 404


async def test_a_resource_and_the_rule_on_it_run_on_every_node() -> None:
    sink = await HttpSink().start()
    async with both() as cluster:
        a, b = apis(cluster)
        resource = {"id": "w", "type": "web_hook", "config": {"url": sink.url}}
        assert (await a.post("/resources", resource)).code == 0
        send = {"name": "data_to_webserver", "params": {"$resource": "w"}}
        body = {"id": "r", "rawsql": 'SELECT * FROM "t"', "actions": [send]}
        assert (await a.post("/rules", body)).code == 0
        engines = [cluster.managed_node(number).engine for number in (0, 1)]
        await until(lambda: "r" in engines[1].rules and engines[1].rules.get("r").running)
        client = await cluster[1].client("c")
        await client.publish("t", b"x", qos=1)
        await until(lambda: sink.bodies)
        assert (await b.delete("/rules/r")).code == 0
        await until(lambda: "r" not in engines[0].rules)
        assert (await b.delete("/resources/w")).code == 0
        await until(lambda: "w" not in engines[0].resources)
    await sink.stop()


async def test_counted_topics_and_traces_are_those_of_all_nodes() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        assert (await a.post("/topic-metrics", {"topic": "t"})).code == 0
        assert (await a.post("/trace", {"name": "x", "type": "clientid", "clientid": "c"})).code == 0
        tracing = cluster[1].server.tracing
        await until(lambda: tracing.get("x") is not None)
        await until(lambda: "t" in cluster.managed_node(1).management.operations.topic_metrics.module)
        await connect_code(cluster[1], "c")
        await until(lambda: (tracing.flush(), tracing.size("x"))[1] > 0)
        assert (await b.delete("/trace/x")).code == 0
        await until(lambda: cluster[0].server.tracing.get("x") is None)


CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/auth_username", {"username": "v", "password": "secret"}),
    ("DELETE", "/auth_username/u", None),
    ("POST", "/acl", {"topic": "t", "action": "sub", "access": "deny", "all": "$all"}),
    ("POST", "/banned", {"as": "clientid", "who": "c"}),
    ("POST", "/apps", {"app_id": "mine", "name": "n"}),
    ("POST", "/rules", {"rawsql": 'SELECT * FROM "t"', "actions": [{"name": "do_nothing", "params": {}}]}),
    ("PUT", "/rules/r", {"enabled": False}),
    ("DELETE", "/rules/r", None),
    ("POST", "/resources", {"type": "web_hook", "config": {"url": "http://127.0.0.1:9/"}}),
    ("POST", "/topic-metrics", {"topic": "t"}),
    ("POST", "/trace", {"name": "x", "type": "clientid", "clientid": "c"}),
]


async def test_without_a_quorum_every_change_is_refused_with_101_and_nothing_changes() -> None:
    async with both() as cluster:
        a, _ = apis(cluster)
        assert (await a.post("/auth_username", {"username": "u", "password": "secret"})).code == 0
        body = {"id": "r", "rawsql": 'SELECT * FROM "t"', "actions": [{"name": "do_nothing", "params": {}}]}
        assert (await a.post("/rules", body)).code == 0
        before = list(cluster[0].server.tables.shared())
        cluster.partition({0}, {1}, quorum=None)
        await until(lambda: not cluster.clients[0].quorum)
        for method, path, given in CHANGES:
            assert_refused(await a.ask(method, path, given), 500, 101, "quorum")
        assert list(cluster[0].server.tables.shared()) == before
        cluster.heal()
        await until(lambda: cluster.clients[0].quorum)
        for method, path, given in CHANGES:
            assert (await a.ask(method, path, given)).code == 0, path


async def test_an_import_on_one_node_is_one_everywhere() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        assert (await a.post("/auth_username", {"username": "u", "password": "secret"})).code == 0
        deny = {"topic": "t", "action": "sub", "access": "deny", "all": "$all"}
        assert (await a.post("/acl", deny)).code == 0
        file = (await a.post("/data/export")).data["filename"]
        exported = (await a.get(f"/data/file/{segment(file)}")).json
        assert (await a.delete("/auth_username/u")).code == 0
        assert (await b.delete("/acl/$all/topic/t")).code == 0
        await until(lambda: not len(cluster[0].server.stored_rules) and not cluster[1].server.stored_users.has_users)
        assert (await b.post("/data/import", exported)).code == 0
        await until(lambda: len(cluster[0].server.stored_rules) == 1 and cluster[0].server.stored_users.has_users)
        assert await connect_code(cluster[0], "c", "u", b"secret") == 0


async def test_a_rule_that_two_nodes_change_at_once_is_changed_by_one_and_the_other_operator_is_told() -> None:
    async with both() as cluster:
        a, b = apis(cluster)
        body = {"id": "r", "rawsql": 'SELECT * FROM "t"', "actions": [{"name": "do_nothing", "params": {}}]}
        assert (await a.post("/rules", body)).code == 0
        engines = [cluster.managed_node(number).engine for number in (0, 1)]
        await until(lambda: "r" in engines[1].rules)
        cluster.hub.delay = (0.02, 0.02)
        replies = await asyncio.gather(a.put("/rules/r", {"description": "a"}), b.put("/rules/r", {"description": "b"}))
        assert sorted(reply.code for reply in replies) == [0, 101]
        (lost,) = [reply for reply in replies if reply.code == 101]
        assert_refused(lost, 500, 101, "another node changed the same")
        winner = "a" if replies[0].code == 0 else "b"
        await until(lambda: {each.rules.get("r").stored.description for each in engines} == {winner})


async def test_rows_are_there_after_all_nodes_were_killed_and_nats_has_lost_its_data() -> None:
    async with both(level="disk") as cluster:
        a, _ = apis(cluster)
        assert (await a.post("/auth_username", {"username": "u", "password": "secret"})).code == 0
        await until(lambda: cluster[1].server.stored_users.has_users)
        assert await cluster[1].server.tables.stored()
        await cluster.kill(0)
        await cluster.kill(1)
        cluster.hub.lose_bucket("rows")
        await cluster.start(1)
        await cluster.start(0)
        assert all(cluster[number].server.stored_users.has_users for number in (0, 1))


async def test_a_role_of_the_dashboard_applies_on_every_node() -> None:
    async with both(access={"hash_cost": 10}) as cluster:
        a, b = (cluster.managed_node(each).management.operations for each in (0, 1))
        await a.dashboard_users.add("olga", "pass-word-1", role="operator")
        await until(lambda: b.dashboard_users.get("olga") is not None)
        user = await b.dashboard_users.log_in("olga", "pass-word-1", "127.0.0.1")
        caller = b.dashboard_sessions.begin(user, "127.0.0.1")
        assert caller.role == "operator" and is_at_least(caller.role, role_for("DELETE", "/clients/{clientid}"))
        assert not is_at_least(caller.role, role_for("PUT", "/users/{name}"))
        # Another role on one node ends the login on the other; the next one has it.
        await a.dashboard_users.update("olga", role="viewer")
        await until(lambda: b.dashboard_sessions.find(caller.token, "127.0.0.1") is None)
        assert caller.ended() == "user_changed"
        user = await b.dashboard_users.log_in("olga", "pass-word-1", "127.0.0.1")
        assert b.dashboard_sessions.begin(user, "127.0.0.1").role == "viewer"
