"""Redis, as a process."""

import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tests.systems.servers.redis import RedisServer

from . import Setup


@cache
def server_of_tests() -> RedisServer:
    """One for all tests of a process: a start takes seconds."""
    server = RedisServer()
    atexit.register(server.close)
    server.start()
    return server


def settings_of(server: RedisServer, **more: Any) -> dict[str, Any]:
    return {"server": server.address, "password": server.password, "super_cmd": "", **more}


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    server = server_of_tests()
    try:
        if not server.runs:
            server.start()
        server.say("FLUSHALL")
        server.say("HSET", "mqtt_user:ann", "password", "right")
        server.say("HSET", "mqtt_acl:ann", "open", "3")

        async def away() -> None:
            server.kill()

        async def back() -> None:
            server.start()

        settings = {"redis": settings_of(server)}
        yield Setup(settings=settings, reads_filters=False, denies_rest=True, away=away, back=back)
    finally:
        if not server.runs:
            server.start()
