"""Hashes that others have made, and random secrets."""

import base64
import hashlib
import itertools
import re
from typing import Any

import pytest

from taipan.broker.access.foreign_hashes import NO_BCRYPT, PackageMissing, PasswordHash, parse_hash, read_hash
from taipan.broker.access.random_secret import RandomSecretHash, check_random, generate
from tests.support.no_package import without

SALT = base64.b64encode(b"twelve bytes").decode()


def mosquitto6(password: bytes) -> str:
    return f"$6${SALT}${base64.b64encode(hashlib.sha512(password + b'twelve bytes').digest()).decode()}"


def mosquitto7(password: bytes, iterations: int = 101) -> str:
    derived = hashlib.pbkdf2_hmac("sha512", password, b"twelve bytes", iterations)
    return f"$7${iterations}${SALT}${base64.b64encode(derived).decode()}"


# Of the tests of crypt_blowfish.
BCRYPT = {
    b"U*U": "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
    b"U*U*": "$2b$05$CCCCCCCCCCCCCCCCCCCCC.VGOzA784oUp/Z0DY336zx7pLYAy0lwK",
}


@pytest.mark.parametrize(
    "written, password",
    [
        (mosquitto6(b"secret"), b"secret"),
        (mosquitto7(b"secret"), b"secret"),
        (mosquitto7(b"secret", 1000), b"secret"),
        (BCRYPT[b"U*U"], b"U*U"),
        (BCRYPT[b"U*U*"], b"U*U*"),
        (str(RandomSecretHash.create(b"0123456789abcdefghijkl")), b"0123456789abcdefghijkl"),
    ],
    ids=itertools.count(),  # workers have to name a test alike, and one of these hashes is another each time
)
def test_written_forms(written: str, password: bytes) -> None:
    read = parse_hash(written)
    assert read.verify(password) and not read.verify(password + b"x") and not read.verify(b"")
    again = parse_hash(str(read))
    assert again.verify(password) and again.fingerprint == read.fingerprint
    assert read.outdated is not read.fast


# From the documents: RFC 6070 (PBKDF2 with SHA-1), RFC 7914 (scrypt), EMQX 4 (SHA-256 of salt and password).
@pytest.mark.parametrize(
    "fields, password",
    [
        (
            {
                "password_hash": "4b007901b765489abead49d926f721d065a429c1",
                "method": "pbkdf2",
                "salt": "salt",
                "iterations": 4096,
                "digest": "sha1",
            },
            b"password",
        ),
        (
            {
                "password_hash": hashlib.scrypt(b"pw", salt=b"saltsalt", n=2**14, r=8, p=1, dklen=64).hex(),
                "method": "scrypt",
                "salt": "saltsalt",
            },
            b"pw",
        ),
        (
            {"password_hash": hashlib.sha256(b"abcdpw").hexdigest().upper(), "method": "sha256", "salt": "abcd"},
            b"pw",
        ),
        (
            {"password_hash": base64.b64encode(hashlib.sha256(b"pw").digest()).decode(), "method": "sha256"},
            b"pw",
        ),
        ({"password_hash": BCRYPT[b"U*U"], "method": "bcrypt"}, b"U*U"),
        ({"password_hash": mosquitto7(b"pw"), "method": "mosquitto"}, b"pw"),
        ({"password_hash": mosquitto6(b"pw")}, b"pw"),
    ],
)
def test_separate_fields(fields: dict[str, Any], password: bytes) -> None:
    read: PasswordHash = read_hash(**fields)
    assert read.verify(password) and not read.verify(b"other")
    assert parse_hash(str(read)).verify(password)


@pytest.mark.parametrize(
    "fields, about",
    [
        ({"password_hash": "x" * 64}, "scrypt$"),
        ({"password_hash": "zz", "method": "sha256"}, "hex or base64"),
        ({"password_hash": "00ff", "method": "sha256"}, "32 bytes"),
        ({"password_hash": "00" * 32, "method": "pbkdf2", "salt": "s"}, "iterations is missing"),
        ({"password_hash": "00" * 32, "method": "pbkdf2", "salt": "s", "iterations": 10**9}, "2000000"),
        ({"password_hash": "00" * 4, "method": "pbkdf2", "salt": "s", "iterations": 1}, "16 to 1024"),
        ({"password_hash": "00" * 1025, "method": "pbkdf2", "salt": "s", "iterations": 1}, "16 to 1024"),
        ({"password_hash": "00" * 32, "method": "scrypt", "salt": "s"}, "at least 8"),
        ({"password_hash": "00" * 32, "method": "scrypt", "salt": "saltsalt", "iterations": 1000}, "power of two"),
        ({"password_hash": "$2b$31$" + "a" * 53, "method": "bcrypt"}, "cost of 4 to 14"),
        ({"password_hash": "$2b$10$" + "a" * 52, "method": "bcrypt"}, "60 characters"),
        ({"password_hash": mosquitto6(b"x"), "method": "bcrypt"}, "the bcrypt format"),
        ({"password_hash": BCRYPT[b"U*U"], "method": "mosquitto"}, "$6$"),
        ({"password_hash": mosquitto6(b"x"), "salt": "s"}, "salt"),
        ({"password_hash": "$6$$"}, "64 bytes"),
        ({"password_hash": "$7$x$" + SALT + "$"}, "decimal"),
        ({"password_hash": "random$sha256$AAAA$AAAA"}, "32 bytes"),
        ({"password_hash": "random$md5$AAAA$AAAA"}, "random$sha256"),
        ({"password_hash": "00", "method": "md5"}, "method"),
        ({"password_hash": f"scrypt$262144$8$64${SALT}${SALT}"}, "takes too long"),
        ({"password_hash": "00" * 32, "method": "sha256", "iterations": 2}, "iterations require"),
        ({"password_hash": mosquitto6(b"x"), "iterations": 2}, "iterations require"),
        ({"password_hash": "00" * 32, "method": "scrypt", "salt": "saltsalt", "digest": "sha1"}, "digest requires"),
        ({"password_hash": f"scrypt$16384$8$1${SALT}${SALT}", "method": "scrypt", "salt": "saltsalt"}, "salt"),
    ],
)
def test_what_is_none_of_them(fields: dict[str, Any], about: str) -> None:
    with pytest.raises(ValueError, match=about.replace("$", r"\$")):
        read_hash(**fields)


def test_bcrypt_and_bytes_that_it_does_not_take() -> None:
    read = parse_hash(BCRYPT[b"U*U"])
    assert not read.verify(b"U*U\0more") and not read.verify(b"x" * 500)


def test_without_bcrypt_its_hashes_are_read_and_neither_taken_nor_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bcrypt")
    stored = parse_hash(BCRYPT[b"U*U"])
    for password in (b"U*U", b"wrong"):
        with pytest.raises(PackageMissing) as raised:
            stored.verify(password)
        assert str(raised.value) == NO_BCRYPT and "pip install bcrypt" in NO_BCRYPT
    for method in (None, "bcrypt"):
        with pytest.raises(PackageMissing):
            read_hash(BCRYPT[b"U*U"], method)
    with pytest.raises(ValueError, match="cost of 4 to 14"):
        read_hash("$2b$31$" + "a" * 53)
    assert read_hash(mosquitto6(b"pw")).verify(b"pw")
    monkeypatch.undo()
    assert stored.verify(b"U*U") and read_hash(BCRYPT[b"U*U"]).verify(b"U*U")


def test_random_secrets() -> None:
    made = {generate() for _ in range(100)}
    assert len(made) == 100
    for secret in made:
        assert re.fullmatch(r"[0-9A-Za-z]{43}", secret)
        stored = RandomSecretHash.create(secret.encode())
        assert stored.verify(secret.encode()) and not stored.verify(secret[:-1].encode())
        assert secret not in str(stored)
    for weak in (b"correct horse", b"a" * 40, b"abcabcabcabcabcabcabcabcabc"):
        with pytest.raises(ValueError, match="at least 22"):
            check_random(weak)


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512"])
@pytest.mark.parametrize("length", [64, 65, 512, 1024])
def test_a_long_pbkdf2_hash_is_verified_by_its_first_block(algorithm: str, length: int) -> None:
    derived = hashlib.pbkdf2_hmac(algorithm, b"secret", b"salt", 3, length)
    found = read_hash(derived.hex(), "pbkdf2", "salt", 3, algorithm)
    assert found.verify(b"secret") and not found.verify(b"other")
    again = parse_hash(str(found))
    assert again.verify(b"secret") and not again.verify(b"other") and len(str(again)) < 200
