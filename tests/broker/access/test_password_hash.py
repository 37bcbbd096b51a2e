"""scrypt hashes and the memory of verified credentials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.access.password_hash import ScryptHash, VerifiedCredentials, to_base64

SALT = to_base64(b"s" * 16)
DIGEST = to_base64(b"d" * 32)


def test_rfc_7914_vector() -> None:
    """RFC 7914 section 12: scrypt("password", "NaCl", N=1024, r=8, p=16)."""
    expected = bytes.fromhex(
        "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
        "2eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640"
    )
    stored = ScryptHash(1024, 8, 16, b"NaCl", expected)
    assert stored.verify(b"password")
    assert not stored.verify(b"Password")


def test_create_and_read_back() -> None:
    stored = ScryptHash.create(b"secret", n=16)
    again = ScryptHash.parse(str(stored))
    assert again.verify(b"secret")
    assert not again.verify(b"secret ")
    assert again.fingerprint == stored.fingerprint
    assert str(ScryptHash.create(b"secret", n=16)) != str(stored)


def test_default_cost() -> None:
    stored = ScryptHash.create(b"\xff\0 any bytes")
    assert str(stored).startswith("scrypt$16384$8$1$")
    assert stored.verify(b"\xff\0 any bytes")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "bcrypt$16$8$1$" + SALT + "$" + DIGEST,
        "scrypt$16$8$1$" + SALT,
        "scrypt$15$8$1$" + SALT + "$" + DIGEST,
        "scrypt$0$8$1$" + SALT + "$" + DIGEST,
        "scrypt$-16$8$1$" + SALT + "$" + DIGEST,
        "scrypt$16$0$1$" + SALT + "$" + DIGEST,
        "scrypt$16$8$0$" + SALT + "$" + DIGEST,
        "scrypt$16$8$x$" + SALT + "$" + DIGEST,
        "scrypt$1048576$64$1$" + SALT + "$" + DIGEST,
        "scrypt$\u0661\u0666$8$1$" + SALT + "$" + DIGEST,
        "scrypt$16$8$1$!$" + DIGEST,
        "scrypt$16$8$1$AAAA$" + DIGEST,
        "scrypt$16$8$1$" + SALT + "$AAAA",
        "scrypt$16$8$1$" + SALT + "$" + DIGEST + "\u00e9",
    ],
)
def test_unreadable_hashes(text: str) -> None:
    with pytest.raises(ValueError):
        ScryptHash.parse(text)


@given(st.text(max_size=80) | st.from_regex(r"scrypt\$\d{1,4}\$\d\$\d\$[A-Za-z0-9+/=]{0,30}\$[A-Za-z0-9+/=]{0,50}"))
def test_parse_fails_only_by_value_error(text: str) -> None:
    try:
        parsed = ScryptHash.parse(text)
    except ValueError:
        return
    assert ScryptHash.parse(str(parsed)).fingerprint == parsed.fingerprint


def test_verified_credentials_are_bounded_and_recent() -> None:
    verified = VerifiedCredentials(limit=2)
    a, b, c = (verified.user(name, b"f") for name in "abc")
    right = verified.digest(a, b"p")
    verified.add(a, right)
    verified.add(b, verified.digest(b, b"p"))
    assert verified.check(a, right) is True
    verified.add(c, verified.digest(c, b"p"))
    assert verified.check(b, verified.digest(b, b"p")) is None
    assert verified.check(a, right) is True
    assert verified.check(a, verified.digest(a, b"q")) is False
    assert len(verified) == 2
    verified.clear()
    assert verified.check(a, right) is None


def test_digests_depend_on_every_part_and_on_the_process() -> None:
    verified = VerifiedCredentials()
    pairs = [("a", b"bc"), ("ab", b"c"), ("x", b"bc"), ("a", b"bcd")]
    users = [verified.user(*pair) for pair in pairs]
    assert len(set(users)) == len(pairs)
    assert len({verified.digest(user, password) for user in users for password in (b"p", b"q")}) == 2 * len(pairs)
    assert VerifiedCredentials().user("a", b"b") != verified.user("a", b"b")
