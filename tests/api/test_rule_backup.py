"""Rules and resources travel in an export, and come in from EMQX's."""

import json
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from tests.api.golden.recordings import cases
from tests.support.api import ManagedNode, managed_node, segment
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

QUICK = {"liveness_interval": 0.05, "liveness_timeout": 60.0, "retry_backoff": 0.01, "retry_backoff_max": 0.05}
INSPECT = {"name": "inspect", "params": {}}


async def export_of(node: ManagedNode) -> dict[str, Any]:
    name = (await node.api.post("/data/export")).data["filename"]
    exported: dict[str, Any] = (await node.api.get(f"/data/file/{name}")).json
    return exported


async def take(node: ManagedNode, document: Any) -> None:
    reply = await node.api.post("/data/import", document)
    assert (reply.status, reply.code) == (200, 0), reply.text


async def rows(node: ManagedNode, path: str) -> list[dict[str, Any]]:
    """What is listed, without what lives."""
    query = {"enable_paging": "false"} if path == "/rules" else {}
    return [
        {key: value for key, value in row.items() if key not in ("metrics", "status", "created_at", "last_error")}
        for row in (await node.api.get(path, **query)).data
    ]


@pytest.mark.parametrize("level", ["memory", "disk"])
@pytest.mark.parametrize("version", [4, 5])
async def test_they_work_elsewhere_as_they_did_here(version: int, level: str) -> None:
    sink = await HttpSink().start()
    async with managed_node(ruleengine=QUICK, durability={"level": level}) as node:
        config = {"address": node.settings.listeners[0].bind, "username": "ann", "password": "pass word"}
        await node.api.post("/resources", {"id": "resource:b", "type": "bridge_mqtt", "config": config})
        hook = {"id": "resource:h", "type": "web_hook", "config": {"url": sink.url}, "description": "a hook"}
        await node.api.post("/resources", hook)
        send = {"name": "data_to_webserver", "params": {"$resource": "resource:h"}, "fallbacks": [INSPECT]}
        body = {"id": "rule:1", "rawsql": 'SELECT clientid FROM "t"', "actions": [send], "on_action_failed": "stop"}
        await node.api.post("/rules", {**body, "description": "what for"})
        await node.api.post("/rules", {"rawsql": 'SELECT * FROM "u"', "actions": [INSPECT], "enabled": False})
        before = [await rows(node, path) for path in ("/resources", "/rules")]
        exported = await export_of(node)
    assert [each["config"].get("password") for each in exported["resources"]] == ["pass word", None]
    async with managed_node(ruleengine=QUICK, durability={"level": level}) as node:
        for _ in range(2):  # once more is the same
            await take(node, exported)
            assert [await rows(node, path) for path in ("/resources", "/rules")] == before
        assert node.engine.resources.stored()[0].config["password"] == "pass word"
        client = await node.client("c1", version)
        await client.publish("t", b"x", 1)
        await until(lambda: sink.bodies == [b'{"clientid":"c1"}'])
    await sink.stop()


async def test_databases_of_emqx_enterprise_come_in() -> None:
    """As its exports have them (``bridges1.json`` of emqx-data-converter), and under their other names."""
    none = {"filename": "", "file": ""}
    login = {"auto_reconnect": True, "cacertfile": none, "certfile": none, "keyfile": none, "verify": False,
             "ssl": False, "database": "postgres", "password": "postgres", "pool_size": 8}  # fmt: skip
    args = {"sync_timeout": 5000, "sql_insert_null": False, "sql": "insert into postgres_table(col) values (payload)",
            "insert_mode": "async", "enable_batch": True, "batch_time": 10, "batch_size": 100,
            "batch_pool_size": 4}  # fmt: skip
    kinds = [
        ("backend_pgsql", "data_to_pgsql", "username", 5432),
        ("backend_timescale", "data_to_timescale", "username", 5432),
        ("timescaledb", "data_to_timescaledb", "username", 5432),
        ("backend_matrix", "data_to_matrix", "username", 5432),
        ("backend_mysql", "data_to_mysql", "user", 3306),
    ]
    resources, rules = [], []
    for number, (kind, action, user, port) in enumerate(kinds):
        config = {**login, user: "postgres", "server": f"127.0.0.1:{port}"}
        resources.append({"id": f"resource:{number}", "type": kind, "config": config, "created_at": 1728928660046,
                          "description": ""})  # fmt: skip
        taken = {
            "id": f"{action}_17289",
            "name": action,
            "fallbacks": [],
            "args": args | {"$resource": f"resource:{number}"},
        }
        rules.append({"id": f"rule:{number}", "rawsql": f'SELECT * FROM "t/{number}"', "actions": [taken],
                      "enabled": True, "description": ""})  # fmt: skip
    async with managed_node(ruleengine=QUICK) as node:
        reply = await node.api.post("/data/import", {"version": "4.4", "resources": resources, "rules": rules})
        assert (reply.status, reply.code) == (200, 0), reply.text
        listed = {each["id"]: each for each in await rows(node, "/resources")}
        assert [listed[f"resource:{number}"]["type"] for number in range(len(kinds))] == [each[0] for each in kinds]
        assert {each["config"]["password"] for each in listed.values()} == {"******"}
        for number in range(len(kinds)):
            stored = (await node.api.get(f"/rules/{segment(f'rule:{number}')}")).data
            assert stored["enabled"] is True and stored["actions"][0]["params"]["batch_pool_size"] == 4
        exported = await export_of(node)
        assert {each["config"]["password"] for each in exported["resources"]} == {"postgres"}


@pytest.mark.parametrize("version", [4, 5])
async def test_parameters_of_emqx_enterprise_come_in_with_effect(version: int) -> None:
    """As its exports have them: ``republish`` with templates of properties, ``data_to_mqtt_broker`` with ``qos``."""
    republish = {
        "target_topic": "repub/to/${clientid}",
        "target_retain": False,
        "target_qos": 0,
        "payload_tmpl": "${payload}",
        "user_properties_template": [{"key": "from", "value": "${clientid}"}],
        "mqtt_properties_template": [{"key": "Content-Type", "value": "text/${qos}"}],
    }
    forward = {"$resource": "resource:1", "forward_topic": "forward/t", "payload_tmpl": "", "qos": "1"}
    empty = {**republish, "target_topic": "plain", "user_properties_template": [], "mqtt_properties_template": []}
    actions = [
        {"id": f"{name}_{number}", "name": name, "fallbacks": [], "args": args}
        for number, (name, args) in enumerate(
            [("republish", republish), ("data_to_mqtt_broker", forward), ("republish", empty)]
        )
    ]
    async with managed_node(ruleengine=QUICK) as node:
        none = {"filename": "", "file": ""}
        config = {
            "address": node.settings.listeners[0].bind, "append": True, "bridge_mode": False, "clientid": "mybridge",
            "cacertfile": none, "certfile": none, "keyfile": none, "disk_cache": "off", "keepalive": "60s",
            "mountpoint": "", "username": "", "password": "", "pool_size": 1, "proto_ver": "mqttv5",
            "reconnect_interval": "30s", "retry_interval": "20s", "ssl": False, "verify": False,
        }  # fmt: skip
        rule = {"id": "rule:1", "rawsql": 'SELECT * FROM "t/1"', "enabled": True, "description": "", "actions": actions}
        resource = {"id": "resource:1", "type": "bridge_mqtt", "config": config, "description": ""}
        await take(node, {"version": "4.4", "rules": [rule], "resources": [resource]})
        subscriber = await node.client("all", version)
        await subscriber.subscribe("repub/#", "forward/#", "plain", qos=2)
        await (await node.client("c1", version)).publish("t/1", b"x")
        got = {each.topic: each for each in [await subscriber.expect_publish() for _ in range(3)]}
        made = got["repub/to/c1"]
        properties = {} if version == 4 else {c.USER_PROPERTY: [("from", "c1")], c.CONTENT_TYPE: "text/0"}
        assert (made.payload, made.qos, made.properties) == (b"x", 0, properties)
        assert got["forward/t"].qos == 1 and json.loads(got["forward/t"].payload)["clientid"] == "c1"
        assert got["plain"].properties == {}
        (row,) = await rows(node, "/rules")
        assert row["actions"][0]["params"] == republish and row["actions"][1]["params"]["qos"] == "1"


async def test_an_import_takes_the_place_of_the_same_ids() -> None:
    async with managed_node(ruleengine=QUICK) as node:
        for number in range(2):
            await node.api.post("/rules", {"id": f"rule:{number}", "rawsql": 'SELECT * FROM "t"', "actions": [INSPECT]})
        exported = await export_of(node)
        old = await rows(node, "/rules")
        await node.api.put("/rules/rule:0", {"rawsql": 'SELECT * FROM "other"', "enabled": False})
        await node.api.delete("/rules/rule:1")
        await node.api.post("/rules", {"id": "rule:2", "rawsql": 'SELECT * FROM "t"', "actions": []})
        await take(node, exported)
        now = {each["id"]: each for each in await rows(node, "/rules")}
        assert [now["rule:0"], now["rule:1"]] == old and set(now) == {"rule:0", "rule:1", "rule:2"}
        await (await node.client("c1", 4)).publish("t", b"x", 1)
        counted = [(await node.api.get(f"/rules/{each}")).data["metrics"][0]["matched"] for each in sorted(now)]
        assert counted == [1, 1, 1]


async def test_a_rule_waits_for_a_resource_that_is_not_there() -> None:
    sink = await HttpSink().start()
    async with managed_node(ruleengine=QUICK) as node:
        action = {"name": "data_to_webserver", "args": {"$resource": "resource:h"}}
        rule = {"id": "rule:1", "rawsql": 'SELECT clientid FROM "t"', "enabled": True, "actions": [action]}
        await take(node, {"version": "4.4", "rules": [rule]})
        (waiting,) = (await node.api.get("/rules")).data
        assert waiting["enabled"] is False and "resource:h" in waiting["suspended"]
        hook = {"id": "resource:h", "type": "web_hook", "config": {"url": sink.url}}
        assert (await node.api.post("/resources", hook)).code == 0
        await node.pass_time(30)
        (running,) = (await node.api.get("/rules")).data
        assert running["enabled"] is True and "suspended" not in running
        await (await node.client("c1", 5)).publish("t", b"x", 1)
        await until(lambda: len(sink.requests) == 1)
    await sink.stop()


@pytest.mark.parametrize(
    "section, record, about",
    [
        ("rules", {"id": "rule:1", "rawsql": "SELECT", "actions": []}, "rawsql"),
        ("rules", {"rawsql": 'SELECT * FROM "t"', "actions": []}, "id"),
        ("rules", {"id": "rule:1", "rawsql": 'SELECT * FROM "t"', "actions": {}}, "actions"),
        ("resources", {"id": "resource:1", "type": "web_hook", "config": 5}, "config"),
    ],
)
async def test_one_wrong_record_and_nothing_is_imported(section: str, record: dict[str, Any], about: str) -> None:
    async with managed_node() as node:
        good = {"id": "rule:good", "rawsql": 'SELECT * FROM "t"', "actions": []}
        document = {"version": "4.4", "rules": [good]}
        document[section] = [*document.get(section, []), record] if section == "rules" else [record]
        reply = await node.api.post("/data/import", document)
        assert (reply.status, reply.code) == (400, 108) and about in reply.text
        assert (await node.api.get("/rules")).data == [] and (await node.api.get("/resources")).data == []


async def test_rules_of_a_real_export() -> None:
    """Of EMQX 4.1.5, recorded: each of its rules is there and runs, but one on an event that there is not."""
    (download,) = [each for each in cases("4.1.5", "data") if each["note"] == "download"]
    whole = json.loads(download["response"]["body"]["file"])
    document = {key: whole[key] for key in ("version", "rules", "resources")}
    async with managed_node(ruleengine=QUICK) as node:
        reply = await node.api.post("/data/import", document)
        refused = {row["index"] for row in reply.json["data"]}
        assert reply.status == 400
        assert {document["rules"][index]["rawsql"] for index in refused} == {'select * from "$events/nosuch"'}
        document["rules"] = [each for index, each in enumerate(document["rules"]) if index not in refused]
        await take(node, document)
        assert len(document["rules"]) > 5 and document["resources"]
        for there in document["rules"]:
            row = (await node.api.get(f"/rules/{segment(there['id'])}")).data
            assert row["rawsql"] == there["rawsql"] and row["description"] == there["description"]
            assert [each["name"] for each in row["actions"]] == [each["name"] for each in there["actions"]]
            assert row["enabled"] is there["enabled"] and "suspended" not in row
