"""Hashes as EMQX 4.x stores them."""

import hashlib

import pytest

from taipan.broker.access.emqx_hash import EmqxHash
from taipan.broker.access.foreign_hashes import parse_hash
from taipan.broker.access.password_hash import ScryptHash

SALT = b"$\x00\xffa"


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
@pytest.mark.parametrize("salt", [b"", SALT])
def test_digests(algorithm: str, salt: bytes) -> None:
    stored = salt + hashlib.new(algorithm, salt + b"secret").hexdigest().encode()
    read = EmqxHash.read(stored)
    assert (read.algorithm, read.salt) == (algorithm, salt)
    again = parse_hash(str(read))
    assert isinstance(again, EmqxHash) and again.fingerprint == read.fingerprint
    assert again.verify(b"secret") and not again.verify(b"Secret") and not again.verify(b"")


def test_the_reference_password() -> None:
    """From the notes on EMQX 4.1: unsalted SHA-256 in lower-case hex."""
    digest = hashlib.sha256(b"emqx_p").hexdigest()
    assert digest.startswith("ceb5e917") and digest.endswith("171a")
    assert EmqxHash.read(digest.upper().encode()).verify(b"emqx_p")


@pytest.mark.parametrize("salted", [False, True])
def test_a_password_as_it_is_is_not_kept(salted: bool) -> None:
    read = EmqxHash.read((SALT if salted else b"") + b"plain one", salted)
    assert read.verify(b"plain one") and not read.verify(b"other")
    assert "plain one" not in str(read) and len(read.salt) == 16
    assert str(read) != str(EmqxHash.read(b"plain one", False))


@pytest.mark.parametrize("stored", [b"", SALT])
def test_no_password_at_all(stored: bytes) -> None:
    with pytest.raises(ValueError):
        EmqxHash.read(stored)


@pytest.mark.parametrize(
    "text",
    ["emqx$md5$$abc", "emqx$sha256$$" + "0" * 32, "emqx$md5$*$" + "0" * 32, "emqx$md5$$" + "g" * 32, "plain", "emqx$"],
)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError):
        parse_hash(text)


def test_ours() -> None:
    ours = ScryptHash.create(b"secret", n=16)
    assert parse_hash(str(ours)).verify(b"secret")
    assert not ScryptHash.unknown(16).verify(b"secret")
