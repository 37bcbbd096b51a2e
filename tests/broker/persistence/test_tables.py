"""Tables: rows that outlive the process at level disk, and only there."""

import socket

import msgspec
import pytest

from taipan.broker.persistence.tables import Tables
from taipan.broker.server import Server
from taipan.broker.store.store import Store
from tests.support.node import make_settings, start_node


class Colour(msgspec.Struct, array_like=True):
    name: str
    value: int = 0


class Newer(msgspec.Struct, array_like=True):
    name: str
    value: int = 0
    shade: str = "plain"


def test_a_table_without_a_disk_is_a_dict() -> None:
    table = Tables().open("colours", Colour)
    table.put("r", Colour("red", 1))
    table.put("g", Colour("green"))
    table.put("r", Colour("red", 2))
    assert [(key, row.value) for key, row in table.items()] == [("r", 2), ("g", 0)]
    assert table.remove("r") and not table.remove("r")
    assert "r" not in table and len(table) == 1 and table.get("r") is None


@pytest.mark.parametrize(
    "bad", [b"\xc1", b"\x92\xa2\xff\xfe\x01", b"\x93\xa1x\x01" + b"\x91" * 100_000], ids=["form", "text", "depth"]
)
def test_an_unreadable_row_is_told_and_the_others_are_there(caplog: pytest.LogCaptureFixture, bad: bytes) -> None:
    tables = Tables()
    table = tables.open("colours", Colour)
    tables.recover({"colours": {"bad": bad, "r": msgspec.msgpack.encode(Colour("red", 1))}})
    assert [key for key, _ in table.items()] == ["r"]
    assert "row_unreadable table=colours key=bad" in caplog.text
    assert table.unreadable == ["bad"] and tables.unreadable == {"colours": 1}


@pytest.mark.asyncio
async def test_rows_survive_a_restart_and_a_newer_kind_reads_older_rows(tmp_path: object) -> None:
    config = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    node = await start_node(**config)
    table = node.server.tables.open("colours", Colour)
    table.put("r", Colour("red", 1))
    table.put("g", Colour("green", 2))
    assert await node.server.tables.stored()
    table.put("r", Colour("red", 3))
    table.remove("g")
    assert await node.server.tables.stored()
    await node.stop()

    node = await start_node(**config)
    # Opened late, it has what was there; nobody opened it before a compaction either.
    again = node.server.tables.open("colours", Newer)
    assert [(key, row.value, row.shade) for key, row in again.items()] == [("r", 3, "plain")]
    rows = [row for row in node.server.tables.rows() if row[0] == "colours"]
    assert rows == [("colours", "r", msgspec.msgpack.encode(Colour("red", 3)))]
    await node.stop()


@pytest.mark.asyncio
async def test_rows_survive_a_compaction(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    node = await start_node(**config)
    table = node.server.tables.open("colours", Colour)
    table.put("r", Colour("red", 1))
    assert await node.server.tables.stored()
    store = node.server.store
    assert isinstance(store, Store)
    monkeypatch.setattr("taipan.broker.store.compaction.COMPACT_ABOVE", 0)
    monkeypatch.setattr("taipan.broker.store.compaction.live_bytes", lambda durability, broker: 0)
    before = store.durability.commit.batch
    store.compaction.run_slice(node.server.broker)
    assert store.compaction._finishing is not None
    await store.compaction._finishing
    monkeypatch.undo()
    assert store.durability.commit.batch > before
    await node.stop()
    node = await start_node(**config)
    assert [row.value for row in node.server.tables.open("colours", Colour).values()] == [1]
    await node.stop()


@pytest.mark.asyncio
async def test_what_must_be_there_before_clients_are_is_called_before_they_are(tmp_path: object) -> None:
    settings = make_settings(durability={"level": "disk"}, node={"data_dir": str(tmp_path)})
    first = Server(settings)
    await first.start()
    first.tables.open("colours", Colour).put("r", Colour("red", 1))
    assert await first.tables.stored()
    await first.stop()

    server = Server(settings)
    table = server.tables.open("colours", Colour)
    host, _, port = settings.listeners[0].bind.rpartition(":")
    seen: list[tuple[list[str], bool]] = []

    def note() -> None:
        with socket.socket() as probe:
            seen.append(([key for key, _ in table.items()], probe.connect_ex((host, int(port))) == 0))

    server.on_recovered.append(note)
    await server.start()
    note()
    await server.stop()
    assert seen == [(["r"], False), (["r"], True)]
