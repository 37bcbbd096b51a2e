"""Backup: what a crash leaves of an import, and that neither import nor export holds the loop."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.access.stored.users import USERNAME
from taipan.broker.transport.listener import Listener
from taipan.management.operations.alarm_targets import StoredSilence, StoredTarget
from taipan.management.operations.alarm_thresholds import StoredThreshold
from taipan.management.operations.apps import App
from taipan.management.operations.backup.backup import Backup
from taipan.management.operations.backup.import_file import Plan
from taipan.management.operations.backup.import_plan import PLAN_FILE, read_plan, written_plan
from taipan.management.operations.refusal import Refusal
from taipan.ruleengine.rules.rule_manager import RuleManager
from taipan.ruleengine.stored.rows import StoredRule
from tests.support.api import ManagedNode, managed_node

pytestmark = pytest.mark.asyncio

USERS = 300


def document(users: int = USERS) -> bytes:
    """Users, a rule of each, and something of every other kind."""
    names = [f"user-{index}" for index in range(users)]
    hashed = base64.b64encode(b"salt" + hashlib.sha256(b"saltsecret").hexdigest().encode()).decode()
    body = {
        "version": "4.4",
        "auth_mnesia": [{"login": name, "type": "username", "password": hashed, "created_at": 1} for name in names],
        "acl_mnesia": [
            {"type": "username", "type_value": name, "topic": "t", "action": "pub", "access": "deny", "created_at": 1}
            for name in names
        ],
        "blacklist": [{"who": {"clientid": "bad"}, "by": "me", "reason": "", "at": 1, "until": 4102444800}],
        "apps": [{"id": "app2", "secret": "s2", "name": "n"}],
        "schemas": [{"id": "s:1", "text": "x"}],
        "resources": [{"id": "resource:1", "type": "web_hook", "config": {"url": "http://127.0.0.1:1"}}],
        "rules": [{"id": "rule:1", "rawsql": 'SELECT * FROM "t"', "actions": [{"name": "do_nothing", "args": {}}]}],
    }
    return json.dumps(body).encode()


def disk(path: Path) -> dict[str, Any]:
    return {"node": {"data_dir": str(path)}, "durability": {"level": "disk"}}


def backup_of(node: ManagedNode) -> Backup:
    return node.management.operations.backup


async def content(node: ManagedNode) -> dict[str, Any]:
    """What an export holds, without its date and without what each run makes up."""
    backup = backup_of(node)
    row = await backup.export_file()
    found: dict[str, Any] = json.loads((backup.files.path / row.filename).read_bytes())
    found.pop("date")
    for section in ("rules", "resources"):
        for each in found[section]:
            each.pop("created_at")
            for action in each.get("actions", ()):
                action.pop("id")
    return found


class PowerFailure(Exception):
    """The test's."""


@pytest.mark.parametrize("after", [0, 1, 2, 299, 301, 305, 450, 604])
async def test_a_crash_while_it_is_carried_out(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with managed_node() as other:
        await backup_of(other).import_body([document()])
        whole = await content(other)
    steps = Backup._steps

    def cut_off(self: Backup, plan: Plan, changed: set[str]) -> Iterator[None]:
        for done, _ in enumerate(steps(self, plan, changed)):
            if done == after:
                raise PowerFailure
            yield
        raise PowerFailure

    async with managed_node(**disk(tmp_path)) as node:
        monkeypatch.setattr(Backup, "_steps", cut_off)
        with pytest.raises(PowerFailure):
            await backup_of(node).import_body([document()])
        monkeypatch.undo()
        assert (tmp_path / PLAN_FILE).stat().st_mode & 0o777 == 0o600
    async with managed_node(**disk(tmp_path)) as node:
        assert await content(node) == whole
        assert not (tmp_path / PLAN_FILE).exists()
    async with managed_node(**disk(tmp_path)) as node:
        assert await content(node) == whole


async def test_a_plan_that_was_carried_out_is_not_done_again(tmp_path: Path) -> None:
    async with managed_node(**disk(tmp_path)) as node:
        backup = backup_of(node)
        await backup.import_body([document(2)])
        name = backup._imported.get("latest")
        assert name is not None
        node.server.stored_users.remove(USERNAME, "user-0")
        assert await node.server.tables.stored()
    row = Plan()
    async with managed_node() as other:
        await backup_of(other).import_body([document(2)])
        row.users = other.server.stored_users.all()
    (tmp_path / PLAN_FILE).write_bytes(b"".join(written_plan(name.plan, row)))
    async with managed_node(**disk(tmp_path)) as node:
        await content(node)
        assert node.server.stored_users.get(USERNAME, "user-0") is None
        assert not (tmp_path / PLAN_FILE).exists()


async def test_rules_of_a_plan_are_in_force_before_a_client_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an import that was cut off, or of a migration."""
    async with managed_node() as other:
        await backup_of(other).import_body([document(1)])
        rows = [row for row in [other.engine.rules.stored_row("rule:1")] if row is not None]
    (tmp_path / PLAN_FILE).write_bytes(b"".join(written_plan("name", Plan(engine_rules=rows))))
    order: list[str] = []
    adopt, listen = RuleManager.adopt, Listener.start

    async def slow_adopt(self: RuleManager, rows: Sequence[StoredRule]) -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        await adopt(self, rows)
        order.append("rules")

    async def noted_listen(self: Listener) -> None:
        order.append("listener")
        await listen(self)

    monkeypatch.setattr(RuleManager, "adopt", slow_adopt)
    monkeypatch.setattr(Listener, "start", noted_listen)
    async with managed_node(**disk(tmp_path)) as node:
        assert order[0] == "rules" and "listener" in order
        peer = await node.client("first")
        await peer.publish("t", b"1", 1)
        assert (await node.api.get("/rules/rule:1")).data["metrics"][0]["matched"] == 1


async def test_a_plan_that_a_crash_has_left_has_alarms_and_scopes(tmp_path: Path) -> None:
    plan = Plan(
        apps=[App("key", hashlib.sha256(b"long").digest(), scopes=())],  # a migration writes it without scopes
        alarm_targets=[("ops", StoredTarget("mqtt", True, ["*"], {"topic": "a"}))],
        alarm_silences=[("quiet", StoredSilence("disk", 4_102_444_800.0, "", "", 1.0))],
        alarm_thresholds=[("memory", StoredThreshold(90.0))],
    )
    (tmp_path / PLAN_FILE).write_bytes(b"".join(written_plan("name", plan)))
    async with managed_node(**disk(tmp_path)) as node:
        operations = node.management.operations
        assert operations.alarm_targets.shown("ops").status[0].state == "ready"
        assert [each.alarms for each in operations.alarm_targets.silences()] == ["disk"]
        assert {each.name: each.value for each in operations.alarm_thresholds.records()}["memory"] == 90.0
        app = operations.apps.check("key", "long")
        assert app is not None and app.scopes == ("all",)


async def test_a_damaged_plan_is_set_aside(tmp_path: Path) -> None:
    whole = b"".join(written_plan("name", Plan()))
    for octets in (b"", b"x", whole[:-1], whole[:20], whole[:-4] + b"\0\0\0\1x", whole[:-4]):
        with pytest.raises(ValueError):
            read_plan(octets)
    assert read_plan(whole) == ("name", Plan())
    (tmp_path / PLAN_FILE).write_bytes(b"damaged")
    node_context = managed_node(**disk(tmp_path))
    node = await node_context.__aenter__()
    assert (tmp_path / "import.damaged").read_bytes() == b"damaged"
    assert [line for line in node._complaints.records if "import_plan_unreadable" in line]
    node._complaints.records.clear()
    await node_context.__aexit__(None, None, None)


async def test_nothing_is_changed_where_the_plan_cannot_be_written(tmp_path: Path) -> None:
    async with managed_node(**disk(tmp_path)) as node:
        (tmp_path / PLAN_FILE).mkdir()
        with pytest.raises(Refusal):
            await backup_of(node).import_body([document()])
        assert node.server.stored_users.all() == []
        assert not list(tmp_path.glob(".*.tmp"))
        (tmp_path / PLAN_FILE).rmdir()


async def test_no_long_step() -> None:
    """However many records there are, a step deals with one of them."""
    async with managed_node() as node:
        backup = backup_of(node)
        longest = taken = 0
        put = node.server.stored_users.put
        count = 0

        def counted(*arguments: Any) -> None:
            nonlocal count
            count += 1
            put(*arguments)

        node.server.stored_users.put = counted  # type: ignore[method-assign, assignment]
        steps = backup._steps

        def watched(plan: Plan, changed: set[str]) -> Iterator[None]:
            nonlocal longest, count, taken
            for _ in steps(plan, changed):
                taken += 1
                longest = max(longest, count)
                count = 0
                yield

        backup._steps = watched  # type: ignore[method-assign]
        await backup.import_body([document()])
        assert longest == 1 and len(node.server.stored_users.all()) == USERS
        assert taken >= 2 * USERS
        taken = 0
        # What is there already is looked at, and that takes time as well.
        await backup.import_body([document()])
        assert longest == 1 and taken >= 2 * USERS


async def test_one_at_a_time_and_none_is_lost() -> None:
    async with managed_node() as node:
        backup = backup_of(node)
        await asyncio.gather(*(backup.import_body([document(size)]) for size in (5, 50, 20)), backup.export_file())
        assert len(node.server.stored_users.all()) == 50
        # Nobody waits for it any more: it comes to its end all the same.
        task = asyncio.create_task(backup.import_body([document(60)]))
        while not backup._tasks:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.gather(*backup._tasks)
        assert len(node.server.stored_users.all()) == 60
