"""Reading: what bodies and queries become, and what is said where they cannot."""

import asyncio
import json
from functools import partial
from typing import Any

import msgspec
import pytest

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.management.http import reading
from taipan.management.http.reading import convert, parse
from taipan.management.operations.listing import PageQuery
from taipan.management.operations.refusal import MISSING, NOT_JSON, WRONG, Refusal


class Item(msgspec.Struct):
    name: str
    size: int = 0


def refusal(call: Any, *arguments: Any) -> tuple[int, str]:
    with pytest.raises(Refusal) as refused:
        call(*arguments)
    return refused.value.code, refused.value.message


def test_a_missing_key_is_named_with_its_place() -> None:
    assert refusal(convert, {}, Item) == (MISSING, "name is missing")
    assert refusal(convert, [{"name": "a"}, {}], list[Item]) == (MISSING, "name is missing in [1]")


def test_a_wrong_value_is_named_with_its_place() -> None:
    assert refusal(convert, {"name": 1}, Item) == (WRONG, "name: expected a string, got 1")
    code, message = refusal(convert, [{"name": "a", "size": "x"}], list[Item])
    assert code == WRONG and message.startswith("[0].size: ")


@pytest.mark.parametrize("octets", [b"{", b"\xff", b"[1,]", b"nul", b"[" * 200_000, b'{"a":' * 100_000])
def test_what_is_no_json(octets: bytes) -> None:
    assert refusal(parse, octets)[0] == NOT_JSON


@pytest.mark.parametrize("kind", [list[Item], Item | list[Item]])
def test_a_long_array_is_read_in_slices(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CooperativeSlice", partial(CooperativeSlice, 0.0))
    items = [{"name": f"item {number}", "size": number} for number in range(5000)]
    turns = 0

    async def read(octets: bytes) -> Any:
        nonlocal turns

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        try:
            return await reading._read_members(octets, reading._member_of(kind))
        finally:
            counting.cancel()

    assert asyncio.run(read(json.dumps(items).encode())) == [Item(each["name"], each["size"]) for each in items]  # type: ignore[arg-type]
    assert turns > 1000
    items[4321] = {"name": "a", "size": "b"}
    with pytest.raises(Refusal, match=r"\[4321\]\.size"):
        asyncio.run(read(json.dumps(items).encode()))


def test_pages() -> None:
    assert convert({"_page": "3", "_limit": "20000"}, PageQuery, False).rows(10_000) == 10_000
    assert convert({}, PageQuery, False).rows(50) == 50
    assert refusal(PageQuery(limit=-1).rows, 10)[0] == WRONG
    assert refusal(convert, {"_page": "x"}, PageQuery, False)[0] == WRONG
