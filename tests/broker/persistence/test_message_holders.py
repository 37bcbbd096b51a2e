"""Holders: many who hold a message alike take a bit each."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.persistence.message_holders import Holders, Numbers


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2000))))
def test_numbers_are_a_set(steps: list[tuple[bool, int]]) -> None:
    numbers = Numbers()
    model: set[int] = set()
    for add, number in steps:
        if add:
            numbers.add(number)
            model.add(number)
        else:
            assert numbers.discard(number) == (number in model)
            model.discard(number)
        assert (number in numbers) == (number in model)
    assert (sorted(numbers), len(numbers), bool(numbers)) == (sorted(model), len(model), bool(model))


def test_a_thousand_take_a_few_hundred_bytes() -> None:
    numbers = Numbers()
    for number in range(1, 1001):
        numbers.add(number)
    pieces = numbers._pieces
    assert sys.getsizeof(pieces) + sum(map(sys.getsizeof, pieces.values())) < 1000


def test_one_session_holds_a_message_once_by_each_way() -> None:
    holders: Holders[str] = Holders()
    holders.add_plain(5, 1, 0)
    holders.add_plain(5, 2, 7)
    holders.add_other(5, "$share/g/t", "shared")
    assert list(holders.plain()) == [(5, 2, 7)]
    holders.add_other(5, "", "with an identifier")
    assert list(holders.plain()) == [] and holders.packet_ids is None
    assert holders.other(5, "") == "with an identifier"
    assert not holders.sent_plain(5, 9)
    assert holders.let_go(5, "") and not holders.let_go(5, "")
    assert holders.let_go(5, "$share/g/t") and not holders
