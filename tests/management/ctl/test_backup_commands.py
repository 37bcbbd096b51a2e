"""backup create, verify, restore: the whole store of a real process, over its socket and over HTTP."""

import errno
import json
import os
from pathlib import Path

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.persistence.log.backup_file import read_backup
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.management.ctl import backup_commands
from taipan.management.ctl.main import DONE, Keep, Refused
from taipan.management.data_dir import DataDir
from taipan.management.operations.backup.import_plan import PLAN_FILE
from tests.support.api import APP_ID, SECRET, ManagedNode, managed_node
from tests.support.ctl import ctl, done, run
from tests.support.wire import Publish

DISK = {"durability": {"level": "disk"}}
OPEN = {"allow_anonymous": True}
APP = f"{APP_ID}:{SECRET}"


async def filled(node: ManagedNode) -> None:
    """A session with a queue, a retained message, a user, a rule, and a QoS 2 message that was not released."""
    await node.leave_session("away", "q/#", qos=1)
    sender = await node.client("sender", 5, expiry=3600)
    await sender.publish("q/1", b"queued", qos=1)
    await sender.publish("kept", b"retained", qos=1, retain=True)
    await sender.send(Publish("q/2", b"once", 2, False, False, 77, {}))
    await sender.expect_ack(c.PUBREC, 77)
    await done(node, "users", "add", "ann", "secret")
    actions = '[{"name": "do_nothing", "params": {}}]'
    await done(node, "rules", "create", 'SELECT * FROM "t"', actions, "-i", "rule:kept")
    await sender.drop()


@pytest.mark.asyncio
async def test_what_is_restored_is_what_was_there(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    files = [tmp_path / "over-socket", tmp_path / "over-http"]
    async with managed_node(node={"data_dir": str(first)}, zone=OPEN, **DISK) as node:
        await filled(node)
        said = await run("--data-dir", str(first), "backup", "create", str(files[0]))
        assert said.status == 0 and said.out.startswith(f"Backup of {node.name} "), said
        said = await run("--url", node.management.url, "backup", "create", str(files[1]), TAIPAN_CTL_APP=APP)
        assert said.status == 0, said
        held = DataDir(str(first))  # as the program does
        in_use = await run("--data-dir", str(first), "backup", "restore", str(files[0]), "--force")
        assert in_use.status == 1 and "in use by process" in in_use.err, in_use
        held.close()
    assert {path.name for path in tmp_path.iterdir()} == {"first", "over-socket", "over-http"}
    assert files[0].stat().st_mode & 0o777 == 0o600
    said = await run("--json", "backup", "verify", str(files[1]))
    assert said.status == 0 and json.loads(said.out)["node"] == "taipan@127.0.0.1"
    said = await run("backup", "restore", str(files[1]), "--data-dir", str(second))
    assert said.status == 0 and "restored into" in said.out, said
    assert {path.name for path in second.iterdir()} == {"lock", "taipan.db", "taipan.check"}
    async with managed_node(node={"data_dir": str(second)}, zone=OPEN, **DISK) as node:
        assert await done(node, "data", "loss") == ["Nothing is lost."]
        assert await done(node, "users", "show", "ann") == ['User(login = "ann" is_super = false)']
        assert (await ctl(node, "rules", "show", "rule:kept")).status == 0
        assert await done(node, "retainer", "topics") == ["kept"]
        away = await node.client("away", 4, clean_start=False)
        assert away.connack.session_present
        await away.expect_publish("q/1", b"queued", 1)
        await away.expect_publish("q/2", b"once", 1)
        sender = await node.client("sender", 5, expiry=3600)
        await sender.send(Publish("q/2", b"once", 2, False, True, 77, {}))
        await sender.expect_ack(c.PUBREC, 77, None)
        await away.nothing()  # it was received once already


def backup_of(directory: Path, batches: int = 3) -> Path:
    """Made without a node."""
    from taipan.broker.persistence.log.backup_file import BackupHead, BackupWriter

    directory.mkdir(exist_ok=True)
    log = SqliteLog(directory / "taipan.db")
    log.open()
    for seq in range(1, batches + 1):
        log.append(seq, b"batch %d" % seq)
    writer = BackupWriter()
    data = writer.head(BackupHead("n@h", "0.1.0", len(SqliteLog.steps), 1_790_000_000))
    data += writer.rows(log.rows_after(0, 12)) + writer.rows(log.rows_after(2, 12)) + writer.end(log.first, b"check")
    log.checkpoint_and_close()
    file = directory / "a.backup"
    file.write_bytes(data)
    return file


def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    file = backup_of(tmp_path)
    whole = file.read_bytes()
    assert backup_commands.verify(file).batches == 3
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Refused):
            backup_commands.verify(file)
    for cut in (*range(0, len(whole), 7), len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(Refused):
            backup_commands.verify(file)
    file.write_bytes(whole + b"x")
    with pytest.raises(Refused):
        backup_commands.verify(file)


def test_a_damaged_backup_leaves_what_was_there(tmp_path: Path) -> None:
    file = backup_of(tmp_path / "source")
    target = tmp_path / "target"
    assert backup_commands.restore(file, str(target), False).batches == 3
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(Refused, match="--force"):
        backup_commands.restore(file, str(target), False)
    damaged = bytearray(file.read_bytes())
    damaged[-40] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(Refused, match="damaged"):
        backup_commands.restore(file, str(target), True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


def test_an_import_of_the_store_that_was_there_does_not_reach_the_one_that_is_restored(tmp_path: Path) -> None:
    file = backup_of(tmp_path / "source")
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / PLAN_FILE).write_bytes(b"users of another node")
    with pytest.raises(Refused, match=r"import\.plan"):
        backup_commands.restore(file, str(target), False)
    assert (target / PLAN_FILE).exists()
    backup_commands.restore(file, str(target), True)
    assert not (target / PLAN_FILE).exists()


@pytest.mark.parametrize("fails", ["insert_rows", "checkpoint_and_close"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    file = backup_of(tmp_path / "source")
    target = tmp_path / "target"
    backup_commands.restore(backup_of(tmp_path / "other", 1), str(target), False)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(SqliteLog, fails, full)
        with pytest.raises(Refused, match="No space left"):
            backup_commands.restore(file, str(target), True)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert backup_commands.restore(file, str(target), True).batches == 3


def test_a_backup_that_breaks_off_leaves_the_older_one(tmp_path: Path) -> None:
    whole = backup_of(tmp_path / "source").read_bytes()
    file = tmp_path / "kept"
    file.write_bytes(b"the older one")

    def breaks(keep: Keep) -> int:
        keep(whole[:-5])
        return DONE

    with pytest.raises(Refused, match="is not written"):
        backup_commands.create(file, breaks)
    assert backup_commands.create(file, lambda keep: 1) == 1
    assert file.read_bytes() == b"the older one"

    def full(keep: Keep) -> int:
        with open("/dev/full", "wb", buffering=0) as device:
            try:
                device.write(whole)
            except OSError as error:
                raise backup_commands._not_written(file, error) from None
        return DONE

    with pytest.raises(Refused, match="No space left"):
        backup_commands.create(file, full)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["kept"]

    def works(keep: Keep) -> int:
        keep(whole)
        return DONE

    assert backup_commands.create(file, works) == DONE and file.read_bytes() == whole


def test_dropped_batches_do_not_come_back(tmp_path: Path) -> None:
    file = backup_of(tmp_path / "source")
    data = file.read_bytes()
    summary = read_backup(file, lambda row: None, len(SqliteLog.steps))
    assert (summary.first, summary.last, summary.check) == (1, 3, b"check") and len(data) == summary.size


@pytest.mark.asyncio
async def test_a_node_that_keeps_nothing_has_no_backup(tmp_path: Path) -> None:
    async with managed_node(node={"data_dir": str(tmp_path / "d")}) as node:
        assert node.server.store is None
        said = await run("--data-dir", str(tmp_path / "d"), "backup", "create", str(tmp_path / "f"))
        assert said.status == 1 and "durability.level" in said.out and not (tmp_path / "f").exists()
    said = await run("backup", "verify")
    assert said.status == 2
    said = await run("backup", "restore", str(tmp_path / "f"))
    assert said.status == 2 and "--data-dir" in said.err
    said = await run("backup", "verify", str(tmp_path / "none"))
    assert said.status == 1 and "No such file" in said.err
