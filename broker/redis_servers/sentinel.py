"""to_master: a connection to the master that sentinels name. They name another server after the master has failed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from .connection import Address, RedisConnection

Connection = TypeVar("Connection", bound=RedisConnection)


async def to_master(
    sentinels: Sequence[Address],
    name: str,
    open_sentinel: Callable[[Address], Awaitable[RedisConnection]],
    open_server: Callable[[Address], Awaitable[Connection]],
    timeout: float,
) -> Connection:
    """Ask one sentinel after the other, and connect. ``timeout``: seconds for all sentinels together. Raises the first
    OSError."""
    refusal: OSError | None = None
    for sentinel in sentinels:
        try:
            async with asyncio.timeout(timeout / len(sentinels)):
                address = await _named_by(await open_sentinel(sentinel), name)
            return await _checked(address, await open_server(address))
        except OSError as error:
            refusal = refusal or error
    raise refusal or OSError("no sentinel")


async def _named_by(sentinel: RedisConnection, name: str) -> Address:
    try:
        answer = await sentinel.ask(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.encode())
    finally:
        sentinel.abort()
    if not isinstance(answer, list) or len(answer) != 2:
        raise OSError(f"the sentinels have no master with the name {name}")
    return answer[0].decode(), int(answer[1])


async def _checked(address: Address, connection: Connection) -> Connection:
    """Check that the server is still a master: it may have become a replica."""
    is_master = False
    try:
        role = await connection.ask(b"ROLE")
        is_master = isinstance(role, list) and bool(role) and role[0] == b"master"
    finally:
        if not is_master:
            connection.abort()
    if not is_master:
        raise OSError(f"{address[0]}:{address[1]} is no longer the master")
    return connection
