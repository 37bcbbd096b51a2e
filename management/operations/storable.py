"""Storable: whether what somebody sent as JSON can be kept and given back."""

from typing import Any, Final

from .refusal import wrong

MAX_DEPTH: Final = 32
_LEAST: Final = -(2**63)
_MOST: Final = 2**64 - 1


def check_storable(key: str, value: Any) -> None:
    """Raises Refusal where it is nested too deeply or has integers of more than 64 bits. ``key``: what it is."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, int) and not _LEAST <= each <= _MOST:
                raise wrong(key, "an integer has more than 64 bits")
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return
        level = inner
    raise wrong(key, f"nested deeper than {MAX_DEPTH}")
