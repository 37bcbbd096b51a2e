"""Schemas: values of each parser type survive a round trip, and no payload costs more than its length."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.ruleengine.functions.budget import Budget, BudgetExceeded
from taipan.ruleengine.schemas.avro import AvroSchema
from taipan.ruleengine.schemas.codec import SchemaError
from taipan.ruleengine.schemas.json_schema import JsonSchema
from taipan.ruleengine.schemas.protobuf import ProtobufSchema, compile_text
from tests.support.processor_time import at_most

PUMP = {
    "type": "record",
    "name": "Pump",
    "namespace": "works",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "pressure", "type": "double"},
        {"name": "starts", "type": "long"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "last", "type": ["null", "State"]},
        {"name": "raw", "type": "bytes"},
        {"name": "samples", "type": {"type": "array", "items": "float"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
ROW = {
    "id": "pump-7",
    "pressure": 1.5,
    "starts": 2**40,
    "state": "OFF",
    "last": None,
    "raw": b"\xff\x00",
    "samples": [1.0, 2.5],
    "tags": {"hall": "3"},
    "at": 1653561612250,
}
PROTO = """
syntax = "proto3";
package works;
import "google/protobuf/timestamp.proto";
message Pump {
  enum State { OFF = 0; ON = 1; }
  message Sample { double value = 1; int64 at = 2; }
  string id = 1;
  State state = 2;
  repeated Sample samples = 3;
  map<string, int32> counts = 4;
  bytes raw = 5;
  oneof reading { float celsius = 6; uint32 kelvin = 7; }
  google.protobuf.Timestamp seen = 8;
  repeated uint32 codes = 9;
  optional bool armed = 10;
  map<int32, Sample> by_number = 11;
}
"""


def avro(schema: Any) -> AvroSchema:
    return AvroSchema(json.dumps(schema))


async def protobuf(text: str = PROTO) -> ProtobufSchema:
    return ProtobufSchema(await compile_text(text))


def test_avro_both_ways() -> None:
    schema = avro(PUMP)
    data = schema.encode(ROW, None, Budget())
    assert schema.decode(data, None, Budget()) == ROW
    assert schema.decode(schema.encode({**ROW, "last": "ON"}, None, Budget()), None, Budget()) == {**ROW, "last": "ON"}
    assert schema.decode(schema.encode({**ROW, "pressure": math.nan}, None, Budget()), None, Budget()) == {
        **ROW,
        "pressure": None,
    }


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    schema = avro(PUMP)
    try:
        value = schema.decode(data, None, Budget())
    except ValueError:
        return
    assert isinstance(value, dict) and set(value) == set(ROW)


@pytest.mark.parametrize(
    "value, error",
    [
        ({**ROW, "starts": "many"}, "does not match"),
        ({**ROW, "state": "BROKEN"}, "does not match"),
        ({"id": "pump-7"}, "does not match"),
        ([], "does not match"),
        (None, "does not match"),
        ({**ROW, "more": 1}, "does not match"),
        ({**ROW, "starts": 2**70}, "does not match"),
    ],
)
def test_avro_refuses_other_values(value: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        avro(PUMP).encode(value, None, Budget())


def test_avro_refuses_bytes_behind_the_value() -> None:
    schema = avro(PUMP)
    data = schema.encode(ROW, None, Budget())
    with pytest.raises(ValueError, match="1 bytes follow the value"):
        schema.decode(data + b"x", None, Budget())
    with pytest.raises(ValueError, match="does not match"):
        schema.decode(data[:-1], None, Budget())
    with pytest.raises(ValueError, match="no message types"):
        schema.decode(data, "Pump", Budget())


@pytest.mark.parametrize(
    "schema, error",
    [
        ({"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}, "contains itself"),
        (
            {
                "type": "record",
                "name": "L",
                "namespace": "a.b",
                "fields": [{"name": "next", "type": {"type": "array", "items": "a.b.L"}}],
            },
            "contains itself",
        ),
        (
            {
                "type": "record",
                "name": "a.L",
                "fields": [
                    {
                        "name": "m",
                        "type": {"type": "record", "name": "M", "fields": [{"name": "l", "type": ["null", "L"]}]},
                    }
                ],
            },
            "contains itself",
        ),
        (
            {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", {"type": "L"}]}]},
            "contains itself",
        ),
        (
            {"type": "record", "name": "L", "fields": [{"name": "next", "type": {"type": "map", "values": "L"}}]},
            "contains itself",
        ),
        (
            {
                "type": "record",
                "name": "R",
                "namespace": "a",
                "fields": [
                    {"name": "e", "type": {"type": "record", "name": "E", "fields": []}},
                    {"name": "l", "type": {"type": "array", "items": {"type": "E"}}},
                ],
            },
            "must not be empty",
        ),
        ({"type": "array", "items": "null"}, "must not be empty"),
        ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, "must not be empty"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "must not be empty"),
        ({"type": "array", "items": {"type": "null"}}, "must not be empty"),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {"name": "e", "type": {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}},
                    {"name": "l", "type": {"type": "array", "items": "E"}},
                ],
            },
            "must not be empty",
        ),
        ("nothing", "not an Avro schema"),
        ({"type": "record"}, "not an Avro schema"),
        ({}, "expected a type"),
        (7, "expected a type"),
        ([], None),
        ({"type": "enum", "name": "E", "symbols": [1]}, "not an Avro schema"),
    ],
)
def test_avro_schemas_that_a_payload_could_abuse_or_nobody_can_use(schema: Any, error: str | None) -> None:
    if error is None:
        avro(schema)
    else:
        with pytest.raises(SchemaError, match=error):
            avro(schema)


@pytest.mark.asyncio
async def test_protobuf_both_ways() -> None:
    schema = await protobuf()
    row = {
        "id": "pump-7",
        "state": "ON",
        "samples": [{"value": 1.5, "at": 2**40}],
        "counts": {"a": 1},
        "raw": b"\xff\x00",
        "celsius": 21.5,
        "seen": {"seconds": 12, "nanos": 0},
        "codes": [1, 2],
        "armed": False,
        "by_number": {"-3": {"value": 0.0, "at": 1}},
    }
    for name in ("Pump", "works.Pump"):
        data = schema.encode(row, name, Budget())
        assert schema.decode(data, name, Budget()) == row
    empty = schema.decode(b"", "Pump", Budget())
    assert empty == {"id": "", "state": "OFF", "samples": [], "counts": {}, "raw": "", "codes": [], "by_number": {}}
    assert schema.encode({"id": None, "raw": "text", "state": 1}, "Pump", Budget()) == b"\x10\x01*\x04text"
    assert schema.decode(b"\x10\x09", "Pump", Budget()) == {**empty, "state": 9}
    assert schema.decode(schema.encode({"value": 2}, "Pump.Sample", Budget()), "works.Pump.Sample", Budget()) == {
        "value": 2.0,
        "at": 0,
    }


@pytest.mark.parametrize(
    "value, error",
    [
        ({"nothing": 1}, "Pump has no field nothing"),
        ({"id": 7}, "Pump.id"),
        ({"state": "BROKEN"}, "Pump.state: there is no value BROKEN"),
        ({"samples": {}}, "Pump.samples: expected a list"),
        ({"samples": [1]}, "Pump.samples: expected a map"),
        ({"codes": [-1]}, "Pump.codes"),
        ({"codes": [True]}, "Pump.codes: a boolean is not valid here"),
        ({"kelvin": 2**40}, "Pump.kelvin"),
        ({"counts": {"a": "x"}}, "Pump.counts"),
        ({"counts": []}, "Pump.counts: expected a map"),
        ({"by_number": {"x": {}}}, "Pump.by_number: the key x has the wrong type"),
        ({"by_number": {"99999999999": {}}}, "Pump.by_number"),
        ([], "Pump: expected a map"),
    ],
)
@pytest.mark.asyncio
async def test_protobuf_refuses_other_values(value: Any, error: str) -> None:
    schema = await protobuf()
    with pytest.raises(ValueError, match=error):
        schema.encode(value, "Pump", Budget())


@pytest.mark.asyncio
async def test_protobuf_errors() -> None:
    schema = await protobuf()
    with pytest.raises(ValueError, match="does not match"):
        schema.decode(b"\xff\xff", "Pump", Budget())
    with pytest.raises(ValueError, match="no message type Nothing"):
        schema.decode(b"", "Nothing", Budget())
    with pytest.raises(ValueError, match="needs the name of the message type"):
        schema.decode(b"", None, Budget())
    with pytest.raises(SchemaError, match=r"^not a \.proto file: line 2:16: "):
        await compile_text('syntax = "proto3";\nmessage Pump { strang id = 1; }')
    with pytest.raises(SchemaError, match=r"^not a \.proto file: line 1:9: Expected message name\.$"):
        await compile_text("message { ")
    with pytest.raises(SchemaError, match="no message"):
        ProtobufSchema(await compile_text('syntax = "proto3";'))
    with pytest.raises(SchemaError, match=r"not a \.proto file"):
        await compile_text('syntax = "proto3"; import "../../../etc/passwd";')
    with pytest.raises(SchemaError, match="no message"):
        ProtobufSchema(await compile_text(""))


@pytest.mark.asyncio
async def test_protobuf_nested_beyond_its_limit_is_refused() -> None:
    schema = await protobuf('syntax = "proto3"; message L { L next = 1; }')
    data = b""
    for _ in range(150):
        size = len(data)
        data = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data
    with pytest.raises(ValueError, match="does not match"):
        schema.decode(data, "L", Budget())


def test_json_schema() -> None:
    schema = JsonSchema('{"type": "object", "properties": {"t": {"type": "number"}}, "required": ["t"]}')
    assert schema.decode(b'{"t": 1.5}', None, Budget()) == {"t": 1.5}
    assert schema.encode({"t": 1}, None, Budget()) == b'{"t":1}'
    with pytest.raises(ValueError, match='t: "x" is not of type "number"'):
        schema.decode(b'{"t": "x"}', None, Budget())
    with pytest.raises(ValueError, match='"t" is a required property'):
        schema.encode({}, None, Budget())
    with pytest.raises(ValueError):
        schema.decode(b"{", None, Budget())


@pytest.mark.parametrize(
    "text, error",
    [
        ('{"$ref": "http://127.0.0.1:9/other.json"}', "another document"),
        ('{"pattern": "(?=a)"}', "not a JSON Schema"),
        ('{"type": "strang"}', "not a JSON Schema"),
        ("", "not a JSON Schema"),
        ("[]", "not a JSON Schema"),
        ("7", "not a JSON Schema"),
        ('{"properties": ' * 100_000, "nested too deeply|not a JSON Schema"),
    ],
)
def test_json_schemas_that_nobody_can_use(text: str, error: str) -> None:
    with pytest.raises(SchemaError, match=error):
        JsonSchema(text)


def test_json_schema_that_refers_to_itself() -> None:
    schema = JsonSchema('{"properties": {"next": {"$ref": "#"}}, "additionalProperties": false}')
    assert schema.decode(b'{"next": {"next": {}}}', None, Budget()) == {"next": {"next": {}}}
    with pytest.raises(ValueError, match="does not match"):
        schema.decode(b'{"next": {"other": {}}}', None, Budget())


MIB = 1024 * 1024


@pytest.mark.parametrize(
    "decode",
    [
        lambda: avro({"type": "array", "items": "int"}).decode(b"\x80\x80\x80\x01" + b"\x02" * MIB, None, Budget()),
        lambda: avro({"type": "array", "items": "int"}).decode(
            b"\xfe\xff\xff\xff\xff\xff\x01" + b"\x02" * 99, None, Budget()
        ),
        lambda: JsonSchema('{"items": {"pattern": "^(a+)+$"}}').decode(b'["' + b"a" * 150_000 + b'!"]', None, Budget()),
        lambda: JsonSchema('{"uniqueItems": true}').decode(b"[" + b'1,"a",' * 20_000 + b"0]", None, Budget()),
        lambda: JsonSchema("true").decode(b"[" * 100_000, None, Budget()),
    ],
)
def test_what_a_publisher_sends_is_read_or_refused_in_a_moment(decode: Callable[[], object]) -> None:
    with at_most(0.1), pytest.raises(ValueError):
        decode()


@pytest.mark.asyncio
async def test_a_large_message_is_refused_before_it_is_read() -> None:
    schema = await protobuf()
    with pytest.raises(BudgetExceeded):
        schema.decode(b"\x48\x01" * MIB, "Pump", Budget())
