"""Random numbers and identifiers."""

from __future__ import annotations

import random
import uuid

from .function import register


@register("random")
def random_number() -> float:
    """Return a random float from 0 up to, but not including, 1."""
    return random.random()


@register("uuid_v4")
def uuid_v4() -> str:
    """Return a random UUID with hyphens."""
    return str(uuid.uuid4())


@register("uuid_v4_no_hyphen")
def uuid_v4_no_hyphen() -> str:
    """Return a random UUID of 32 digits."""
    return uuid.uuid4().hex
