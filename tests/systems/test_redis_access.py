"""Users and rules in Redis: superusers, the list of topics, names with spaces, a server that hangs, and a wrong
password."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES
from tests.broker.access.sources.redis import server_of_tests, settings_of
from tests.broker.access.test_sources import client, control, decision, log_in

DECLARED = next(source for source in ACCESS_SOURCES if source.name == "redis")


@asynccontextmanager
async def asked(**settings: Any) -> AsyncIterator[AccessControl]:
    server = server_of_tests()
    server.say("FLUSHALL")
    server.say("HSET", "mqtt_user:ann", "password", "right", "is_superuser", "1")
    access = control({"redis": settings_of(server, **settings)}, DECLARED)
    access.start()
    try:
        yield access
    finally:
        await access.stop()


@pytest.mark.asyncio
async def test_the_list_of_topics() -> None:
    async with asked() as access:
        server_of_tests().say("HSET", "mqtt_acl:ann", "a/+", "1", "b/%c", "2", "x-%u/#", "3")
        who = client()
        await log_in(access, who, b"right")
        for action, topic, allowed in (
            ("subscribe", "a/+", True), ("subscribe", "a/1", True), ("subscribe", "a/#", False),
            ("publish", "a/1", False), ("publish", "b/c", True), ("publish", "b/d", False),
            ("subscribe", "x-ann/#", True), ("subscribe", "#", False),
        ):  # fmt: skip
            (told,) = await access.authorization.ask(who, action, [topic])
            assert told.allowed == allowed and not told.ignored, (action, topic)
        other = client("bob")
        other.proved_by = "redis"
        assert (await decision(access, other, "a/1")).ignored
        server_of_tests().say("HSET", "mqtt_acl:ann", "c", "5")
        told = await decision(access, who, "c")
        assert not told.allowed and not told.lasting


@pytest.mark.asyncio
async def test_superusers_and_names_with_spaces() -> None:
    async with asked(super_cmd="HGET mqtt_user:%u is_superuser") as access:
        server_of_tests().say("HSET", "mqtt_user:ann lee", "password", "right")
        assert (await log_in(access, client(), b"right")).is_superuser
        assert not (await log_in(access, client("ann lee"), b"right")).is_superuser
        assert (await log_in(access, client("ann is_superuser"), b"1")).reason_code == 0x86


@pytest.mark.asyncio
async def test_a_server_that_hangs_and_a_wrong_password() -> None:
    async with asked(timeout=0.3, connect_timeout=0.3) as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().pause()
        try:
            refused = await log_in(access, client(), b"right")
            assert (refused.reason_code, refused.detail) == (0x88, "redis_timeout")
        finally:
            server_of_tests().resume()
        assert (await log_in(access, client(), b"right")).reason_code == 0
    async with asked(password="other") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "redis_no_connection")
    async with asked(auth_cmd="GET mqtt_user:%u") as access:  # WRONGTYPE
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "redis_query")
