"""Users and rules of the configuration file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taipan.broker.access.password_hash import ScryptHash

from . import Setup


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    settings = {
        "users": [{"username": "ann", "password_hash": str(ScryptHash.create(b"right", n=16))}],
        "rules": [
            {"allow": True, "topics": ["open"], "username": "ann"},
            {"allow": False, "topics": ["shut"], "username": "ann"},
        ],
    }
    yield Setup(settings=settings, lasts=False, reads_filters=True)
