"""Each store that an earlier version wrote opens, and everything that was in it is there."""

from pathlib import Path

import pytest

from . import kept_store

pytestmark = pytest.mark.asyncio
KEPT = sorted(kept_store.DIRECTORY.glob("store-*.tar.xz"))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.name)
async def test_a_store_of_an_earlier_version(file: Path, tmp_path: Path) -> None:
    made_at = kept_store.unpack(file, tmp_path)
    async with kept_store.opened(tmp_path, made_at + 60) as node:
        await kept_store.check(node)
    async with kept_store.opened(tmp_path, made_at + 4 * kept_store.DAY) as node:
        assert {"kept/binary", "later", "q/3", "wills/dying"} <= set(kept_store.retained_topics(node))


async def test_a_store_of_today(tmp_path: Path) -> None:
    """What is checked of the kept ones is what is put into a new one."""
    packed = tmp_path / "store.tar.xz"
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    packed.write_bytes(await kept_store.make(tmp_path / "first"))
    made_at = kept_store.unpack(packed, tmp_path / "second")
    async with kept_store.opened(tmp_path / "second", made_at + 60) as node:
        await kept_store.check(node)


async def test_there_is_one_and_it_is_small() -> None:
    assert KEPT and all(file.stat().st_size < 200_000 for file in KEPT)
