"""/schemas: created, changed and deleted over HTTP, used by rules, kept over restarts, exported and imported."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from taipan.ruleengine.functions.budget import Budget
from tests.api.test_data import exported
from tests.ruleengine.schemas.test_sparkplug import NBIRTH
from tests.support.api import ManagedNode, assert_refused, managed_node

pytestmark = pytest.mark.asyncio

PROTO = 'syntax = "proto3"; message Reading { double t = 1; string unit = 2; }'
PROTO_DATA = b"\x09\x00\x00\x00\x00\x00\x00\xf8\x3f\x12\x01C"
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "t", "type": "double"}]})
AVRO_DATA = b"\x00\x00\x00\x00\x00\x00\xf8\x3f"
JSON = '{"type": "object", "required": ["t"]}'
TEXTS = {"protobuf": PROTO, "avro": AVRO, "json": JSON}


async def new_schema(node: ManagedNode, name: str, parser_type: str, schema: str = "", **more: Any) -> dict[str, Any]:
    body = {"name": name, "parser_type": parser_type, "schema": schema or TEXTS[parser_type], **more}
    reply = await node.api.post("/schemas", body)
    assert reply.code == 0, reply.text
    record: dict[str, Any] = reply.data
    return record


async def try_sql(node: ManagedNode, sql: str, payload: str) -> Any:
    body = {"rawsql": sql, "ctx": {"topic": "t", "payload": payload}, "test": True}
    return await node.api.post("/rules", body)


@pytest.mark.parametrize("parser_type", list(TEXTS))
async def test_life_of_a_schema(parser_type: str) -> None:
    async with managed_node() as node:
        record = await new_schema(node, "reading", parser_type, descr="of a pump")
        created_at = record.pop("created_at")
        assert created_at > 1_600_000_000_000
        assert record == {
            "name": "reading",
            "parser_type": parser_type,
            "schema": TEXTS[parser_type],
            "descr": "of a pump",
        }
        record["created_at"] = created_at
        assert (await node.api.get("/schemas")).data == [record]
        assert (await node.api.get("/schemas/reading")).data == record
        assert_refused(await node.api.post("/schemas", record), 400, 113)
        changed = (await node.api.put("/schemas/reading", {"descr": "other"})).data
        assert changed == {**record, "descr": "other"}
        assert_refused(await node.api.put("/schemas/reading", {"schema": "{"}), 400, 108)
        assert (await node.api.get("/schemas/reading")).data == changed
        assert (await node.api.delete("/schemas/reading")).code == 0
        assert (await node.api.get("/schemas")).data == []
        for reply in (
            await node.api.get("/schemas/reading"),
            await node.api.put("/schemas/reading", {}),
            await node.api.delete("/schemas/reading"),
        ):
            assert_refused(reply, 404, 102)


@pytest.mark.parametrize(
    "body, code, words",
    [
        ({}, 107, "name"),
        ({"name": "", "parser_type": "json", "schema": "{}"}, 108, "name"),
        ({"name": "x" * 257, "parser_type": "json", "schema": "{}"}, 108, "name"),
        ({"name": "x", "parser_type": "3rd-party", "schema": ""}, 108, "parser_type"),
        ({"name": "x", "parser_type": "json"}, 107, "schema"),
        ({"name": "x", "parser_type": "json", "schema": []}, 108, "schema"),
        ({"name": "x", "parser_type": "json", "schema": '"' + "x" * 262_144 + '"'}, 108, "schema"),
        ({"name": "x", "parser_type": "avro", "schema": '"nothing"'}, 108, "not an Avro schema"),
        ({"name": "x", "parser_type": "protobuf", "schema": "message"}, 108, "line 1"),
        ({"name": "x", "parser_type": "json", "schema": '{"type": 1}'}, 108, "not a JSON Schema"),
    ],
)
async def test_wrong_schemas_are_refused(body: dict[str, Any], code: int, words: str) -> None:
    async with managed_node() as node:
        reply = await node.api.post("/schemas", body)
        assert_refused(reply, 400, code)
        assert words in reply.json["message"]
        assert (await node.api.get("/schemas")).data == []


async def test_a_rule_reads_and_writes_with_schemas() -> None:
    async with managed_node() as node:
        for parser_type in TEXTS:
            await new_schema(node, parser_type, parser_type)
        action = {"name": "republish", "params": {"target_topic": "avro", "target_qos": 0, "payload_tmpl": "${out}"}}
        rule = {
            "rawsql": "SELECT schema_decode('protobuf', payload, 'Reading') AS r, "
            "schema_encode('avro', map_put('t', r.t, json_decode('{}'))) AS out "
            'FROM "proto"',
            "actions": [action],
        }
        record = (await node.api.post("/rules", rule)).data
        client = await node.client("c", 5)
        await client.subscribe("avro", qos=0)
        await client.publish("proto", b"\xff\xff", qos=1)
        await client.publish("proto", PROTO_DATA, qos=1)
        await client.expect_publish("avro", AVRO_DATA)
        metrics = (await node.api.get(f"/rules/{record['id']}")).data["metrics"][0]
        assert (metrics["passed"], metrics["failed"]) == (1, 1)
        assert (await node.api.delete("/schemas/avro")).code == 0
        await client.publish("proto", PROTO_DATA, qos=1)
        metrics = (await node.api.get(f"/rules/{record['id']}")).data["metrics"][0]
        assert (metrics["passed"], metrics["failed"]) == (1, 2)


async def test_a_rule_selects_by_schema() -> None:
    async with managed_node() as node:
        await new_schema(node, "reading", "protobuf")
        sql = "SELECT topic FROM \"t\" WHERE schema_check('reading', payload, 'Reading')"
        assert (await try_sql(node, sql, "\x12\x01C")).data == {"topic": "t"}
        assert_refused(await try_sql(node, sql, "C"), 404, 102)


async def test_the_test_of_sql_knows_the_schemas() -> None:
    async with managed_node() as node:
        await new_schema(node, "reading", "json")
        sql = "SELECT schema_decode('reading', payload) AS r FROM \"t\""
        assert (await try_sql(node, sql, '{"t": 1}')).data == {"r": {"t": 1}}
        reply = await try_sql(node, sql, "{}")
        assert_refused(reply, 400, 108)
        assert "does not match the schema" in reply.json["message"]
        reply = await try_sql(node, sql.replace("'reading'", "'other'"), "{}")
        assert "there is no schema other" in reply.json["message"]


async def test_schemas_survive_a_restart(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        for parser_type in TEXTS:
            await new_schema(node, parser_type, parser_type)
        before = (await node.api.get("/schemas")).data
    async with managed_node(**config) as node:
        assert (await node.api.get("/schemas")).data == before
        assert node.engine.schemas.codec("protobuf").decode(PROTO_DATA, "Reading", Budget()) == {"t": 1.5, "unit": "C"}


async def test_schemas_are_exported_and_imported() -> None:
    async with managed_node() as node:
        for parser_type in TEXTS:
            await new_schema(node, parser_type, parser_type)
        before = (await node.api.get("/schemas")).data
        document = await exported(node)
    async with managed_node() as node:
        counts = (await node.api.post("/data/import", document, dry_run="true")).data
        assert counts["schemas"] == 3
        assert [each["action"] for each in counts["records"] if each["kind"] == "schemas"] == ["create"] * 3
        assert (await node.api.post("/data/import", document)).code == 0
        assert (await node.api.get("/schemas")).data == before
        counts = (await node.api.post("/data/import", document, dry_run="true")).data
        assert [each["action"] for each in counts["records"] if each["kind"] == "schemas"] == ["same"] * 3


async def test_what_an_import_does_not_take() -> None:
    """The forms of EMQX Enterprise: a service that parses is kept for the next export, a broken schema is disabled."""
    service = {
        "name": "service",
        "schema": "",
        "parser_type": "3rd-party",
        "parser_addr": {"url": "http://127.0.0.2"},
        "parser_opts": {"3rd_party_opts": "x: 10"},
        "descr": "",
    }
    broken = {"name": "broken", "schema": "{", "parser_type": "avro", "parser_addr": {}, "parser_opts": {}, "descr": ""}
    async with managed_node() as node:
        told = (await node.api.post("/data/import", {"version": "4.4", "schemas": [service, broken]})).data
        (disabled,) = told["disabled"]
        assert (disabled["section"], disabled["id"]) == ("schemas", "broken") and "Avro" in disabled["what"]
        (without_effect,) = told["without_effect"]
        assert (without_effect["id"], without_effect["section"]) == ("service", "schemas")
        assert "parser type 3rd-party is unknown here" in without_effect["what"]
        (record,) = (await node.api.get("/schemas")).data
        assert record["name"] == "broken" and "not an Avro schema" in record["fault"]
        assert (await node.api.put("/schemas/broken", {"schema": AVRO})).data["schema"] == AVRO
        for wrong in ([1], [{**broken, "schema": 1}], [{**broken, "name": ""}]):
            assert_refused(await node.api.post("/data/import", {"version": "4.4", "schemas": wrong}), 400, 108)


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fastavro", "grpc_tools", "jsonschema_rs"):
        monkeypatch.setitem(sys.modules, module, None)
    async with managed_node() as node:
        for parser_type, text in TEXTS.items():
            reply = await node.api.post("/schemas", {"name": "x", "parser_type": parser_type, "schema": text})
            assert_refused(reply, 400, 108)
            assert "pip install 'taipan-mqtt[schemas]'" in reply.json["message"]


async def test_sparkplug_births_are_kept_for_later_clients() -> None:
    """The rule of docs/systems/sparkplug.md."""
    async with managed_node() as node:
        page = (Path(__file__).parents[2] / "docs" / "systems" / "sparkplug.md").read_text("utf-8")
        read, keep = (json.loads(part.partition("'\n```")[0]) for part in page.split("POST $API/rules -d '")[1:])
        assert (await node.api.post("/rules", keep)).code == 0
        ctx = {"topic": "spBv1.0/works/DDATA/hall-3/pump-7", "payload": NBIRTH.hex()}
        sql = read["rawsql"].replace("(payload)", "(hexstr2bin(payload))")
        rows = (await node.api.post("/rules", {"rawsql": sql, "ctx": ctx, "test": True})).data
        assert rows[0] == {"name": "i8", "value": -5} and len(rows) == 15
        assert (await node.api.post("/rules", read)).code == 0
        edge = await node.client("edge", 5)
        await edge.publish("spBv1.0/works/NBIRTH/hall-3", NBIRTH, qos=0)
        await edge.publish("spBv1.0/works/DBIRTH/hall-3/pump-7", NBIRTH, qos=0)
        await edge.publish("spBv1.0/works/NDATA/hall-3", NBIRTH, qos=1)
        late = await node.client("late", 5)
        await late.subscribe("$sparkplug/certificates/#", qos=0)
        got = {message.topic: message for message in [await late.expect_publish(), await late.expect_publish()]}
        assert set(got) == {
            "$sparkplug/certificates/spBv1.0/works/NBIRTH/hall-3",
            "$sparkplug/certificates/spBv1.0/works/DBIRTH/hall-3/pump-7",
        }
        assert all(message.retain and message.payload == NBIRTH for message in got.values())
        await late.ping()


async def test_sparkplug_is_built_in() -> None:
    async with managed_node() as node:
        assert_refused(
            await node.api.post("/schemas", {"name": "sparkplug_b", "parser_type": "json", "schema": "{}"}), 400, 113
        )
        sql = 'SELECT sparkplug_decode(sparkplug_encode(json_decode(payload))) AS p FROM "t"'
        value = {"seq": 1, "metrics": [{"name": "t", "datatype": "Int16", "value": -3}]}
        assert (await try_sql(node, sql, json.dumps(value))).data == {"p": value}
