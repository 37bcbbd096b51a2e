"""A directory, as a process of slapd."""

import atexit
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tests.systems.servers.slapd import Slapd, user

from . import Setup


@cache
def server_of_tests() -> Slapd:
    """One for all tests of a process."""
    server = Slapd()
    atexit.register(server.close)
    server.start()
    return server


def settings_of(server: Slapd, **more: Any) -> dict[str, Any]:
    return {
        "servers": "127.0.0.1", "port": server.port, "bind_dn": server.admin_dn, "bind_password": server.password,
        **more,
    }  # fmt: skip


def ssha(password: str) -> str:
    return "{SSHA}" + base64.b64encode(hashlib.sha1(password.encode() + b"salt").digest() + b"salt").decode()


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    server = server_of_tests()
    try:
        if not server.runs:
            server.start()
        server.clear()
        server.change("add", user("ann", ssha("right"), "mqttPubSubTopic: open"))

        async def away() -> None:
            server.kill()

        async def back() -> None:
            server.start()

        yield Setup(settings={"ldap": settings_of(server)}, denies=False, away=away, back=back)
    finally:
        if not server.runs:
            server.start()
