"""Avro: bare data without container or header. Logical types are read and written as the type below them."""

from __future__ import annotations

import io
import json
import math
from typing import Any, Final

from ..functions.budget import Budget
from ..functions.values import restore
from .codec import BYTES_PER_STEP, MissingLibrary, SchemaError, refuse_message

NAME: Final = "avro"
_NAMED: Final = ("record", "error", "enum", "fixed")
_PRIMITIVE: Final = frozenset(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


class AvroSchema:
    """A parsed schema. Each element of an array takes at least one byte, and no type contains itself, so that a payload
    cannot become a value that is much larger or nested without limit."""

    def __init__(self, text: str) -> None:
        """Raises SchemaError."""
        try:
            from fastavro import parse_schema, schemaless_reader, schemaless_writer
            from fastavro.schema import SchemaParseException, UnknownType
        except ImportError as error:
            raise MissingLibrary(NAME) from error
        try:
            given = json.loads(text)
            self._named: dict[str, Any] = {}
            plain = self._plain(given, "", ())
            self._schema = parse_schema(plain)
        except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SchemaError(f"not an Avro schema: {_reason(error)}") from error
        except RecursionError:
            raise SchemaError("the schema is nested too deeply") from None
        self._read = schemaless_reader
        self._write = schemaless_writer

    def decode(self, data: bytes, message: str | None, budget: Budget) -> object:
        refuse_message(message, NAME)
        budget.step(len(data) // BYTES_PER_STEP)
        stream = io.BytesIO(data)
        try:
            value = self._read(stream, self._schema, None)
        except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
            raise ValueError(f"the data does not match the schema: {_reason(error)}") from error
        if stream.tell() != len(data):
            raise ValueError(f"the data does not match the schema: {len(data) - stream.tell()} bytes follow the value")
        return _finite(value)

    def encode(self, value: object, message: str | None, budget: Budget) -> bytes:
        refuse_message(message, NAME)
        stream = io.BytesIO()
        try:
            self._write(stream, self._schema, value, strict=True)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise ValueError(f"the value does not match the schema: {_reason(error)}") from error
        data = stream.getvalue()
        budget.step(len(data) // BYTES_PER_STEP)
        return data

    def _plain(self, schema: Any, space: str, above: tuple[str, ...]) -> Any:
        """Return the schema without logical types. Raises SchemaError for a type that contains itself, and for arrays
        of empty elements."""
        if isinstance(schema, list):
            return [self._plain(each, space, above) for each in schema]
        if isinstance(schema, str):
            name = schema if "." in schema or schema in _PRIMITIVE or not space else f"{space}.{schema}"
            if name in above or schema in above:
                raise SchemaError(f"type {schema} contains itself, which is not supported")
            return schema
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError(f"expected a type: {str(schema)[:64]}")
        kind = schema["type"]
        rest = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
        if isinstance(kind, (dict, list)) or kind not in (*_NAMED, "array", "map"):
            return self._plain(kind, space, above)  # a type in braces, for example with a logical type
        if kind in _NAMED:
            name = str(schema.get("name", ""))
            space = str(schema.get("namespace") or (name.rpartition(".")[0] if "." in name else space))
            full = name if "." in name or not space else f"{space}.{name}"
            if kind in ("record", "error"):
                inside = (*above, full)
                fields = [
                    {**field, "type": self._plain(field["type"], space, inside)} for field in schema.get("fields", ())
                ]
                for field in fields:
                    field.pop("logicalType", None)
                rest["fields"] = fields
            self._named[full] = rest
        elif kind == "array":
            rest["items"] = self._plain(schema["items"], space, above)
            if self._least(rest["items"], space) == 0:
                raise SchemaError(
                    "array elements must not be empty: a few bytes could otherwise become a list of any length"
                )
        elif kind == "map":
            rest["values"] = self._plain(schema["values"], space, above)
        return rest

    def _least(self, schema: Any, space: str) -> int:
        """Return 0 if a value can take no bytes, otherwise 1."""
        if isinstance(schema, list):
            return 1
        if isinstance(schema, str):
            if schema == "null":
                return 0
            known = self._named.get(schema) or self._named.get(f"{space}.{schema}")
            return 1 if known is None else self._least(known, space)
        kind = schema["type"]
        if kind in ("record", "error"):
            return max((self._least(field["type"], space) for field in schema["fields"]), default=0)
        if kind == "fixed":
            return min(1, int(schema["size"]))
        return 1


def _finite(value: Any) -> Any:
    """Return the value with null for numbers that are not finite, which JSON cannot express."""
    kind = type(value)
    if kind is dict:
        return {key: _finite(each) for key, each in value.items()}
    if kind is list:
        return [_finite(each) for each in value]
    if kind is float and not math.isfinite(value):
        return None
    return restore(value) if kind is bytes else value


def _reason(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__
