"""The wall clock is set while the node runs (NTP after a boot without a clock, a machine that slept): dates follow it,
intervals do not."""

import json
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import pytest_asyncio

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Will
from tests.support.api import ApiClient, ManagedNode, managed_node

pytestmark = pytest.mark.asyncio

SECRET = "a secret of thirty-two characters, at least"
YEARS = 1_500_000_000.0
HOUR = 3600.0


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[ManagedNode]:
    async with managed_node(
        zone={"session_expiry_interval": 1000},
        access={"jwt": {"secret": SECRET}},
        durability={"level": "disk"},
        node={"data_dir": str(tmp_path)},
        sys_topics={"heartbeat": 5, "interval": 0},
    ) as node:
        yield node


def token(expires: float) -> bytes:
    return jwt.encode({"sub": "ann", "exp": int(expires)}, SECRET, "HS256").encode()


async def jump(node: ManagedNode, seconds: float) -> None:
    node.clock.jump += seconds
    await node.server.tick()


async def test_tokens_end_by_the_date_of_now(node: ManagedNode) -> None:
    good = token(time.time() + HOUR)
    peer = await node.client("one", username="ann", password=good)
    await node.pass_time(100)
    await peer.ping()
    await jump(node, 2 * HOUR)
    await peer.expect_disconnect(rc.NOT_AUTHORIZED)
    again = node.peer()
    await again.connect("two", username="ann", password=good, expect=rc.BAD_USER_NAME_OR_PASSWORD)
    await jump(node, -3 * HOUR)
    later = await node.client("three", username="ann", password=token(time.time() - HOUR / 2))
    await later.ping()


async def test_bans_and_applications_end_by_the_date_of_now(node: ManagedNode) -> None:
    now = int(time.time())
    ban = {"who": "mallory", "as": "clientid", "until": now + int(HOUR)}
    (await node.api.post("/banned", ban)).data  # noqa: B018
    app = {"app_id": "short", "name": "x", "secret": "s" * 20, "expired": now + int(HOUR)}
    (await node.api.post("/apps", app)).data  # noqa: B018
    short = ApiClient(node.management.url, app=("short", "s" * 20))
    try:
        refused = node.peer()
        await refused.connect("mallory", expect=rc.BANNED)
        assert (await short.get("/brokers")).status == 200
        await jump(node, 2 * HOUR)
        assert (await short.get("/brokers")).status == 401
        await node.client("mallory")
        assert (await node.api.get("/banned")).data == []
        # A ban of now lasts from now.
        (await node.api.post("/banned", {"who": "late", "as": "clientid"})).data  # noqa: B018
        (row,) = (await node.api.get("/banned")).data
        assert row["until"] >= now + 2 * HOUR + 300 - 1
        await (node.peer()).connect("late", expect=rc.BANNED)
    finally:
        await short.close()


async def test_delays_for_a_date_follow_it_and_those_for_a_while_do_not(node: ManagedNode) -> None:
    watcher = await node.client("watcher")
    await watcher.subscribe("t/#")
    publisher = await node.client("publisher")
    await publisher.publish(f"$delayed/{int(time.time() + HOUR)}/t/date", b"x", 1)
    await publisher.publish("$delayed/600/t/while", b"x", 1)
    await watcher.nothing()
    await jump(node, 2 * HOUR)
    await watcher.expect_publish("t/date")
    await watcher.nothing()
    await node.pass_time(601)
    await watcher.expect_publish("t/while")


@pytest.mark.parametrize("seconds", [2 * HOUR, -2 * HOUR, YEARS])
async def test_intervals_do_not_notice(node: ManagedNode, seconds: float) -> None:
    peer = await node.client("alive", keep_alive=60)
    await node.leave_session("away", "t/#")
    will = Will("t/will", b"x", 0, False, {c.WILL_DELAY_INTERVAL: 100})
    gone = await node.client("gone", expiry=500, will=will)
    gone.abort()
    await node.settled(1)
    await peer.publish("t/1", b"x", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 300})
    await jump(node, seconds)
    await peer.ping()
    assert len(node.server.broker.sessions) == 3
    assert node.server.broker.sessions.get("away").queued == 1  # type: ignore[union-attr]
    back = await node.client("away", 4, clean_start=False)
    await back.expect_publish("t/1")
    await back.nothing()
    await node.pass_time(101)
    await back.expect_publish("t/will")


async def test_every_datetime_is_of_now(node: ManagedNode) -> None:
    """Also that of what began before the clock was set: it was as long ago as it was."""
    peer = await node.client("one")
    await peer.subscribe("$SYS/brokers/+/datetime", "out")
    await peer.publish("kept", b"x", 1, True)
    action = {"name": "republish", "params": {"target_topic": "out", "payload_tmpl": "${timestamp}", "target_qos": 0}}
    (await node.api.post("/rules", {"rawsql": 'SELECT timestamp FROM "in"', "actions": [action]})).data  # noqa: B018
    node.server.alarms.activate("a", "an alarm")
    before = time.time()
    await jump(node, YEARS)

    def is_now(told: float) -> bool:
        return abs(told - before - YEARS) < 60

    def read(text: str) -> float:
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))

    (row,) = (await node.api.get("/clients/one")).data
    (kept,) = (await node.api.get("/retained")).data
    (brokers,) = (await node.api.get("/brokers")).data
    explained = (await node.api.get("/clients/one/explain")).data
    assert all(map(is_now, map(read, (row["connected_at"], row["created_at"], kept["publish_at"]))))
    assert is_now(read(brokers["datetime"]))
    assert is_now(read(explained["session"]["created_at"])) and is_now(read(explained["events"][-1]["at"]))
    (alarms,) = (await node.api.get("/alarms/activated")).data
    assert is_now(alarms["alarms"][0]["activate_at"] / 1e6)
    await node.pass_time(6)
    told: Any = None
    while told is None or not is_now(read(told.payload.decode())):
        told = await peer.expect_publish()
    await peer.publish("in", b"x")
    while told.topic != "out":
        told = await peer.expect_publish()
    assert is_now(json.loads(told.payload) / 1000)


@pytest.mark.parametrize("seconds", [2.0, -2.0, YEARS, -YEARS])
async def test_a_session_whose_client_is_connected_when_the_node_dies_does_not_expire(
    tmp_path: Path, seconds: float
) -> None:
    """Its record has no date of its client's leaving, whenever the clock was set: before the client came, or after."""
    dead = tmp_path / "dead"
    dead.mkdir()
    config: dict[str, Any] = {"zone": {"session_expiry_interval": 1000}, "durability": {"level": "disk"}}
    async with managed_node(**config, node={"data_dir": str(dead)}) as node:
        before = await node.client("before", expiry=1000)
        await before.subscribe("t", qos=1)
        await jump(node, seconds)
        after = await node.client("after", expiry=1000)
        await after.subscribe("t", qos=1)
        await (await node.client("again", expiry=1000)).drop()
        await node.client("again", expiry=1000, session_present=True)
        await (await node.client("publisher")).publish("t", b"1", qos=1)
        shutil.copytree(dead, tmp_path / "next", ignore=shutil.ignore_patterns("*.sock", "lock"))
    async with managed_node(**config, node={"data_dir": str(tmp_path / "next")}) as node:
        for client_id in ("before", "after", "again"):
            await node.client(client_id, expiry=1000, session_present=True)


async def test_what_is_stored_has_dates(tmp_path: Path) -> None:
    """A restart counts from the dates, and from now where these are to come."""
    config: dict[str, Any] = {
        "zone": {"session_expiry_interval": 1000},
        "durability": {"level": "disk"},
        "node": {"data_dir": str(tmp_path)},
    }
    async with managed_node(**config) as node:
        await jump(node, -YEARS)
        await node.pass_time(2)
        await node.leave_session("of 1979", "t/#")
        await jump(node, YEARS)
        await node.pass_time(2)
        await jump(node, -604)
        await node.leave_session("away", "t/#")
        # Half an hour ahead of what the next start has.
        await jump(node, 604 + HOUR / 2)
        await node.leave_session("ahead", "t/#")
    async with managed_node(**config) as node:
        assert {session.client_id for session in node.server.broker.sessions} == {"of 1979", "away", "ahead"}
        await node.pass_time(500)
        assert {session.client_id for session in node.server.broker.sessions} == {"of 1979", "ahead"}
        await node.pass_time(600)
        assert len(node.server.broker.sessions) == 0
