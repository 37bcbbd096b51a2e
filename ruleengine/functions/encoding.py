"""Base64 and JSON."""

from __future__ import annotations

import base64
import binascii

from .function import ANY, BYTES, FunctionContext, register
from .values import decode_json, encode_json


@register("base64_encode", BYTES)
def to_base64(data: bytes) -> str:
    """Encode the string as Base64 with padding."""
    return base64.b64encode(data).decode()


@register("base64_decode", BYTES)
def from_base64(data: bytes) -> bytes:
    """Decode a padded Base64 text; whitespace in it is skipped."""
    try:
        return binascii.a2b_base64(data.translate(None, b" \t\r\n"), strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"not Base64: {error}") from error


@register("json_encode", ANY, context=True)
def to_json(context: FunctionContext, value: object) -> str:
    """Encode the value as compact JSON; undefined becomes null, and binary becomes Base64."""
    return encode_json(value, context.budget)


@register("json_decode", BYTES, context=True)
def from_json(context: FunctionContext, data: bytes) -> object:
    """Decode a JSON text."""
    return decode_json(data, context.budget)
