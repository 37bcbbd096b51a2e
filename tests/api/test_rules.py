"""/rules and /rule_events, each row of the specification's table Rule."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.persistence.group_commit import GroupCommit
from tests.support.api import ManagedNode, assert_refused, managed_node, segment

pytestmark = pytest.mark.asyncio

INSPECT = {"name": "inspect", "params": {}}
REPUBLISH = {
    "name": "republish",
    "params": {"target_topic": "repub/to/${clientid}"},
    "fallbacks": [{"name": "inspect", "params": {}}],
}
NOTHING = {"name": "do_nothing", "params": {}}
SQL = 'SELECT payload.x as x FROM "t/#" WHERE x > 1'
ALL = 'SELECT * FROM "t/#"'


async def new_rule(node: ManagedNode, rawsql: str = SQL, *actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    reply = await node.api.post("/rules", {"rawsql": rawsql, "actions": actions or [NOTHING], **more})
    record: dict[str, Any] = reply.data
    return record


async def rule(node: ManagedNode, rule_id: str) -> dict[str, Any]:
    record: dict[str, Any] = (await node.api.get(f"/rules/{segment(rule_id)}")).data
    return record


# What a rule is


@pytest.mark.parametrize(
    "field, value",
    [
        ("id", "rule:mine"),
        ("rawsql", SQL),
        ("for", ["t/#"]),
        ("enabled", True),
        ("description", "what it is for"),
        ("on_action_failed", "stop"),
    ],
)
async def test_every_field(field: str, value: Any) -> None:
    async with managed_node() as node:
        made = await new_rule(node, id="rule:mine", description="what it is for", on_action_failed="stop")
        assert made[field] == value
        assert (await rule(node, "rule:mine"))[field] == value
        assert [each[field] for each in (await node.api.get("/rules")).data] == [value]


@pytest.mark.parametrize("field", ["node", "matched", "speed", "speed_max", "speed_last5m"])
@pytest.mark.parametrize("version", [4, 5])
async def test_every_metric_of_a_rule(field: str, version: int) -> None:
    async with managed_node() as node:
        await node.stand_still()
        made = await new_rule(node)
        (before,) = made["metrics"]
        assert before[field] == (node.name if field == "node" else 0)
        client = await node.client("c1", version)
        for payload in (b'{"x":2}', b'{"x":3}', b'{"x":1}', b"no JSON"):
            await client.publish("t/1", payload, 1)
        await node.pass_time(10)
        (metrics,) = (await rule(node, made["id"]))["metrics"]
        wanted: dict[str, Any] = {
            "node": node.name, "matched": 2, "speed": 0.2, "speed_max": 0.2, "speed_last5m": 0.2,
        }  # fmt: skip
        assert metrics[field] == wanted[field] and type(metrics[field]) is type(wanted[field])
        # Beyond the specification, as EMQX 4.4 has it.
        assert (metrics["evaluated"], metrics["passed"]) == (4, 2)
        assert (metrics["failed"], metrics["no_result"], metrics["exception"]) == (2, 1, 1)
        await node.pass_time(10)
        (metrics,) = (await rule(node, made["id"]))["metrics"]
        assert (metrics["speed"], metrics["speed_max"], metrics["speed_last5m"]) == (0.0, 0.2, 0.1)


@pytest.mark.parametrize("field", ["id", "name", "params", "metrics"])
async def test_every_field_of_an_action(field: str) -> None:
    async with managed_node() as node:
        params = {"target_topic": "out", "target_qos": 1}
        made = await new_rule(node, ALL, {"name": "republish", "params": params, "fallbacks": [INSPECT]})
        (action,) = made["actions"]
        (fallback,) = action["fallbacks"]
        assert re.fullmatch(r"republish_[0-9]+", action["id"]) and re.fullmatch(r"inspect_[0-9]+", fallback["id"])
        wanted = {
            "id": action["id"],
            "name": "republish",
            "params": {"target_retain": False, "payload_tmpl": "${payload}", **params},
            "metrics": [{"node": node.name, "success": 0, "failed": 0, "taken": 0}],
        }
        assert action[field] == wanted[field]
        assert (await rule(node, made["id"]))["actions"][0][field] == wanted[field]


@pytest.mark.parametrize("field, value", [("node", None), ("success", 2), ("failed", 1)])
async def test_every_metric_of_an_action(field: str, value: Any) -> None:
    async with managed_node() as node:
        made = await new_rule(
            node,
            'SELECT payload, payload.to as to FROM "in"',
            {"name": "republish", "params": {"target_topic": "${to}"}},
        )
        client = await node.client("c1", 4)
        for payload in (b'{"to":"a"}', b'{"to":"b"}', b'{"to":"a/#"}'):
            await client.publish("in", payload, 1)
        record = await rule(node, made["id"])
        (metrics,) = record["actions"][0]["metrics"]
        assert metrics[field] == (value if value is not None else node.name)
        assert metrics["taken"] == 3
        assert "a/#" in record["actions"][0]["last_error"]["reason"]


async def test_generated_ids() -> None:
    async with managed_node() as node:
        ids = {(await new_rule(node))["id"] for _ in range(5)}
        assert len(ids) == 5 and all(re.fullmatch(r"rule:[0-9a-f]{8}", each) for each in ids)


@pytest.mark.parametrize("version", [4, 5])
async def test_what_went_wrong_last_is_told(version: int) -> None:
    async with managed_node() as node:
        made = await new_rule(node)
        assert "last_error" not in made
        client = await node.client("c1", version)
        await client.publish("t/1", b"no JSON", 1)
        error = (await rule(node, made["id"]))["last_error"]
        assert "JSON" in error["reason"] and error["sample"] == '"no JSON"' and error["clause"]
        assert abs(error["at"] / 1000 - node.clock.now()) < 60
        await node.api.put(f"/rules/{made['id']}/reset_metrics")
        assert "last_error" not in await rule(node, made["id"])


# GET /rules


async def test_listing_without_and_with_pages() -> None:
    async with managed_node() as node:
        empty = await node.api.get("/rules")
        assert empty.data == [] and empty.meta["count"] == 0
        ids = [(await new_rule(node, id=f"rule:{number}"))["id"] for number in range(5)]
        reply = await node.api.get("/rules")
        assert [each["id"] for each in reply.data] == ids[::-1]
        assert reply.meta == {"page": 1, "limit": 10_000, "count": 5, "hasnext": False}
        reply = await node.api.get("/rules", _page=2, _limit=2)
        assert [each["id"] for each in reply.data] == ["rule:2", "rule:1"]
        assert reply.meta == {"page": 2, "limit": 2, "count": 5, "hasnext": True}
        reply = await node.api.get("/rules", enable_paging="false")
        assert [each["id"] for each in reply.data] == ids and "meta" not in reply.json
        assert_refused(await node.api.get("/rules", _page="x"), 400, 108)


@pytest.mark.parametrize(
    "condition, value, found",
    [
        ("enabled", "true", ["rule:a", "rule:b"]),
        ("enabled", "false", ["other"]),
        ("for", "t/1", ["rule:b"]),
        ("for", "t", []),
        ("_like_id", "rule:", ["rule:a", "rule:b"]),
        ("_like_for", "/1", ["rule:b"]),
        ("_match_for", "t/+", ["rule:b"]),
        ("_match_for", "$events/#", ["other"]),
        ("_like_description", "pump", ["rule:a", "other"]),
    ],
)
async def test_filter(condition: str, value: str, found: list[str]) -> None:
    async with managed_node() as node:
        await new_rule(node, 'SELECT * FROM "x/+/y"', id="rule:a", description="a pump")
        await new_rule(node, 'SELECT * FROM "t/1", "u"', id="rule:b", description="a valve")
        await new_rule(node, 'SELECT * FROM "$events/client_connected"', id="other", description="pumps", enabled=False)
        reply = await node.api.get("/rules", **{condition: value})
        assert [each["id"] for each in reply.data] == found[::-1]
        assert reply.meta["count"] == -1
        plain = await node.api.get("/rules", **{condition: value, "enable_paging": "false"})
        assert [each["id"] for each in plain.data] == found


@pytest.mark.parametrize("condition, value, code", [("enabled", "maybe", 108), ("_match_for", "a/#/b", 115)])
async def test_a_filter_that_is_none(condition: str, value: str, code: int) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/rules", **{condition: value}), 400, code)


# One unknown rule


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("GET", "/rules/rule:none", None),
        ("PUT", "/rules/rule:none", {"enabled": False}),
        ("DELETE", "/rules/rule:none", None),
        ("PUT", "/rules/rule:none/reset_metrics", None),
        ("GET", "/rules/rule:none/trace", None),
        ("PUT", "/rules/rule:none/trace", {"size": 5}),
    ],
)
async def test_an_unknown_rule(method: str, path: str, body: Any) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.ask(method, path, body), 404, 102, "rule:none")


# POST /rules


@pytest.mark.parametrize(
    "body, code, about",
    [
        ({"actions": []}, 107, "rawsql"),
        ({"rawsql": SQL}, 107, "actions"),
        ({"rawsql": SQL, "actions": [{"params": {}}]}, 107, "name"),
        ({"rawsql": SQL, "actions": [{"name": "inspect"}]}, 107, "params"),
        ({"rawsql": 5, "actions": []}, 108, "rawsql"),
        ({"rawsql": SQL, "actions": {}}, 108, "actions"),
        ({"rawsql": SQL, "actions": [5]}, 108, "actions[0]"),
        ({"rawsql": SQL, "actions": [{"name": "inspect", "params": [1]}]}, 108, "params"),
        ({"rawsql": SQL, "actions": [{"name": "inspect", "params": 5}]}, 108, "params"),
        ({"rawsql": SQL, "actions": [], "enabled": "no"}, 108, "enabled"),
        ({"rawsql": SQL, "actions": [], "description": 1}, 108, "description"),
        ({"rawsql": SQL, "actions": [], "id": ""}, 108, "id"),
        ({"rawsql": SQL, "actions": [], "id": "x" * 257}, 108, "id"),
        ({"rawsql": SQL, "actions": [], "on_action_failed": "panic"}, 108, "on_action_failed"),
        ({"rawsql": 'SELECT * FROM "x" WHERE', "actions": []}, 108, "line 1, column 24"),
        ({"rawsql": 'SELECT no_such(1) FROM "x"', "actions": []}, 108, "no_such"),
        ({"rawsql": 'SELECT * FROM "a/#/b"', "actions": []}, 108, "a/#/b"),
        ({"rawsql": 'SELECT * FROM "$events/nothing"', "actions": []}, 108, "$events/nothing"),
        (
            {"rawsql": ALL, "actions": [{"name": "republish", "params": {"target_topic": "a/+"}}]},
            108,
            "target_topic",
        ),
        (
            {"rawsql": ALL, "actions": [{"name": "republish", "params": {"target_topic": "a", "target_qos": 3}}]},
            108,
            "target_qos",
        ),
        (
            {"rawsql": ALL, "actions": [{"name": "republish", "params": {"target_topic": "${nothing}"}}]},
            108,
            "nothing",
        ),
        ({"rawsql": ALL, "actions": [{"name": "republish", "params": {}}]}, 107, "target_topic"),
        ({"rawsql": ALL, "actions": [{"name": "republish", "params": []}]}, 107, "target_topic"),
        ({"rawsql": ALL, "actions": [{"name": "republish", "params": {"target_qos": 1}}]}, 107, "target_topic"),
        ({"rawsql": SQL, "actions": [{"name": "data_to_webserver", "params": {}}]}, 107, "$resource"),
        ([], 108, ""),
    ],
)
async def test_a_wrong_rule_is_refused(body: Any, code: int, about: str) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/rules", body), 400, code, about)
        assert (await node.api.get("/rules")).data == []


@pytest.mark.parametrize(
    "action, about",
    [
        ({"name": "no_such", "params": {}}, "no_such"),
        ({"name": "data_to_redi", "params": {}}, "data_to_redi; did you mean data_to_redis?"),
        ({"name": "data_to_webserver", "params": {"$resource": "resource:none"}}, "resource:none"),
    ],
)
async def test_what_a_rule_names_and_is_not_there(action: dict[str, Any], about: str) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/rules", {"rawsql": SQL, "actions": [action]}), 404, 102, about)


async def test_a_body_that_is_no_json() -> None:
    async with managed_node() as node:
        assert_refused(await node.api.ask("POST", "/rules", raw=b"{"), 400, 109)


@pytest.mark.parametrize(
    "params",
    [
        pytest.param(b"[" * 100 + b"]" * 100, id="deep"),
        pytest.param(b"1" + b"0" * 30, id="too long an integer"),
    ],
)
async def test_params_that_could_not_be_kept(params: bytes) -> None:
    async with managed_node() as node:
        start = b'{"rawsql":"SELECT * FROM \\"t\\"","actions":[{"name":"inspect","params":{"a":'
        assert_refused(await node.api.ask("POST", "/rules", raw=start + params + b"}}]}"), 400, 108, "actions")


async def test_an_id_that_is_taken() -> None:
    async with managed_node() as node:
        await new_rule(node, id="rule:1", description="first")
        assert_refused(
            await node.api.post("/rules", {"id": "rule:1", "rawsql": SQL, "actions": []}), 400, 113, "rule:1"
        )
        assert (await rule(node, "rule:1"))["description"] == "first"


async def test_an_odd_id_in_the_path() -> None:
    async with managed_node() as node:
        await new_rule(node, id="a/b c:é")
        assert (await rule(node, "a/b c:é"))["rawsql"] == SQL
        assert (await node.api.delete(f"/rules/{segment('a/b c:é')}")).json == {"code": 0}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_rule_without_actions_and_one_made_disabled(version: int) -> None:
    async with managed_node() as node:
        bare = (await node.api.post("/rules", {"rawsql": SQL, "actions": []})).data
        off = await new_rule(node, enabled=False)
        assert bare["actions"] == [] and bare["enabled"] is True and off["enabled"] is False
        assert (off["description"], off["on_action_failed"]) == ("", "continue")
        await (await node.client("c1", version)).publish("t/1", b'{"x":2}', 1)
        assert (await rule(node, bare["id"]))["metrics"][0]["matched"] == 1
        assert (await rule(node, off["id"]))["metrics"][0]["matched"] == 0


# PUT /rules/{id}


@pytest.mark.parametrize(
    "field, value",
    [
        ("rawsql", 'SELECT topic FROM "u/1"'),
        ("actions", [{"name": "do_nothing", "params": {}}]),
        ("description", "another"),
        ("enabled", False),
        ("on_action_failed", "stop"),
    ],
)
async def test_what_is_given_changes_and_the_rest_stays(field: str, value: Any) -> None:
    async with managed_node() as node:
        await node.stand_still()  # no tick at which speeds are measured
        made = await new_rule(node, SQL, INSPECT, description="one")
        client = await node.client("c1", 4)
        await client.publish("t/1", b'{"x":2}', 1)
        before = await rule(node, made["id"])
        after = (await node.api.put(f"/rules/{made['id']}", {field: value})).data
        assert after == await rule(node, made["id"])
        if field == "actions":
            assert [each["name"] for each in after["actions"]] == ["do_nothing"]
            # Its place is the same, so it goes on counting there.
            assert after["actions"][0]["metrics"][0]["success"] == 1
        else:
            assert after[field] == value and after["actions"] == before["actions"]
        changed = {field, "for"} if field == "rawsql" else {field}
        assert {key for key in before if before[key] != after[key]} == changed
        assert after["for"] == (["u/1"] if field == "rawsql" else ["t/#"])


@pytest.mark.parametrize("version", [4, 5])
async def test_what_was_read_can_be_written_back(version: int) -> None:
    async with managed_node() as node:
        await node.stand_still()  # no tick at which speeds are measured
        made = await new_rule(node, ALL, REPUBLISH, NOTHING)
        await (await node.client("c1", version)).publish("t/1", b"x", 1)
        before = await rule(node, made["id"])
        after = (await node.api.put(f"/rules/{made['id']}", {**before, "description": "changed"})).data
        # The same actions are not made anew: their ids stay.
        assert after == {**before, "description": "changed"}


async def test_transition_enabled() -> None:
    """States and transitions: a disabled rule is asked no more; enabled again it is."""
    async with managed_node() as node:
        made = await new_rule(node)
        client = await node.client("c1", 5)
        counts = []
        for enabled in (True, False, True):
            assert (await node.api.put(f"/rules/{made['id']}", {"enabled": enabled})).data["enabled"] is enabled
            await client.publish("t/1", b'{"x":2}', 1)
            counts.append((await rule(node, made["id"]))["metrics"][0]["matched"])
        assert counts == [1, 1, 2]


@pytest.mark.parametrize(
    "changes, code, about",
    [
        ({"enabled": "x"}, 108, "enabled"),
        ({"rawsql": "SELECT"}, 108, "rawsql"),
        ({"actions": [{"name": "inspect"}]}, 107, "params"),
        ({"description": None}, 108, "description"),
        ([], 108, ""),
    ],
)
async def test_a_wrong_change_changes_nothing(changes: Any, code: int, about: str) -> None:
    async with managed_node() as node:
        made = await new_rule(node)
        assert_refused(await node.api.put(f"/rules/{made['id']}", changes), 400, code, about)
        assert_refused(
            await node.api.put(f"/rules/{made['id']}", {"actions": [{"name": "no_such", "params": {}}]}), 404, 102
        )
        assert await rule(node, made["id"]) == made


async def test_reset_metrics() -> None:
    async with managed_node() as node:
        made = await new_rule(node)
        await (await node.client("c1", 4)).publish("t/1", b'{"x":2}', 1)
        assert (await rule(node, made["id"]))["actions"][0]["metrics"][0]["success"] == 1
        assert (await node.api.put(f"/rules/{made['id']}/reset_metrics")).json == {"code": 0}
        assert await rule(node, made["id"]) == made


# DELETE /rules/{id}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_deleted_rule_is_gone(version: int) -> None:
    async with managed_node() as node:
        made = await new_rule(node, 'SELECT * FROM "in"', {"name": "republish", "params": {"target_topic": "out"}})
        client = await node.client("c1", version)
        await client.subscribe("out", qos=1)
        await client.publish("in", b"one", 1)
        await client.expect_publish("out", b"one")
        reply = await node.api.delete(f"/rules/{segment(made['id'])}")
        assert (reply.status, reply.json) == (200, {"code": 0})
        await client.publish("in", b"two", 1)
        await client.nothing()
        assert_refused(await node.api.get(f"/rules/{made['id']}"), 404, 102)


# Trying SQL


@pytest.mark.parametrize("where", ["query", "body"])
async def test_sql_is_tried(where: str) -> None:
    async with managed_node() as node:
        body: dict[str, Any] = {
            "rawsql": 'SELECT payload.a as a, topic, username FROM "t/#"',
            "ctx": {"topic": "t/1", "payload": '{"a":1}'},
        }
        query = {"test": "true"} if where == "query" else {}
        if where == "body":
            body["test"] = True
        row = (await node.api.post("/rules", body, **query)).data
        assert row == {"a": 1, "topic": "t/1", "username": "u_emqx"}
        body["rawsql"] = 'FOREACH payload.l as e DO e.v as v FROM "t/1"'
        body["ctx"]["payload"] = '{"l":[{"v":1},{"v":2}]}'
        assert (await node.api.post("/rules", body, **query)).data == [{"v": 1}, {"v": 2}]
        assert (await node.api.get("/rules")).data == []


@pytest.mark.parametrize(
    "body, status, code, about",
    [
        ({"rawsql": "selec", "ctx": {}}, 400, 108, "line 1"),
        ({"rawsql": 'SELECT * FROM "a"', "ctx": {"topic": "b"}}, 404, 102, "SQL Not Match"),
        ({"rawsql": 'SELECT * FROM "a"', "ctx": []}, 400, 108, "ctx"),
        ({"rawsql": 'SELECT payload.a as a FROM "a"', "ctx": {"topic": "a", "payload": "x"}}, 400, 108, "JSON"),
        ({"ctx": {}}, 400, 107, "rawsql"),
    ],
)
async def test_sql_that_cannot_be_tried(body: Any, status: int, code: int, about: str) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.post("/rules", body, test="true"), status, code, about)


@pytest.mark.parametrize(
    "event",
    [
        "message_publish", "message_delivered", "message_acked", "message_dropped", "delivery_dropped",
        "client_connected", "client_disconnected", "client_connack", "session_subscribed", "session_unsubscribed",
        "client_check_acl_complete",
    ],
)  # fmt: skip
async def test_rule_event(event: str) -> None:
    async with managed_node() as node:
        listed = {each["event"]: each for each in (await node.api.get("/rule_events")).data}
        record = listed[f"$events/{event}"]
        assert set(record) == {"event", "title", "description", "columns", "test_columns", "sql_example"}
        assert all(set(record[key]) == {"zh", "en"} for key in ("title", "description"))
        assert set(record["test_columns"]) <= set(record["columns"]) and "timestamp" in record["columns"]
        # The example can be used as it stands.
        made = await node.api.post("/rules", {"rawsql": record["sql_example"], "actions": [INSPECT]})
        assert made.data["enabled"] is True
        # A message that is published is named by its topic.
        source = "t/#" if event == "message_publish" else record["event"]
        body = {"rawsql": f'SELECT * FROM "{source}"', "ctx": record["test_columns"]}
        tried = (await node.api.post("/rules", body, test="true")).data
        assert tried.items() >= record["test_columns"].items()


# The trace


@pytest.mark.parametrize("version", [4, 5])
async def test_the_last_evaluations_are_kept_while_asked_for(version: int) -> None:
    async with managed_node() as node:
        path = f"/rules/{(await new_rule(node))['id']}/trace"
        client = await node.client("c1", version)
        await client.publish("t/0", b'{"x":9}', 1)
        assert (await node.api.get(path)).data == []
        assert (await node.api.put(path, {"size": 3})).json == {"code": 0}
        for number, payload in enumerate((b'{"x":8}', b'{"x":7}', b'{"x":0}', b"no JSON")):
            await client.publish(f"t/{number}", payload, 1)
        kept = (await node.api.get(path)).data
        assert [each["outcome"] for each in kept] == ["passed", "no_result", "exception"]
        first = kept[0]
        assert (first["topic"], first["clientid"], first["rows"]) == ("t/1", "c1", ['{"x":7}'])
        assert [each["outcome"] for each in first["actions"]] == ["success"] and "JSON" in kept[2]["reason"]
        assert (await node.api.put(path, {"size": 0})).json == {"code": 0}
        assert (await node.api.get(path)).data == []
        for size in (-1, 101, "x"):
            assert_refused(await node.api.put(path, {"size": size}), 400, 108, "size")


# Durability


async def test_rules_are_there_after_a_restart(tmp_path: Any) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        kept = [await new_rule(node, description=str(number)) for number in range(3)]
        kept[1] = (await node.api.put(f"/rules/{kept[1]['id']}", {"enabled": False})).data
        await node.api.delete(f"/rules/{kept[0]['id']}")
    async with managed_node(**config) as node:
        assert (await node.api.get("/rules", enable_paging="false")).data == kept[1:]
        await (await node.client("c1", 4)).publish("t/1", b'{"x":2}', 1)
        metrics = [(await rule(node, each["id"]))["metrics"][0]["matched"] for each in kept[1:]]
        assert metrics == [0, 1]


CHANGES: Any = [
    ("POST", "/rules", {"id": "rule:2", "rawsql": ALL, "actions": []}),
    ("PUT", "/rules/rule:1", {"description": "new"}),
    ("DELETE", "/rules/rule:1", None),
    ("POST", "/resources", {"id": "resource:2", "type": "web_hook", "config": {"url": "http://127.0.0.1:9"}}),
    ("PUT", "/resources/resource:1", {"description": "new"}),
    ("DELETE", "/resources/resource:1", None),
]


async def prepare(node: ManagedNode) -> None:
    await new_rule(node, id="rule:1")
    hook = {"id": "resource:1", "type": "web_hook", "config": {"url": "http://127.0.0.1:9"}}
    assert (await node.api.post("/resources", hook)).code == 0


async def stored(node: ManagedNode) -> Any:
    texts = {each["id"]: each["description"] for each in (await node.api.get("/rules")).data}
    return texts, {each["id"]: each["description"] for each in (await node.api.get("/resources")).data}


@pytest.mark.parametrize("method, path, body", CHANGES)
async def test_a_change_is_on_disk_when_it_is_answered(method: str, path: str, body: Any, tmp_path: Path) -> None:
    """What a crash right after the answer leaves behind is what was answered."""
    async with managed_node(node={"data_dir": str(tmp_path / "a")}, durability={"level": "disk"}) as node:
        await prepare(node)
        assert (await node.api.ask(method, path, body)).code == 0
        wanted = await stored(node)
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("*.sock", "*lock*"))
    async with managed_node(node={"data_dir": str(tmp_path / "b")}, durability={"level": "disk"}) as node:
        assert await stored(node) == wanted


@pytest.mark.parametrize("method, path, body", CHANGES)
async def test_nothing_is_promised_while_the_store_is_in_trouble(
    method: str, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(commit: GroupCommit, seq: int) -> bool:
        return False

    async with managed_node(durability={"level": "disk"}) as node:
        await prepare(node)
        with monkeypatch.context() as patch:
            patch.setattr(GroupCommit, "barrier", property(lambda commit: 1))
            patch.setattr(GroupCommit, "wait_until_durable", never)
            assert_refused(await node.api.ask(method, path, body), 500, 101, "store")


async def test_the_gauges() -> None:
    async with managed_node() as node:
        await new_rule(node)
        made = await new_rule(node)
        seen = []
        for _ in range(2):
            ((stats,),) = [[each["stats"] for each in (await node.api.get("/stats")).data]]
            seen.append((stats["rules.count"], stats["rules.max"]))
            await node.api.delete(f"/rules/{made['id']}")
        assert seen == [(2, 2), (1, 2)]
        assert stats["actions.count"] == len((await node.api.get("/actions")).data)


@pytest.mark.parametrize("method, path", [("POST", "/rules"), ("PUT", "/rules/r1")])
@pytest.mark.parametrize(
    "rawsql, line, column",
    [
        ('SELECT *\nFROM "t" WHER x', 2, 10),
        ('SELECT nothing(1) FROM "t"', 1, 8),
        ('SELECT * FROM "t"\n  WHERE abs(1, 2)', 2, 9),
        ('SELECT "\u202e<b>', 1, 8),
    ],
)
async def test_wrong_sql_is_told_with_its_place(method: str, path: str, rawsql: str, line: int, column: int) -> None:
    async with managed_node() as node:
        sound = {"id": "r1", "rawsql": 'SELECT * FROM "t"', "actions": []}
        assert (await node.api.post("/rules", sound)).code == 0
        for query in ({}, {"test": "true"}) if method == "POST" else ({},):
            reply = await node.api.ask(method, path, {"rawsql": rawsql, "actions": []}, **query)
            assert_refused(reply, 400, 108, "rawsql")
            assert (reply.json["line"], reply.json["column"]) == (line, column), reply.text
        # What is wrong elsewhere has no place.
        reply = await node.api.post(
            "/rules", {"rawsql": 'SELECT * FROM "t"', "actions": [{"name": "none", "params": {}}]}
        )
        assert reply.code != 0 and "line" not in reply.json


async def test_the_functions_that_sql_can_call() -> None:
    async with managed_node() as node:
        told = {each["name"]: each for each in (await node.api.get("/rule_functions")).data}
        assert told["abs"] == {"name": "abs", "min_args": 1, "max_args": 1, "kinds": ["a number"]}
        assert len(told) > 100 and list(told) == sorted(told)
        for each in told.values():
            assert len(each["kinds"]) >= each["min_args"]
            assert each["max_args"] is None or len(each["kinds"]) == each["max_args"]


async def test_what_is_hardly_meant_is_said_in_the_answer() -> None:
    """EMQX publishes ``undefined`` without a word."""
    async with managed_node() as node:
        republish = {"name": "republish", "params": {"target_topic": "r/t", "target_qos": 0}}
        body = {"rawsql": 'SELECT qos FROM "t/#"', "actions": [republish]}
        made = (await node.api.post("/rules", body)).data
        assert made["warnings"] == [
            "payload_tmpl: its default ${payload} becomes undefined: the rule selects no payload"
        ]
        assert "warnings" not in (await node.api.get(f"/rules/{made['id']}")).data
        sql = 'FOREACH payload.l AS e DO e.n AS n, payload INCASE n > 1 FROM "t/#"'
        changed = (await node.api.put(f"/rules/{made['id']}", {"rawsql": sql})).data
        assert changed["warnings"] == ["INCASE: n is undefined there: DO defines it only after INCASE"]
        fine = (await node.api.put(f"/rules/{made['id']}", {"rawsql": 'SELECT * FROM "t/#"'})).data
        assert "warnings" not in fine


async def test_a_parameter_that_an_action_does_not_have_is_named_in_the_answer() -> None:
    """EMQX keeps it without a word."""
    async with managed_node() as node:
        params = {"target_topic": "r/t", "payload_templ": "x"}
        inner = {"name": "do_nothing", "params": {"x": 1}, "fallbacks": [{"name": "inspect", "params": {"y": 1}}]}
        republish = {"name": "republish", "params": params, "fallbacks": [inner]}
        made = (await node.api.post("/rules", {"rawsql": 'SELECT * FROM "t/#"', "actions": [republish]})).data
        expected = [
            "payload_templ: republish has no such parameter; the value has no effect",
            "x: do_nothing has no such parameter; the value has no effect",
        ]
        assert made["warnings"] == expected
        assert made["actions"][0]["params"]["payload_templ"] == "x"
        changed = {"name": "republish", "params": {"target_topic": "r/u", "payload_templ": "x"}}
        again = (await node.api.put(f"/rules/{made['id']}", {"actions": [changed]})).data
        assert again["warnings"] == expected[:1]
