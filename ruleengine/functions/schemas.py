"""Payloads that a schema describes."""

from __future__ import annotations

from typing import Final

from .budget import BudgetExceeded
from .function import ANY, BYTES, MAP, TEXT, FunctionContext, register

SPARKPLUG: Final = "sparkplug_b"
"""The name of the built-in schema."""


@register("schema_decode", TEXT, BYTES, TEXT, optional=1, context=True)
def schema_decode(context: FunctionContext, name: str, data: bytes, message: str | None = None) -> object:
    """Decode the data with a schema; Protobuf also needs the name of the message type."""
    return context.codec(name).decode(data, message, context.budget)


@register("schema_encode", TEXT, ANY, TEXT, optional=1, context=True)
def schema_encode(context: FunctionContext, name: str, value: object, message: str | None = None) -> bytes:
    """Encode the value with a schema; Protobuf also needs the name of the message type."""
    return context.codec(name).encode(value, message, context.budget)


@register("schema_check", TEXT, ANY, TEXT, optional=1, context=True)
def schema_check(context: FunctionContext, name: str, value: object, message: str | None = None) -> bool:
    """Return whether a string can be decoded, or another value encoded, with the schema."""
    codec = context.codec(name)
    try:
        if isinstance(value, str | bytes):
            codec.decode(value.encode() if isinstance(value, str) else value, message, context.budget)
        else:
            codec.encode(value, message, context.budget)
    except BudgetExceeded:
        raise
    except ValueError:
        return False
    return True


@register("sparkplug_decode", BYTES, context=True)
def sparkplug_decode(context: FunctionContext, data: bytes) -> object:
    """Decode a payload of Sparkplug B; each metric gets ``value``, and the name of its data type."""
    return context.codec(SPARKPLUG).decode(data, None, context.budget)


@register("sparkplug_encode", MAP, context=True)
def sparkplug_encode(context: FunctionContext, value: dict[str, object]) -> bytes:
    """Encode a payload of Sparkplug B from a map as ``sparkplug_decode`` returns it."""
    return context.codec(SPARKPLUG).encode(value, None, context.budget)
