"""What a wrong password costs: the same for unknown usernames as for known ones, and limited for new hashes."""

import base64
from collections import Counter

import pytest

from taipan.broker.access.foreign_hashes import BcryptHash, Pbkdf2Hash, new_hash, parse_hash, read_hash
from taipan.broker.access.hash_costs import HashCosts
from taipan.broker.access.password_hash import PasswordVerifier, ScryptHash

SALT = base64.b64encode(b"s" * 16).decode()
OURS = ScryptHash.unknown(1 << 10)
FAST = f"emqx$sha256${SALT}${'0' * 64}"


def pbkdf2(iterations: int, size: int = 32, algorithm: str = "sha256") -> str:
    return f"pbkdf2${algorithm}${iterations}${SALT}${base64.b64encode(b'h' * size).decode()}"


def cost(found: PasswordVerifier) -> str:
    if isinstance(found, Pbkdf2Hash):
        return f"pbkdf2 {found.algorithm} {found.work}"
    if isinstance(found, BcryptHash):
        return f"bcrypt {found.cost}"
    assert isinstance(found, ScryptHash)
    return f"scrypt {found.n} {found.r} {found.p}"


def test_without_users_it_is_a_hash_of_ours() -> None:
    assert HashCosts.unknown([HashCosts(), HashCosts()], "ann", OURS) is OURS
    # A wrong random secret is treated like an unknown name.
    assert HashCosts.unknown([HashCosts(["random$sha256$x"])], "ann", OURS) is OURS


@pytest.mark.parametrize(
    "written, expected",
    [
        (pbkdf2(600_000), "pbkdf2 sha256 600000"),
        (pbkdf2(1000, 64, "sha512"), "pbkdf2 sha512 1000"),
        (pbkdf2(1000, 64, "sha1"), "pbkdf2 sha1 4000"),
        ("$2b$12$" + "a" * 53, "bcrypt 12"),
        (f"scrypt$32768$8$2${SALT}${SALT}", "scrypt 32768 8 2"),
        (FAST, "scrypt 16384 8 1"),  # its wrong password costs one of the default
        (f"$6${SALT}${base64.b64encode(b'h' * 64).decode()}", "scrypt 16384 8 1"),
    ],
)
def test_an_unknown_name_costs_what_the_only_user_costs(written: str, expected: str) -> None:
    parse_hash(written)
    if written.startswith("$2"):
        pytest.importorskip("bcrypt")
    assert cost(HashCosts.unknown([HashCosts([written])], "ann", OURS)) == expected


def test_costs_are_as_frequent_among_unknown_names_as_among_users() -> None:
    """So how long an answer takes says nothing about whether a user exists."""
    costs = HashCosts([pbkdf2(1000)] * 300 + [pbkdf2(2000)] * 100)
    configured = HashCosts([str(OURS)] * 100)
    found = Counter(cost(HashCosts.unknown([configured, costs], f"n{n}", OURS)) for n in range(5000))
    assert set(found) == {"pbkdf2 sha256 1000", "pbkdf2 sha256 2000", "scrypt 1024 8 1"}
    assert 2700 < found["pbkdf2 sha256 1000"] < 3300  # 3000 +- 9 standard deviations
    assert 750 < found["pbkdf2 sha256 2000"] < 1250


def test_a_name_keeps_its_cost_after_a_restart() -> None:
    rows = [pbkdf2(n) for n in range(1000, 1050)]
    before, after = HashCosts(rows), HashCosts(rows)
    for n in range(100):
        name = f"n{n}"
        assert cost(HashCosts.unknown([before], name, OURS)) == cost(HashCosts.unknown([after], name, OURS))


def test_users_that_go_take_their_costs_along() -> None:
    costs = HashCosts([pbkdf2(1000), pbkdf2(2000)])
    costs.count(pbkdf2(1000), -1)
    assert {cost(HashCosts.unknown([costs], f"n{n}", OURS)) for n in range(50)} == {"pbkdf2 sha256 2000"}
    costs.count(pbkdf2(2000), -1)
    costs.count(pbkdf2(2000), -1)
    assert costs.total == 0 and HashCosts.unknown([costs], "ann", OURS) is OURS


def test_what_is_counted_apart_is_bounded() -> None:
    rows = [pbkdf2(n) for n in range(1, 1001)]
    costs = HashCosts(rows)
    assert costs.total == 1000 and len(costs._counts) <= 257
    for each in rows:
        costs.count(each, -1)
    assert costs.total == 0


@pytest.mark.parametrize(
    "written, limit",
    [
        (pbkdf2(2_000_001), "1 to 2000000 iterations"),
        (pbkdf2(600_000, 64, "sha1"), "this hash has 2400000"),
        ("$2b$15$" + "a" * 53, "cost of 4 to 14"),
        (f"scrypt$262144$8$2${SALT}${SALT}", "at most 2097152"),
    ],
)
def test_a_new_hash_that_costs_seconds_is_refused_and_a_stored_one_is_not(written: str, limit: str) -> None:
    for read in (read_hash, new_hash):
        with pytest.raises(ValueError, match=limit):
            read(written)
    assert str(parse_hash(written)) == written


@pytest.mark.parametrize("written", [pbkdf2(2_000_000), "$2b$14$" + "a" * 53, f"scrypt$262144$8$1${SALT}${SALT}"])
def test_at_the_limit(written: str) -> None:
    assert str(new_hash(written)) == written
