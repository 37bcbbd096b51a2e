"""A batch gives back what went in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.persistence.log.batch import decode, encode, first_offset
from taipan.broker.persistence.log.errors import StoreError


@given(st.lists(st.binary(max_size=300), max_size=50))
def test_records_come_back_and_lie_one_after_the_other(records: list[bytes]) -> None:
    data = encode(records)
    assert decode(data) == records
    begin = first_offset(len(records))
    for record in records:
        assert data[begin : begin + len(record)] == record
        begin += len(record)
    assert begin == len(data)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        records = decode(data)
    except StoreError:
        return
    assert encode(records)[4:] == data[4:]


@pytest.mark.parametrize("cut", [1, 7, 8, 11, 12, 19])
def test_a_piece_of_a_batch_is_refused(cut: int) -> None:
    with pytest.raises(StoreError):
        decode(encode([b"1234", b"56789"])[:cut])
