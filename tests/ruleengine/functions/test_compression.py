"""What is compressed comes back, and a small bomb stays small."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.compression import MAX_PLAIN
from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.values import restore
from tests.ruleengine.functions.calls import call, context

PAIRS = [("gzip", "gunzip", 31), ("zip", "unzip", -15), ("zip_compress", "zip_uncompress", 15)]


@pytest.mark.parametrize("pack, unpack, form", PAIRS)
@given(data=st.binary(max_size=500))
def test_it_comes_back(pack: str, unpack: str, form: int, data: bytes) -> None:
    assert call(unpack, call(pack, data)) == restore(data)


@pytest.mark.parametrize("pack, unpack, form", PAIRS)
def test_bad_data_is_refused(pack: str, unpack: str, form: int) -> None:
    packed = call(pack, "hello" * 50)
    assert isinstance(packed, bytes)
    for bad, reason in ((packed[:-3], "ends too early"), (b"", "ends too early"), (b"\xff" * 20, "cannot be unpacked")):
        with pytest.raises(FunctionError, match=f"^{unpack}: .*{reason}"):
            call(unpack, bad)
    with pytest.raises(FunctionError, match=f"^{unpack}: "):
        call(unpack, packed + b"more")


@pytest.mark.parametrize("pack, unpack, form", PAIRS)
def test_a_bomb_is_refused(pack: str, unpack: str, form: int) -> None:
    compressor = zlib.compressobj(wbits=form)
    bomb = compressor.compress(bytes(20_000_000)) + compressor.flush()
    with pytest.raises(FunctionError, match=f"unpacks to more than {MAX_PLAIN} bytes"):
        call(unpack, bomb)
    with pytest.raises(FunctionError, match="unpacks to more than 100 bytes"):
        call(unpack, call(pack, "x" * 101), within=context(budget=Budget(size=100)))
    with pytest.raises(FunctionError, match=f"more than the {MAX_PLAIN} that are compressed"):
        call(pack, bytes(MAX_PLAIN + 1))


def test_gzip_files_in_a_row_are_one() -> None:
    assert call("gunzip", call("gzip", "a") + call("gzip", "b")) == "ab"
