"""Users in PostgreSQL and Redis, as clients see them: many at once, and users and rules that change while clients are
connected (docs/systems/users-in-a-database.md#when-users-or-rules-change)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
import pytest_asyncio

from tests.broker.access.sources import postgresql as postgresql_setup
from tests.broker.access.sources import redis as redis_setup
from tests.broker.access.sources import sql_tables
from tests.broker.access.sources.sql_tables import sha256
from tests.support.node import Node, start_node
from tests.support.patience import patience
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio

TTL = 60.0
"""``access.cache_ttl``, the default."""


class Database(Protocol):
    """What an operator does in a database."""

    name: str

    def settings(self) -> dict[str, Any]: ...

    def add(self, user: str, password: str, superuser: bool = False) -> None:
        """``user`` may publish and subscribe to ``plant``."""

    def change_password(self, user: str, password: str) -> None: ...

    def delete(self, user: str) -> None:
        """The user; its rules stay."""

    def deny(self, user: str) -> None:
        """``plant``."""

    def degrade(self, user: str) -> None:
        """It is no superuser any more."""


class InPostgresql:
    name = "postgresql"

    def __init__(self) -> None:
        self._server = postgresql_setup.server_of_tests()
        self._server.query(postgresql_setup.TABLES)

    def settings(self) -> dict[str, Any]:
        query = "select is_superuser from mqtt_user where username = '%u'"
        return sql_tables.settings_of(self._server, super_query=query)

    def add(self, user: str, password: str, superuser: bool = False) -> None:
        self._server.query(
            f"insert into mqtt_user (username, password, is_superuser) values ('{user}', '{sha256(password)}', "
            f"{superuser}); insert into mqtt_acl (allow, username, access, topic) values (1, '{user}', 3, 'plant')"
        )

    def change_password(self, user: str, password: str) -> None:
        self._server.query(f"update mqtt_user set password = '{sha256(password)}' where username = '{user}'")

    def delete(self, user: str) -> None:
        self._server.query(f"delete from mqtt_user where username = '{user}'")

    def deny(self, user: str) -> None:
        self._server.query(f"update mqtt_acl set allow = 0 where username = '{user}'")

    def degrade(self, user: str) -> None:
        self._server.query(f"update mqtt_user set is_superuser = false where username = '{user}'")


class InRedis:
    name = "redis"

    def __init__(self) -> None:
        self._server = redis_setup.server_of_tests()
        self._server.say("FLUSHALL")

    def settings(self) -> dict[str, Any]:
        return redis_setup.settings_of(self._server, super_cmd="HGET mqtt_user:%u is_superuser")

    def add(self, user: str, password: str, superuser: bool = False) -> None:
        self._server.say("HSET", f"mqtt_user:{user}", "password", password, "is_superuser", str(int(superuser)))
        self._server.say("HSET", f"mqtt_acl:{user}", "plant", "3")

    def change_password(self, user: str, password: str) -> None:
        self._server.say("HSET", f"mqtt_user:{user}", "password", password)

    def delete(self, user: str) -> None:
        self._server.say("DEL", f"mqtt_user:{user}")

    def deny(self, user: str) -> None:
        self._server.say("DEL", f"mqtt_acl:{user}")
        self._server.say("HSET", f"mqtt_acl:{user}", "other", "3")

    def degrade(self, user: str) -> None:
        self._server.say("HSET", f"mqtt_user:{user}", "is_superuser", "0")


@pytest.fixture(params=[InPostgresql, InRedis], ids=["postgresql", "redis"])
def database(request: pytest.FixtureRequest) -> Database:
    made: Database = request.param()
    return made


@pytest.fixture(params=[4, 5], ids=["v4", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest_asyncio.fixture
async def node(database: Database) -> AsyncIterator[Node]:
    """Its time stands still, so that decisions are cached until the test lets it pass."""
    started = await start_node(
        {"allow_anonymous": False}, access={"no_match": "deny", "cache_ttl": TTL, database.name: database.settings()}
    )
    await started.stand_still()
    try:
        yield started
    finally:
        await started.stop()


async def connect(node: Node, version: int, user: str, password: str) -> Peer:
    return await node.client(f"client of {user}", version, username=user, password=password.encode())


async def refused(node: Node, version: int, user: str, password: str) -> None:
    peer = node.peer(version)
    await peer.connect(f"other client of {user}", username=user, password=password.encode(), expect=None)
    assert peer.connack.reason_code in ((0x86,) if version == 5 else (4, 5))


async def published(peer: Peer, listener: Peer) -> bool:
    """Whether a publish to ``plant`` was accepted: a subscriber receives it."""
    code = await peer.publish("plant", b"from the client", 1, expect=None)
    await listener.publish("plant", b"last", 1)
    first = await listener.expect_publish("plant", None)
    if first.payload == b"from the client":
        await listener.expect_publish("plant", b"last")
    accepted = first.payload == b"from the client"
    if peer.version == 5:
        assert (code < 0x80) == accepted
    return accepted


async def test_a_user_that_is_deleted_or_has_a_new_password(database: Database, node: Node, version: int) -> None:
    """It counts for the next login, whatever was cached; whoever is connected stays."""
    database.add("ann", "right")
    database.add("bob", "right")
    ann = await connect(node, version, "ann", "right")
    bob = await connect(node, version, "bob", "right")
    await bob.subscribe("plant")
    database.change_password("ann", "new")
    await refused(node, version, "ann", "right")
    assert await published(ann, bob)
    ann = await connect(node, version, "ann", "new")  # takes over
    database.delete("ann")
    await refused(node, version, "ann", "new")
    assert await published(ann, bob)
    await node.pass_time(TTL + 1)
    assert await published(ann, bob)  # its rules are still there


async def test_rules_that_change(database: Database, node: Node, version: int) -> None:
    """A cached decision ends after ``cache_ttl``, or at once with DELETE /acl-cache, which also ends subscriptions."""
    database.add("ann", "right")
    database.add("bob", "right")
    ann = await connect(node, version, "ann", "right")
    bob = await connect(node, version, "bob", "right")
    await bob.subscribe("plant")
    await ann.subscribe("plant")
    assert await published(ann, bob)
    await ann.expect_publish("plant", b"from the client")
    await ann.expect_publish("plant", b"last")
    database.deny("ann")
    await node.pass_time(TTL - 1)
    assert await published(ann, bob)
    await node.pass_time(2)
    assert not await published(ann, bob)
    # Its subscription was permitted when it was made.
    for payload in (b"from the client", b"last", b"last"):
        await ann.expect_publish("plant", payload)
    await refused_to_subscribe(ann)
    subscriptions = node.server.context.channels[ann.client_id].session.subscriptions
    async with asyncio.timeout(patience(40)):
        while "plant" in subscriptions:
            await asyncio.sleep(0.01)
    assert not await published(ann, bob)
    await ann.nothing()


async def refused_to_subscribe(peer: Peer) -> None:
    await peer.subscribe("plant", expect=[0x87 if peer.version == 5 else 0x80])


async def test_a_superuser_that_is_none_any_more(database: Database, node: Node, version: int) -> None:
    """It keeps the right as long as it is connected."""
    database.add("root", "right", superuser=True)
    database.add("bob", "right")
    bob = await connect(node, version, "bob", "right")
    await bob.subscribe("plant")
    root = await connect(node, version, "root", "right")
    database.deny("root")
    assert await published(root, bob)
    database.degrade("root")
    await node.pass_time(TTL + 1)
    assert await published(root, bob)
    root = await connect(node, version, "root", "right")
    assert not await published(root, bob)


CLIENTS = 300


@pytest.mark.parametrize("database", [InPostgresql], indirect=True, ids=["postgresql"])
async def test_many_clients_at_a_node_that_has_just_started(database: Database) -> None:
    """All of them together need several times the time-out, and the database has no connection but the first."""
    postgresql_setup.server_of_tests().query(
        "insert into mqtt_user (username, password) "
        f"select 'u' || n, '{sha256('right')}' from generate_series(0, {CLIENTS - 1}) n"
    )
    slow = "select password from mqtt_user, pg_sleep(0.02) where username = '%u'"
    settings = {**database.settings(), "auth_query": slow, "super_query": "", "pool_size": 2, "timeout": patience(1)}
    node = await start_node({"allow_anonymous": False}, access={"postgresql": settings})
    try:
        peers = await asyncio.gather(
            *(connect(node, 4 + number % 2, f"u{number}", "right") for number in range(CLIENTS))
        )
        assert len(peers) == CLIENTS and not node.server.metrics.refusals.snapshot()
    finally:
        await node.stop()
