"""Rate limits: TokenBucket."""

import pytest

from taipan.broker.transport.limiter import TokenBucket


def test_an_amount_passes_at_once_then_at_its_rate() -> None:
    bucket = TokenBucket(10, 5.0)
    assert bucket.consume(10, 100.0) == 0.0
    assert bucket.consume(1, 100.0) == pytest.approx(0.5)
    assert bucket.consume(1, 100.0) == pytest.approx(1.0)
    assert bucket.consume(0, 101.0) == 0.0
    assert bucket.consume(1, 101.0) == pytest.approx(0.5)


def test_rest_does_not_save_up_more_than_the_amount() -> None:
    bucket = TokenBucket(10, 1.0)
    assert bucket.consume(0, 0.0) == 0.0
    assert bucket.consume(10, 1000.0) == 0.0
    assert bucket.consume(1, 1000.0) == pytest.approx(0.1)


def test_more_than_the_amount_at_once_is_a_longer_pause() -> None:
    bucket = TokenBucket(1000, 1.0)
    assert bucket.consume(5000, 7.0) == pytest.approx(4.0)
    assert bucket.consume(0, 11.0) == 0.0


def test_pausing_as_told_keeps_the_rate() -> None:
    bucket = TokenBucket(100, 1.0)
    now = 0.0
    for _ in range(1000):
        now += bucket.consume(7, now)
    assert now == pytest.approx((7000 - 100) / 100, abs=0.01)


def test_take_takes_nothing_when_there_is_too_little() -> None:
    bucket = TokenBucket(2, 1.0)
    assert [bucket.take(1, 5.0) for _ in range(4)] == [True, True, False, False]
    assert bucket.take(1, 5.4) is False
    assert bucket.take(1, 5.5) is True


def test_time_that_runs_backwards_gives_nothing() -> None:
    bucket = TokenBucket(1, 1.0)
    assert bucket.take(1, 10.0)
    assert not bucket.take(1, 5.0)
    assert not bucket.take(1, 10.5)
    assert bucket.take(1, 11.0)


@pytest.mark.parametrize("amount, seconds", [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_a_limit_of_nothing_is_an_error(amount: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(amount, seconds)


def test_its_bound() -> None:
    assert TokenBucket(100, 10).bound == (100, 10)
    assert TokenBucket(5, 0.5).bound == (5, 0.5)
