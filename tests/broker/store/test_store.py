"""Store: the real file under the node: what it holds comes back, what is wrong with it is told, it does not grow."""

import asyncio
import logging
from pathlib import Path

import apsw
import pytest

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.config import ZoneSettings
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.message import Message
from taipan.broker.persistence.log.check_file import Digests
from taipan.broker.persistence.log.errors import NewerSchema, WriteTrouble
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.server import Server
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from taipan.broker.session.subscription import Subscription
from taipan.broker.store import compaction
from tests.support.clock import Clock
from tests.support.node import make_settings
from tests.support.patience import patience

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(30)]


def server(path: Path) -> Server:
    return Server(
        make_settings(
            listeners=[{"type": "tcp"}], durability={"level": "disk"}, node={"name": "n@h", "data_dir": str(path)}
        ),
        Clock(),  # type: ignore[arg-type]
    )


def retain(node: Server, topic: str, payload: bytes) -> None:
    node.broker.publish(Message(topic, payload, 1, True, timestamp=node.clock.now()))


async def flushed(node: Server) -> None:
    assert node.store is not None
    async with asyncio.timeout(patience(40)):
        assert await node.store.flush()


async def test_one_tidy_file_of_its_owner_alone_is_left_and_comes_back(tmp_path: Path) -> None:
    node = server(tmp_path)
    await node.start()
    retain(node, "a", b"1")
    await node.stop()
    assert {each.name for each in tmp_path.iterdir()} == {"taipan.db", "taipan.check"}
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    again = server(tmp_path)
    await again.start()
    message = again.broker.retained.get("a")
    assert message is not None and message.payload == b"1"
    assert again.alarms.active == {}
    await again.stop()


async def test_a_clock_that_was_set_while_the_node_ran_is_told_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was stored before has its old date; so the next start takes it for a day older than it is."""
    node = server(tmp_path)
    await node.start()
    message = Message("a", b"1", 1, True, {MESSAGE_EXPIRY_INTERVAL: 300}, timestamp=node.clock.now())
    node.broker.publish(message)
    await flushed(node)
    for by in (86_000, 400):
        node.clock.skew += by  # type: ignore[misc]
        node._sweep(node.clock.now())
    await node.stop()
    for told in (True, False):
        caplog.clear()
        again = server(tmp_path)
        again.clock.time += 86_400  # type: ignore[attr-defined]
        await again.start()
        assert ("expired_at_start messages=0 retained=1" in caplog.text) is told
        assert ("clock_set_by=86400" in caplog.text) is told
        again.broker.retaining.sweep(again.clock.now(), 10)
        retain(again, "a", b"2")
        await again.stop()


async def test_what_was_written_before_a_kill_comes_back(tmp_path: Path) -> None:
    """Nothing is closed: the files as a killed process leaves them."""
    node = server(tmp_path)
    await node.start()
    retain(node, "a", b"1")
    await flushed(node)
    killed = tmp_path / "killed"
    killed.mkdir()
    for each in list(tmp_path.glob("taipan.db*")):
        (killed / each.name).write_bytes(each.read_bytes())
    await node.stop()
    again = server(killed)
    await again.start()
    assert again.broker.retained.get("a") is not None
    await again.stop()


async def test_rows_that_cannot_be_read_raise_an_alarm(tmp_path: Path) -> None:
    node = server(tmp_path)
    await node.start()
    node.tables.put("users", "u1", b"\xc1")
    await flushed(node)
    await node.stop()
    again = server(tmp_path)
    await again.start()
    (alarm,) = again.alarms.active.values()
    assert (alarm.name, alarm.message) == ("rows_unreadable", "rows that are not applied: 1 of users")
    await again.stop()


async def test_a_damaged_store_is_set_aside_and_an_alarm_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = server(tmp_path)
    await node.start()
    for number in range(20):
        retain(node, f"t/{number}", bytes(3000))
        await flushed(node)
    await node.stop()
    file = tmp_path / "taipan.db"
    data = bytearray(file.read_bytes())
    data[4096:8192] = b"\xff" * 4096  # the root of the table
    file.write_bytes(data)
    again = server(tmp_path)
    with caplog.at_level(logging.ERROR):
        await again.start()
    (alarm,) = again.alarms.active.values()
    assert alarm.name == "store_damaged" and "set aside as taipan.db.damaged-" in alarm.message
    assert alarm.details["setting"] == "node.data_dir"
    assert "store_damaged" in caplog.text and "node.data_dir" in caplog.text
    assert len(again.broker.retained) > 10
    assert list(tmp_path.glob("taipan.db.damaged-*"))
    await again.stop()
    last = server(tmp_path)
    await last.start()
    assert last.alarms.active == {}
    await last.stop()


async def test_a_newer_schema_stops_the_start_with_one_line(tmp_path: Path) -> None:
    node = server(tmp_path)
    await node.start()
    await node.stop()
    db = apsw.Connection(str(tmp_path / "taipan.db"))
    db.execute(f"PRAGMA user_version={99 << 16 | 99}")
    db.close()
    again = server(tmp_path)
    with pytest.raises(NewerSchema) as caught:
        await again.start()
    assert "newer version" in str(caught.value) and "\n" not in str(caught.value)


async def test_trouble_raises_an_alarm_and_its_end_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = server(tmp_path)
    await node.start()
    append = SqliteLog.append
    failing = True

    def broken(log: SqliteLog, seq: int, data: bytes, access: Digests | None = None) -> None:
        if failing:
            raise WriteTrouble("IOERR_WRITE: Input/output error")
        append(log, seq, data, access)

    monkeypatch.setattr(SqliteLog, "append", broken)
    retain(node, "a", b"1")
    assert node.store is not None
    async with asyncio.timeout(patience(40)):
        assert not await node.store.flush()
    assert "Input/output error" in node.alarms.active["store_trouble"].message
    assert node.stats.snapshot()["store.trouble.count"] == 1
    assert node.stats.snapshot()["alarms.count"] == 1
    failing = False
    async with asyncio.timeout(patience(40)):
        while node.alarms.active:
            await asyncio.sleep(0.05)
    await flushed(node)
    assert [each.name for each in node.alarms.history] == ["store_trouble"]
    assert node.stats.snapshot()["store.trouble.count"] == 0
    await node.stop()


async def test_it_stops_within_a_bound_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = server(tmp_path)
    await node.start()
    retain(node, "before", b"1")
    await flushed(node)

    def broken(log: SqliteLog, seq: int, data: bytes, access: Digests | None = None) -> None:
        raise WriteTrouble("no space left for the store")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteLog, "append", broken)
        retain(node, "after", b"2")
        async with asyncio.timeout(patience(40)):
            await node.stop()
    assert "store_not_flushed" in caplog.text
    again = server(tmp_path)
    await again.start()
    assert list(again.broker.retained.topics()) == ["before"]
    await again.stop()


async def test_a_log_that_says_little_that_is_true_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "COMPACT_ABOVE", 200_000)
    monkeypatch.setattr(compaction, "_SLICE_RECORDS", 3)
    node = server(tmp_path)
    await node.start()
    assert node.store is not None
    for number in range(10):
        retain(node, f"kept/{number}", b"%d" % number)
    for _ in range(200):
        retain(node, "changing", bytes(5000))
        await flushed(node)
    before = node.store.durability.commit.log.size_bytes
    async with asyncio.timeout(patience(40)):
        while node.store.durability.commit.log._log.first < 150:
            node.store.compaction.run_slice(node.broker)
            await asyncio.sleep(0.01)
    assert before > 1_000_000
    await node.stop()
    again = server(tmp_path)
    await again.start()
    assert sorted(again.broker.retained.topics()) == ["changing", *(f"kept/{number}" for number in range(10))]
    await again.stop()


async def test_long_filters_are_no_reason_to_compact_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "COMPACT_ABOVE", 200_000)
    node = server(tmp_path)
    await node.start()
    assert node.store is not None
    client = ClientInfo("n", ZoneSettings(), client_id="c")
    session, _ = node.broker.life.open_session(client, False, 3600, Limits(), 0.0)
    for number in range(40):
        node.broker.subscribe(session, Subscription(session, f"{number}/" + "x" * 60_000, 1))
        await flushed(node)
    started = 0
    for _ in range(200):
        node.store.compaction.run_slice(node.broker)
        started += node.store.compaction.running
        await flushed(node)
        await asyncio.sleep(0.001)
    assert started == 0
    await node.stop()


async def test_the_directory_is_made_where_it_is_missing(tmp_path: Path) -> None:
    node = server(tmp_path / "not" / "there")
    await node.start()
    await node.stop()
    assert (tmp_path / "not" / "there").stat().st_mode & 0o777 == 0o700


async def test_a_loss_whose_acceptance_is_not_on_disk_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who says so again is heard."""
    node = server(tmp_path)
    await node.start()
    node.stored_users.put("username", "ann", ScryptHash.create(b"x", 16))
    await flushed(node)
    await node.stop()
    (tmp_path / "taipan.db").unlink()
    again = server(tmp_path)
    await again.start()
    assert again.access.lost

    async def not_stored() -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(again.tables, "stored", not_stored)
        assert not await again.store_alarms.accept_loss()
    assert again.access.lost
    assert await again.store_alarms.accept_loss()
    assert not again.access.lost
    await again.stop()
    last = server(tmp_path)
    await last.start()
    assert not last.access.lost
    await last.stop()
