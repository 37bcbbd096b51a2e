"""Sparkplug B: the payloads of the topics below ``spBv1.0``, with values of the type that each metric has.

The message types are those of the specification Eclipse Sparkplug 3.0, chapter 6."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from ..functions.budget import Budget
from ..functions.schemas import SPARKPLUG
from .codec import MissingLibrary, refuse_message
from .protobuf import ProtobufSchema

_VALUE: Final = (
    "int_value uint32 {0}, long_value uint64 {1}, float_value float {2}, double_value double {3}, "
    "boolean_value bool {4}, string_value string {5}"
)
# Message type: name, type and number of each field; after the bar those of which at most one is set.
_MESSAGES: Final = {
    "Payload": "timestamp uint64 1, metrics Metric* 2, seq uint64 3, uuid string 4, body bytes 5",
    "Metric": "name string 1, alias uint64 2, timestamp uint64 3, datatype uint32 4, is_historical bool 5, "
    "is_transient bool 6, is_null bool 7, metadata MetaData 8, properties PropertySet 9 | "
    + _VALUE.format(*range(10, 16))
    + ", bytes_value bytes 16, dataset_value DataSet 17, template_value Template 18",
    "MetaData": "is_multi_part bool 1, content_type string 2, size uint64 3, seq uint64 4, file_name string 5, "
    "file_type string 6, md5 string 7, description string 8",
    "PropertySet": "keys string* 1, values PropertyValue* 2",
    "PropertyValue": "type uint32 1, is_null bool 2 | "
    + _VALUE.format(*range(3, 9))
    + ", propertyset_value PropertySet 9, propertysets_value PropertySetList 10",
    "PropertySetList": "propertyset PropertySet* 1",
    "DataSet": "num_of_columns uint64 1, columns string* 2, types uint32* 3, rows Row* 4",
    "Row": "elements DataSetValue* 1",
    "DataSetValue": " | " + _VALUE.format(*range(1, 7)),
    "Template": "version string 1, metrics Metric* 2, parameters Parameter* 3, template_ref string 4, "
    "is_definition bool 5",
    "Parameter": "name string 1, type uint32 2 | " + _VALUE.format(*range(3, 9)),
}
DATATYPES: Final = (
    *("Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double"),
    *("Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet"),
    *("PropertySetList", "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array"),
    *("UInt32Array", "UInt64Array", "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
)
_SIGNED: Final = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_LONG: Final = ("Int64", "UInt64", "DateTime")
_FIELD_OF: Final = {
    **dict.fromkeys(("Int8", "Int16", "Int32", "UInt8", "UInt16", "UInt32"), "int_value"),
    **dict.fromkeys(_LONG, "long_value"),
    **dict.fromkeys(("String", "Text", "UUID"), "string_value"),
    "Float": "float_value",
    "Double": "double_value",
    "Boolean": "boolean_value",
    "DataSet": "dataset_value",
    "Template": "template_value",
}
_VALUE_FIELDS: Final = frozenset([*_FIELD_OF.values(), "bytes_value"])


@cache
def _schema() -> ProtobufSchema:
    """Return the schema of Sparkplug B. Raises MissingLibrary."""
    try:
        from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
    except ImportError as error:
        raise MissingLibrary(SPARKPLUG) from error
    file = FileDescriptorProto(name="sparkplug_b.proto", package="sparkplug", syntax="proto2")
    for message_name, text in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        common, _, alternatives = text.partition("|")
        if alternatives:
            message.oneof_decl.add(name="value")
        for part, is_alternative in ((common, False), (alternatives, True)):
            for given in filter(None, map(str.strip, part.split(","))):
                name, kind, number = given.split()
                plain = kind.rstrip("*")
                is_message = plain in _MESSAGES
                more: dict[str, Any] = {"oneof_index": 0} if is_alternative else {}
                if is_message:
                    more["type_name"] = f".sparkplug.{plain}"
                message.field.add(
                    name=name,
                    number=int(number),
                    label=FieldDescriptorProto.LABEL_REPEATED if kind != plain else FieldDescriptorProto.LABEL_OPTIONAL,
                    type=FieldDescriptorProto.Type.Value("TYPE_MESSAGE" if is_message else f"TYPE_{plain.upper()}"),
                    **more,
                )
    return ProtobufSchema(FileDescriptorSet(file=[file]).SerializeToString())


class SparkplugSchema:
    """The built-in schema. In the values, each metric has ``value``, and the name of its ``datatype``."""

    def decode(self, data: bytes, message: str | None, budget: Budget) -> object:
        refuse_message(message, SPARKPLUG)
        payload: Any = _schema().decode(data, "Payload", budget)
        for metric in payload["metrics"]:
            _decode_metric(metric)
        return payload

    def encode(self, value: object, message: str | None, budget: Budget) -> bytes:
        refuse_message(message, SPARKPLUG)
        if not isinstance(value, dict) or not isinstance(value.get("metrics", []), list):
            raise ValueError("expected a map with a list of metrics")
        metrics = [_encoded_metric(metric) for metric in value.get("metrics", [])]
        return _schema().encode({**value, "metrics": metrics}, "Payload", budget)


def _decode_metric(metric: dict[str, Any]) -> None:
    number = metric.get("datatype")
    kind = DATATYPES[number] if number is not None and number < len(DATATYPES) else ""
    if kind:
        metric["datatype"] = kind
    found = [metric.pop(name) for name in _VALUE_FIELDS & metric.keys()]
    value = found[0] if found and not metric.get("is_null") else None
    bits = _SIGNED.get(kind)
    if bits and isinstance(value, int):
        value &= (1 << bits) - 1
        value -= (value >> (bits - 1)) << bits
    if isinstance(value, dict):
        for inner in value.get("metrics", ()):
            _decode_metric(inner)
    metric["value"] = value


def _encoded_metric(metric: object) -> dict[str, Any]:
    if not isinstance(metric, dict):
        raise ValueError("metrics: expected maps")
    encoded = {name: each for name, each in metric.items() if name not in ("value", "datatype")}
    kind = metric.get("datatype")
    if isinstance(kind, str):
        if kind not in DATATYPES:
            raise ValueError(f"datatype: there is no type {kind[:64]}")
        encoded["datatype"] = DATATYPES.index(kind)
    elif kind is not None:
        encoded["datatype"] = kind
        kind = DATATYPES[kind] if isinstance(kind, int) and 0 <= kind < len(DATATYPES) else ""
    if "value" not in metric:
        return encoded
    value: Any = metric["value"]
    if value is None:
        return {**encoded, "is_null": True}
    if kind is None:
        raise ValueError("a metric with a value needs a datatype")
    bits = _SIGNED.get(kind)
    if bits and isinstance(value, int):
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise ValueError(f"value: {value} is out of the range of {kind}")
        value &= (1 << (32 if bits < 64 else 64)) - 1
    if kind == "Template" and isinstance(value, dict):
        value = {**value, "metrics": [_encoded_metric(inner) for inner in value.get("metrics", [])]}
    return {**encoded, _FIELD_OF.get(kind, "bytes_value"): value}
