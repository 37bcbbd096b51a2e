"""Random secrets: generated passwords. One fast hash is enough to protect them, because they cannot be guessed."""

import hashlib
import hmac
import os
import secrets
import string
from typing import Final

from .password_hash import from_base64, to_base64

MIN_LENGTH: Final = 22
"""Minimum length of a secret in characters: this number of base64 characters has 128 bits."""
_MIN_DIFFERENT: Final = 8
_LETTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 43  # 62 ** 43 > 2 ** 256


class RandomSecretHash:
    """``random$sha256$salt$hash``: ``hash`` is the digest of salt and secret, both in base64."""

    __slots__ = ("digest", "salt")

    fast: Final = True
    outdated: Final = False

    def __init__(self, salt: bytes, digest: bytes) -> None:
        self.salt = salt
        self.digest = digest

    @classmethod
    def parse(cls, text: str) -> "RandomSecretHash":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        parts = text.split("$")
        if len(parts) != 4 or parts[:2] != ["random", "sha256"]:
            raise ValueError("expected random$sha256$salt$hash")
        salt, digest = from_base64(parts[2]), from_base64(parts[3])
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError("a SHA-256 hash has 32 bytes")
        return cls(salt, digest)

    @classmethod
    def create(cls, secret: bytes) -> "RandomSecretHash":
        """Return the hash of a random secret. Raises ``ValueError`` if the secret does not look random."""
        check_random(secret)
        salt = os.urandom(16)
        return cls(salt, hashlib.sha256(salt + secret).digest())

    @property
    def fingerprint(self) -> bytes:
        return str(self).encode()

    def verify(self, password: bytes) -> bool:
        return hmac.compare_digest(hashlib.sha256(self.salt + password).digest(), self.digest)

    def __str__(self) -> str:
        return f"random$sha256${to_base64(self.salt)}${to_base64(self.digest)}"


def generate() -> str:
    """Return a new secret of 256 bits, for every secret and password that a node or a command generates.

    It has 43 letters and digits: a double-click selects it, and shells, URLs and option parsers read it unchanged."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def check_random(secret: bytes) -> None:
    """Raise ``ValueError`` for a secret that is too short, or has too few different characters, to be random."""
    if len(secret) < MIN_LENGTH or len(set(secret)) < _MIN_DIFFERENT:
        raise ValueError(
            f"a secret of high entropy has at least {MIN_LENGTH} characters, {_MIN_DIFFERENT} of them different:"
            " let the node generate one"
        )
