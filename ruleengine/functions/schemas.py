"""Payloads that a schema describes."""

from __future__ import annotations

from .budget import BudgetExceeded
from .function import ANY, BYTES, TEXT, FunctionContext, register


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
