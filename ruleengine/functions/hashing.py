"""Digests of strings, as lower-case hexadecimal digits."""

from __future__ import annotations

import hashlib

from .function import OCTETS, register


@register("md5", OCTETS)
def md5(octets: bytes) -> str:
    """The MD5 digest."""
    return hashlib.md5(octets, usedforsecurity=False).hexdigest()


@register("sha", OCTETS)
def sha(octets: bytes) -> str:
    """The SHA-1 digest."""
    return hashlib.sha1(octets, usedforsecurity=False).hexdigest()


@register("sha256", OCTETS)
def sha256(octets: bytes) -> str:
    """The SHA-256 digest."""
    return hashlib.sha256(octets).hexdigest()
