"""A store with everything that a node keeps, and whether all of it is there.

.venv/bin/python -m tests.upgrade.kept_store

writes ``tests/upgrade/store-VERSION.tar.xz`` with the code of this checkout: at each release, which keeps it for all
versions to come. Names of clients, topics and records stay the same, so that one ``check`` does for all of them.
"""

import asyncio
import contextlib
import io
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from taipan.broker.mqtt import constants as c
from taipan.broker.version import product_version
from taipan.management.configuration.settings import DashboardSettings, ManagementSettings
from taipan.ruleengine.config import RuleEngineSettings
from tests.support.api import APP_ID, SECRET, ApiClient, ManagedNode, connect_code
from tests.support.ctl import ctl_json, done
from tests.support.http_sink import HttpSink, status
from tests.support.node import NOBODYS_PORT, make_settings
from tests.support.waiting import until
from tests.support.wire import Ack, Publish, Will

DIRECTORY: Final = Path(__file__).parent
FILES: Final = ("taipan.db", "taipan.db-wal", "taipan.check")
DAY: Final = 86_400
YEAR: Final = 365 * DAY
NEVER: Final = 0xFFFF_FFFF
HOOK: Final = "resource:kept"
RULE: Final = "rule:kept"
USER: Final = {"username": "ann", "password": b"secret"}
RULEENGINE: Final = {"retry_backoff": 0.01, "retry_backoff_max": 0.05, "breaker_failures": 1000}
TABLES: Final = (
    "apps", "banned", "dashboard_users", "modules", "resources", "rule_buffers", "rule_counters", "rule_dead_letters",
    "rules", "rules_of_access", "topic_metrics", "traces", "users",
)  # fmt: skip


@contextlib.asynccontextmanager
async def opened(directory: Path, made_at: float | None = None) -> AsyncIterator[ManagedNode]:
    """A node with its data there. ``made_at``: when its clock begins, unless it is today's."""
    settings = make_settings(node={"data_dir": str(directory)}, durability={"level": "disk"})
    table = {"bind": "127.0.0.1:0", "apps": [{"id": APP_ID, "secret": SECRET}]}
    node = ManagedNode(
        settings, msgspec.convert(table, ManagementSettings), msgspec.convert(RULEENGINE, RuleEngineSettings),
        dashboard=msgspec.convert({"enabled": True, "bind": "127.0.0.1:0"}, DashboardSettings),
    )  # fmt: skip
    if made_at is not None:
        node.clock.shift = made_at - time.time()
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def fill(node: ManagedNode, port: int | None) -> None:
    """Everything. ``port``: of the web hook, unless it is a free one."""
    await done(node, "users", "add", "ann", "secret", "true")
    await done(node, "clientid", "add", "by-its-name", "secret")
    await done(node, "acl", "add", "username", "bob", "only/this", "sub", "allow")
    await done(node, "acl", "add", "clientid", "porch", "porch/#", "pubsub", "deny")
    await done(node, "acl", "add", "_anonymous", "secret/#", "sub", "deny")
    await done(node, "acl", "add", "_all", "closed/#", "pub", "deny")
    await done(node, "banned", "add", "clientid", "bad", "--reason", "flood", "--seconds", str(20 * YEAR))
    await done(node, "admins", "add", "olga", "A secret, 9 of them", "--role", "viewer")
    reply = await node.api.post("/apps", {"app_id": "exporter", "name": "An exporter", "secret": "an old secret"})
    assert reply.code == 0
    await done(node, "modules", "load", "emqx_mod_slow_subs")
    await done(node, "topic-metrics", "add", "counted")
    await done(node, "traces", "start", "mine", "clientid", "porch", str(YEAR))
    await _resource_with_rows(node, port)
    await _sessions(node)
    peer = await node.client("delaying", 5, **USER)
    await peer.publish(f"$delayed/{2 * DAY}/later", b"delayed", qos=1, retain=True)
    await peer.disconnect()
    will = Will("wills/dying", b"gone", 1, True, {c.WILL_DELAY_INTERVAL: 2 * DAY})
    dying = await node.client("dying", 5, expiry=YEAR, will=will, **USER)
    await dying.drop()
    await until(lambda: not node.server.broker.sessions.get("dying").connected)


async def _resource_with_rows(node: ManagedNode, port: int | None) -> None:
    """A rule whose resource set one row aside, and has another one waiting."""
    sink = HttpSink()
    sink.port = port or sink.port
    await sink.start()
    sink.answer = status(500)
    hook = {"id": HOOK, "type": "web_hook", "config": {"url": sink.url, "retry_attempts": 2}, "description": "kept"}
    assert (await node.api.post("/resources", hook)).code == 0
    action = {"name": "data_to_webserver", "params": {"$resource": HOOK}}
    rule = {"id": RULE, "rawsql": 'SELECT payload as p FROM "hooked"', "actions": [action], "description": "kept"}
    assert (await node.api.post("/rules", rule)).code == 0
    peer = await node.client("hooking", 5, **USER)
    await peer.publish("hooked", b"set aside", qos=1)
    await until(lambda: node.engine.buffers.dead_letters.count(HOOK) == 1)
    await sink.stop()
    await peer.publish("hooked", b"waits", qos=1)
    await peer.disconnect()


async def _sessions(node: ManagedNode) -> None:
    """One with messages in flight, queued and received half; an old one; shared subscriptions; retained messages."""
    away = await node.client("away", 5, expiry=NEVER, **USER)
    await away.subscribe("q/#", qos=2, retain_as_published=True, identifier=7)
    await away.subscribe("$share/g/shared", qos=1)
    old = await node.client("old", 4, clean_start=False, **USER)
    await old.subscribe("q/+", qos=1)
    await old.drop()
    sender = await node.client("sender", 5, expiry=NEVER, **USER)
    await sender.publish("q/1", b"in flight", qos=1)
    await away.expect_publish("q/1", b"in flight", 1, acknowledge=False)
    await sender.publish("q/2", b"half", qos=2)
    half = await away.expect_publish("q/2", b"half", 2, acknowledge=False)
    await away.pubrec(half.packet_id)
    await away.answer(Ack, type=c.PUBREL, packet_id=half.packet_id)
    await away.drop()
    await until(lambda: not node.server.broker.sessions.get("away").connected)
    properties = {
        c.CONTENT_TYPE: "text/plain", c.RESPONSE_TOPIC: "answers", c.CORRELATION_DATA: b"\x00\xff",
        c.USER_PROPERTY: [("a", "1"), ("a", "2")],
    }  # fmt: skip
    await sender.publish("q/3", b"queued", qos=1, retain=True, properties=properties)
    await sender.publish("shared", b"to the group", qos=1)
    await sender.publish("kept/binary", bytes(range(256)), qos=1, retain=True)
    await sender.send(Publish("q/4", b"once", 2, False, False, 77, {}))
    await sender.expect_ack(c.PUBREC, 77)
    await sender.drop()
    await until(lambda: not node.server.broker.sessions.get("sender").connected)


async def check(node: ManagedNode) -> None:
    """All of it is there. It is used up by this."""
    assert await done(node, "data", "loss") == ["Nothing is lost."]
    missing = set(TABLES) - node.server.tables._encoded.keys()
    assert not missing, missing
    await _check_access(node)
    active = {row["name"] for row in await ctl_json(node, "modules", "list") if row["active"]}
    assert "emqx_mod_slow_subs" in active
    assert "counted" in (await done(node, "topic-metrics", "list"))[0]
    (trace,) = await ctl_json(node, "traces", "list")
    assert (trace["name"], trace["clientid"]) == ("mine", "porch")
    rule = await ctl_json(node, "rules", "show", RULE)
    assert rule["description"] == "kept" and rule["enabled"] and rule["metrics"][0]["matched"] == 2
    resource = (await node.api.get(f"/resources/{HOOK}")).data
    assert resource["description"] == "kept" and resource["config"]["url"].startswith("http://127.0.0.1:")
    assert resource["status"][0]["buffer"]["waiting"] == 1
    (letter,) = await ctl_json(node, "resources", "dead-letters", HOOK)
    assert "set aside" in str(letter)
    await _check_sessions(node)
    await node.pass_time(3 * DAY)
    await until(lambda: {"later", "wills/dying"} <= set(retained_topics(node)))
    found = (await node.api.get("/retained/later")).data
    assert found["topic"] == "later"


def retained_topics(node: ManagedNode) -> list[str]:
    return list(node.server.broker.retained.topics())


async def _check_access(node: ManagedNode) -> None:
    assert await connect_code(node, "x", "ann", b"secret") == 0
    assert await connect_code(node, "x", "ann", b"wrong") != 0
    assert await done(node, "clientid", "list") == ["by-its-name"]
    assert await done(node, "users", "show", "ann") == ['User(login = "ann" is_super = true)']
    assert await done(node, "acl", "show", "username", "bob") == [
        'Acl(username = "bob" topic = "only/this" action = sub access = allow)'
    ]
    assert len(await done(node, "acl", "list")) == 5
    assert await connect_code(node, "bad", "ann", b"secret") == 0x8A
    (ban,) = await ctl_json(node, "banned", "list")
    assert (ban["as"], ban["who"], ban["reason"]) == ("clientid", "bad", "flood")
    roles = {row["username"]: row["role"] for row in await ctl_json(node, "admins", "list")}
    assert roles == {"admin": "administrator", "olga": "viewer"}
    exporter = ApiClient(node.management.url, app=("exporter", "an old secret"))
    assert (await exporter.get("/brokers")).code == 0
    await exporter.close()


async def _check_sessions(node: ManagedNode) -> None:
    assert await done(node, "subscriptions", "show", "old") == ["old -> q/+"]
    away = await node.client("away", 5, expiry=NEVER, **USER)
    assert away.connack.session_present
    first = await away.expect_publish("q/1", b"in flight", 1, dup=True)
    assert first.properties[c.SUBSCRIPTION_IDENTIFIER] == [7]
    release = await away.expect(Ack, type=c.PUBREL)
    await away.pubcomp(release.packet_id)
    queued = await away.expect_publish("q/3", b"queued", 1, retain=True)
    assert queued.properties[c.CONTENT_TYPE] == "text/plain" and queued.properties[c.RESPONSE_TOPIC] == "answers"
    assert queued.properties[c.CORRELATION_DATA] == b"\x00\xff"
    assert queued.properties[c.USER_PROPERTY] == [("a", "1"), ("a", "2")]
    await away.expect_publish("shared", b"to the group", 1)
    await away.expect_publish("q/4", b"once", 2)
    sender = await node.client("sender", 5, expiry=NEVER, **USER)
    assert sender.connack.session_present
    await sender.send(Publish("q/4", b"once", 2, False, True, 77, {}))
    await sender.expect_ack(c.PUBREC, 77, None)
    await sender.pubrel(77)
    await sender.expect_ack(c.PUBCOMP, 77)
    await away.nothing()  # it was received once already
    await sender.subscribe("kept/#", qos=1)
    await sender.expect_publish("kept/binary", bytes(range(256)), 1, retain=True)
    old = await node.client("old", 4, clean_start=False, **USER)
    for topic in ("q/1", "q/2", "q/3", "q/4"):
        await old.expect_publish(topic)


def pack(directory: Path, made_at: float) -> bytes:
    """The files of a store, and when it was made."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
        for path in (directory / name for name in FILES):
            if path.exists():
                archive.add(path, path.name, filter=_anonymous)
        info = tarfile.TarInfo("made_at")
        text = f"{made_at:.0f}".encode()
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return packed.getvalue()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o600
    return info


def unpack(file: Path, directory: Path) -> float:
    """Into an empty directory; when it was made."""
    with tarfile.open(file) as archive:
        for member in archive.getmembers():
            source = archive.extractfile(member)
            assert source is not None and Path(member.name).name == member.name
            (directory / member.name).write_bytes(source.read())
    made_at = directory / "made_at"
    when = float(made_at.read_text())
    made_at.unlink()
    return when


async def make(directory: Path, port: int | None = None) -> bytes:
    """A store of today, packed. ``port``: of its web hook, unless it is a free one."""
    async with opened(directory) as node:
        await fill(node, port)
        made_at = node.clock.wall()
    return pack(directory, made_at)


def main() -> int:
    file = DIRECTORY / f"store-{product_version()}.tar.xz"
    with tempfile.TemporaryDirectory() as directory:
        file.write_bytes(asyncio.run(make(Path(directory), NOBODYS_PORT)))
    print(f"{file}: {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
