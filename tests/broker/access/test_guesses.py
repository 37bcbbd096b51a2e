"""Wrong passwords, counted by address, by name and by both."""

import pytest

from taipan.broker.access.guesses import Guesses, address_group, name_key
from tests.support.clock import Clock

ANN, BOB = name_key(b"ann"), name_key(b"bob")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guesses(clock: Clock) -> Guesses:
    return Guesses(clock, 10, 5.0, lambda reason: None)


def wrong(guesses: Guesses, times: int, address: str = "a", name: bytes = ANN, known: bool = False) -> None:
    for _ in range(times):
        guesses.wrong(address, name, known, "ann")


def test_the_first_ones_are_free_then_they_wait_longer_and_longer(guesses: Guesses, clock: Clock) -> None:
    wrong(guesses, 9)
    assert guesses.delay("a", ANN, False) == 0
    wrong(guesses, 1)
    delays = []
    for _ in range(8):
        delays.append(guesses.delay("a", ANN, False))
        wrong(guesses, 1)
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    clock.advance(600)
    assert guesses.delay("a", ANN, False) == 0


def test_by_address_and_by_name(guesses: Guesses) -> None:
    wrong(guesses, 10)
    assert guesses.delay("a", BOB, False) and guesses.delay("b", ANN, False)
    assert not guesses.delay("b", BOB, False)


def test_one_guess_from_each_of_many_addresses(guesses: Guesses) -> None:
    for number in range(20):
        wrong(guesses, 1, address=str(number))
    assert guesses.delay("new", ANN, False)


def test_who_was_right_from_its_address_is_held_up_by_nobody_else(guesses: Guesses) -> None:
    guesses.right("a", ANN)
    assert guesses.known("a", ANN) and not guesses.known("b", ANN)
    wrong(guesses, 20, address="a", name=BOB)
    wrong(guesses, 20, address="b", name=ANN)
    assert not guesses.delay("a", ANN, True)
    wrong(guesses, 10, known=True)
    assert guesses.delay("a", ANN, True)


def test_right_ones_make_up_for_wrong_ones_of_their_address(guesses: Guesses) -> None:
    """One device with an old password does not slow a site whose others are right."""
    for number in range(100):
        wrong(guesses, 1)
        guesses.right("a", name_key(b"%d" % number))
    assert not guesses.delay("a", BOB, False)


def test_one_right_password_pays_for_one_wrong_one_only(guesses: Guesses) -> None:
    for number in range(20):
        wrong(guesses, 1, name=name_key(b"%d" % number))
        guesses.right("a", ANN)
    assert guesses.delay("a", BOB, False)


def test_ten_thousand_addresses_and_names_do_not_grow(guesses: Guesses) -> None:
    for number in range(25_000):
        wrong(guesses, 1, address=f"10.{number}", name=name_key(b"%d" % number))
        wrong(guesses, 1, address=f"11.{number}", name=name_key(b"x%d" % number), known=True)
    assert len(guesses._addresses) == len(guesses._names) == len(guesses._pairs) == 10_000


def test_zero_slows_nobody(guesses: Guesses) -> None:
    guesses.free = 0
    wrong(guesses, 100)
    assert not guesses.delay("a", ANN, False)


def test_the_log_names_the_setting_once(guesses: Guesses, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    counted: list[str] = []
    guesses._count = counted.append
    wrong(guesses, 30)
    assert caplog.text.count("password_guesses_slowed address=a username=ann") == 1
    assert "setting=access.guesses" in caplog.text
    guesses.delay("a", ANN, False)
    assert counted == ["password_attempt_held"]


@pytest.mark.parametrize(
    "host, counted",
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("", ""),
        ("not:an:address", "not:an:address"),
    ],
)
def test_an_ipv6_host_is_its_network(host: str, counted: str) -> None:
    assert address_group(host) == counted
