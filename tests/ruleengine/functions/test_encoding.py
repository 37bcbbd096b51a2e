"""Base64, digests and ids: inverses, and agreement with the standard library."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.values import restore
from tests.ruleengine.functions.calls import call


@given(st.binary())
def test_base64_comes_back(data: bytes) -> None:
    assert call("base64_decode", call("base64_encode", data)) == restore(data)


def test_white_space_in_base64_is_skipped() -> None:
    assert call("base64_decode", "aGVs\r\n bG8=") == "hello"


@pytest.mark.parametrize("text", ["YQ", "YQ=", "YQ==YQ==", "Y", "-_8=", "YQ==x", "=YQ="])
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(FunctionError, match="base64_decode: not Base64"):
        call("base64_decode", text)


@given(st.binary())
def test_digests(data: bytes) -> None:
    for name, algorithm in (("md5", "md5"), ("sha", "sha1"), ("sha256", "sha256")):
        assert call(name, data) == hashlib.new(algorithm, data).hexdigest()


def test_ids_are_random_and_of_version_4() -> None:
    drawn = {call("uuid_v4") for _ in range(50)}
    assert len(drawn) == 50
    assert all(str(uuid.UUID(each)) == each and uuid.UUID(each).version == 4 for each in drawn)
    assert uuid.UUID(call("uuid_v4_no_hyphen")).version == 4
    numbers = {call("random") for _ in range(50)}
    assert len(numbers) == 50 and all(type(each) is float and 0 <= each < 1 for each in numbers)
