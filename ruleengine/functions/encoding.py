"""Base64 and JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from .function import ANY, OCTETS, Context, register
from .values import decode_json, encode_json


@register("base64_encode", OCTETS)
def to_base64(octets: bytes) -> str:
    """The string in Base64, padded."""
    return base64.b64encode(octets).decode()


@register("base64_decode", OCTETS)
def from_base64(octets: bytes) -> bytes:
    """What a padded Base64 text holds; white space in it is skipped."""
    try:
        return binascii.a2b_base64(octets.translate(None, b" \t\r\n"), strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"this is no Base64: {error}") from error


@register("json_encode", ANY, context=True)
def to_json(context: Context, value: Any) -> str:
    """Compact JSON; undefined becomes null, and binary Base64."""
    return encode_json(value, context.budget)


@register("json_decode", OCTETS, context=True)
def from_json(context: Context, octets: bytes) -> Any:
    """The value of a JSON text."""
    return decode_json(octets, context.budget)
