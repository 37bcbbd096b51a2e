"""Digests of strings, as lower-case hexadecimal digits."""

from __future__ import annotations

import hashlib

from .function import BYTES, register


@register("md5", BYTES)
def md5(data: bytes) -> str:
    """Return the MD5 digest."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@register("sha", BYTES)
def sha(data: bytes) -> str:
    """Return the SHA-1 digest."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@register("sha256", BYTES)
def sha256(data: bytes) -> str:
    """Return the SHA-256 digest."""
    return hashlib.sha256(data).hexdigest()
