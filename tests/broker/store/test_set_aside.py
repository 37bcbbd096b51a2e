"""Stores that are not in use."""

from pathlib import Path

from taipan.broker.persistence.log import records
from taipan.broker.persistence.log.batch import encode
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.store.set_aside import is_intact, set_aside
from taipan.broker.store.store import Store


def filled(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    log = SqliteLog(directory / "taipan.db")
    log.open()
    for number in range(1, 40):
        row = records.RowStored("table", "key", b"row %d" % number)
        log.append(number, encode([records.encode(row), b"x" * 3000]))
    log.checkpoint_and_close()


def row(directory: Path, key: str = "key") -> bytes | None:
    store = Store(directory)
    store.read()
    try:
        return store.row("table", key)
    finally:
        store.abandon()


def test_a_row_is_read(tmp_path: Path) -> None:
    assert row(tmp_path) is None
    filled(tmp_path / "filled")
    assert row(tmp_path / "filled") == b"row 39"
    assert row(tmp_path / "filled", "other") is None
    assert is_intact(tmp_path / "filled")


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    filled(tmp_path)
    file = tmp_path / "taipan.db"
    data = bytearray(file.read_bytes())
    at = data.index(b"x" * 2000, len(data) // 2)
    data[at] ^= 1
    file.write_bytes(data)
    assert not is_intact(tmp_path)


def test_a_store_moves_out_of_the_way(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "cluster-routes").write_bytes(b"routes")
    (tmp_path / "lock").write_bytes(b"1")
    aside = set_aside(tmp_path)
    assert aside.parent == tmp_path and aside.name.startswith("replaced-")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["lock", aside.name])
    assert row(aside) == b"row 39"


def test_a_store_whose_files_have_moved_is_empty_when_it_is_read_again(tmp_path: Path) -> None:
    filled(tmp_path)
    store = Store(tmp_path)
    store.read()
    assert store.row("table", "key") == b"row 39"
    store.abandon()
    set_aside(tmp_path)
    store.read()
    assert store.row("table", "key") is None and not store.damage
    store.abandon()
