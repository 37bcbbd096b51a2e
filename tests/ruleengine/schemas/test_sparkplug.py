"""Sparkplug B: what another library encoded is read, and what is encoded can be read again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.schemas.sparkplug import DATATYPES, SparkplugSchema

SCHEMA = SparkplugSchema()
AT = 1653561612250
# Encoded by pysparkplug 0.6.1: an NBIRTH with one metric of each basic type, and one that is null.
NBIRTH = bytes.fromhex(
    "08daafcfff8f3012120a026938100018daafcfff8f30200150fb0112140a03693136100118daafcfff8f30200250d4fd0312160a0369"
    "3332100218daafcfff8f302003508080808008121b0a03693634100318daafcfff8f302004588080808080808080800112120a027538"
    "100418daafcfff8f30200550c80112140a03753136100518daafcfff8f30200650e0d40312160a03753332100618daafcfff8f302007"
    "50ffffffff0f121b0a03753634100718daafcfff8f30200858ffffffffffffffffff0112130a0166100818daafcfff8f302009650000"
    "c03f12170a0164100918daafcfff8f30200a6900000000000002c012100a0162100a18daafcfff8f30200b700112140a0173100b18da"
    "afcfff8f30200c7a0470756d7012140a0174100c18daafcfff8f30200e7a047465787412150a03726177100d18daafcfff8f30201182"
    "0102ff0012110a046e6f6e6518daafcfff8f30200a38011800"
)
VALUES = [
    ("i8", "Int8", -5),
    ("i16", "Int16", -300),
    ("i32", "Int32", -(2**31)),
    ("i64", "Int64", -(2**63)),
    ("u8", "UInt8", 200),
    ("u16", "UInt16", 60000),
    ("u32", "UInt32", 2**32 - 1),
    ("u64", "UInt64", 2**64 - 1),
    ("f", "Float", 1.5),
    ("d", "Double", -2.25),
    ("b", "Boolean", True),
    ("s", "String", "pump"),
    ("t", "Text", "text"),
    ("raw", "Bytes", b"\xff\x00"),
]


def decoded(data: bytes) -> Any:
    return SCHEMA.decode(data, None, Budget())


def test_a_birth_of_another_library() -> None:
    payload = decoded(NBIRTH)
    assert (payload["timestamp"], payload["seq"]) == (AT, 0)
    *metrics, last = payload["metrics"]
    assert metrics == [
        {"name": name, "alias": alias, "timestamp": AT, "datatype": kind, "value": value}
        for alias, (name, kind, value) in enumerate(VALUES)
    ]
    assert last == {"name": "none", "timestamp": AT, "datatype": "Double", "is_null": True, "value": None}
    assert decoded(SCHEMA.encode(payload, None, Budget())) == payload


def test_structured_values() -> None:
    value = {
        "metrics": [
            {
                "name": "table",
                "datatype": "DataSet",
                "value": {
                    "num_of_columns": 2,
                    "columns": ["a", "b"],
                    "types": [DATATYPES.index("Int32"), DATATYPES.index("String")],
                    "rows": [{"elements": [{"int_value": 1}, {"string_value": "x"}]}],
                },
            },
            {
                "name": "type",
                "datatype": "Template",
                "value": {
                    "metrics": [{"name": "inner", "datatype": "Int16", "value": -1}],
                    "parameters": [{"name": "p", "type": 12, "string_value": "v"}],
                    "is_definition": True,
                },
            },
            {
                "name": "with properties",
                "datatype": "Double",
                "value": 1.0,
                "properties": {"keys": ["unit"], "values": [{"type": 12, "string_value": "bar"}]},
            },
        ]
    }
    assert decoded(SCHEMA.encode(value, None, Budget())) == value


@pytest.mark.parametrize(
    "value, error",
    [
        ([], "expected a map"),
        ({"metrics": {}}, "expected a map with a list"),
        ({"metrics": [1]}, "metrics: expected maps"),
        ({"metrics": [{"value": 1}]}, "needs a datatype"),
        ({"metrics": [{"datatype": "Nothing", "value": 1}]}, "there is no type Nothing"),
        ({"metrics": [{"datatype": "Int8", "value": 128}]}, "out of the range of Int8"),
        ({"metrics": [{"datatype": "Int8", "value": "x"}]}, "int_value"),
        ({"metrics": [{"datatype": "UInt8", "value": -1}]}, "int_value"),
        ({"metrics": [{"datatype": [], "value": 1}]}, "datatype"),
        ({"seq": "x"}, "seq"),
    ],
)
def test_other_values_are_refused(value: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SCHEMA.encode(value, None, Budget())


@given(st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_payload_or_an_error(data: bytes) -> None:
    try:
        payload = decoded(data)
    except ValueError:
        return
    assert all("value" in metric for metric in payload["metrics"])
