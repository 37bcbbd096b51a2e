"""Stored users and rules, which the node makes itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.access.stored.rules import ALL, PUBSUB, StoredAclRules
from taipan.broker.access.stored.source import StoredSource
from taipan.broker.access.stored.users import USERNAME, StoredUsers
from taipan.broker.persistence.tables import Tables
from tests.support.clock import Clock

from . import Setup


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    tables = Tables()
    users, rules = StoredUsers(tables, Clock()), StoredAclRules(tables)  # type: ignore[arg-type]
    users.put(USERNAME, "ann", ScryptHash.create(b"right", n=16))
    for topic, allow in (("open", True), ("shut", False)):
        rules.append(ALL, "", topic, PUBSUB, allow, 0.0)
    yield Setup(settings={}, made=[StoredSource(users, rules)], reads_filters=True)
