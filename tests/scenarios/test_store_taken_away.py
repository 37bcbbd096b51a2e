"""The store's file is deleted, renamed or unmounted under a running node: nothing is acknowledged any more.

60 of 60 messages were acknowledged, without an alarm, and the next start began with an empty store.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.node import Node, start_node
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

TROUBLE = "store_trouble"


def _delete(file: Path) -> None:
    file.unlink()


def _rename(file: Path) -> None:
    file.rename(file.with_suffix(".away"))


def _replace(file: Path) -> None:
    """As a restored copy does."""
    copy = file.with_suffix(".copy")
    copy.write_bytes(file.read_bytes())
    os.replace(copy, file)


def _rename_directory(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


async def start(data: Path) -> Node:
    node = await start_node(durability={"level": "disk"}, node={"data_dir": str(data)})
    node.ignore(lambda record: "store" in record.getMessage())
    return node


async def in_trouble(node: Node) -> None:
    await until(lambda: TROUBLE in {alarm.name for alarm in node.server.alarms.active.values()})


@pytest.mark.parametrize("take, qos", [(_delete, 1), (_rename, 2), (_replace, 1), (_rename_directory, 2)])
async def test_nothing_is_acknowledged_that_the_next_start_would_not_have(
    tmp_path: Path, take: Callable[[Path], None], qos: int
) -> None:
    data = tmp_path / "data"
    node = await start(data)
    try:
        await node.leave_session("absent", "t")
        publisher = await node.client("publisher")
        other = await node.client("other")
        assert await publisher.publish("t", b"before", qos) == 0
        assert node.server.store is not None
        take(node.server.store.file)
        # At once, without the look that comes once a second: what was taken before that is not answered.
        await publisher.send(Publish("t", b"after", qos, packet_id=7))
        await in_trouble(node)
        assert await other.publish("t", b"later", qos, expect=None) == 0x97
        await publisher.ping()  # nothing but its answer has come
    finally:
        await node.stop()


async def test_an_idle_node_finds_out_and_recovers_when_the_file_is_back(tmp_path: Path) -> None:
    node = await start(tmp_path / "data")
    try:
        await node.leave_session("absent", "t")
        assert node.server.store is not None
        file = node.server.store.file
        away = file.with_suffix(".away")
        file.rename(away)
        await in_trouble(node)
        away.rename(file)
        await until(lambda: not node.server.alarms.active)
        publisher = await node.client("publisher")
        assert await publisher.publish("t", b"again", 1) == 0
    finally:
        await node.stop()


async def test_the_write_ahead_log_is_deleted_under_an_idle_node(tmp_path: Path) -> None:
    """What it had is moved into the file at once: a node that is killed then has lost nothing."""
    node = await start(tmp_path / "data")
    try:
        await node.leave_session("absent", "t")
        publisher = await node.client("publisher")
        assert await publisher.publish("t", b"before", 1) == 0
        assert node.server.store is not None
        file = node.server.store.file
        wal = file.with_name(file.name + "-wal")
        told: list[str | None] = []
        on_trouble = node.server.store.on_trouble

        def hear(trouble: str | None) -> None:
            told.append(trouble)
            on_trouble(trouble)

        node.server.store.on_trouble = hear
        wal.unlink()
        await until(lambda: len(told) == 2)
        assert told[0] is not None and "write-ahead log was deleted" in told[0] and told[1] is None
        assert await publisher.publish("t", b"later", 1) == 0
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in file.parent.iterdir():
            if path.is_file():
                (copy / path.name).write_bytes(path.read_bytes())
        assert (copy / wal.name).exists()
    finally:
        await node.stop()
    after = await start(copy)
    try:
        session = after.server.broker.sessions.get("absent")
        assert session is not None and session.queued == 2
    finally:
        await after.stop()


async def test_an_unmounted_file_system(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"no tmpfs: {mounted.stderr}")
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    there = True
    node = None
    try:
        node = await start(disk)
        await node.leave_session("absent", "t")
        publisher = await node.client("publisher")
        assert await publisher.publish("t", b"before", 1) == 0
        subprocess.run(["umount", "-l", disk], check=True)
        there = False
        await in_trouble(node)
        assert await publisher.publish("t", b"after", 1, expect=None) == 0x97
    finally:
        if node is not None:
            await node.stop()
        if there:
            subprocess.run(["umount", "-l", disk], check=True)
