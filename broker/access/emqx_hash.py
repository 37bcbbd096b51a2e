"""Password hashes of EMQX 4.x: read from its files, valid for one login, then replaced by scrypt."""

import hashlib
import hmac
import os
import string
from typing import Final

from .password_hash import ScryptHash, from_base64, to_base64

SALT_SIZE: Final = 4
_DIGEST_LENGTHS: Final = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
_HEX: Final = frozenset(string.hexdigits.encode())


class EmqxHash:
    """``emqx$algorithm$salt$hash``: ``hash`` is hex of the digest of salt and password, ``salt`` base64, often empty.

    A wrong password costs one scrypt like any other, so that the time does not reveal which users have an old hash."""

    __slots__ = ("algorithm", "digest", "salt")

    fast: Final = False
    outdated: Final = True

    def __init__(self, algorithm: str, salt: bytes, digest: str) -> None:
        self.algorithm = algorithm
        self.salt = salt
        self.digest = digest

    @classmethod
    def parse(cls, text: str) -> "EmqxHash":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        parts = text.split("$")
        if len(parts) != 4 or parts[0] != "emqx" or _DIGEST_LENGTHS.get(len(parts[3])) != parts[1]:
            raise ValueError("expected emqx$algorithm$salt$hash with md5, sha1, sha256 or sha512")
        if not _is_hex(parts[3].encode()):
            raise ValueError("the hash must be hexadecimal")
        return cls(parts[1], from_base64(parts[2]), parts[3].lower())

    @classmethod
    def read(cls, stored: bytes, salted: bool = True) -> "EmqxHash":
        """Read a password as EMQX stores it: the hex digest, or 4 raw bytes of salt and the hex digest, or the password
        itself.

        EMQX does not store which form it is: the length decides, as in EMQX. ``salted``: whether a password itself
        would be preceded by the salt (EMQX 4.3 and later). Such a password is hashed here, and never stored."""
        for salt_size in (0, SALT_SIZE):
            salt, digest = stored[:salt_size], stored[salt_size:]
            algorithm = _DIGEST_LENGTHS.get(len(digest))
            if algorithm is not None and _is_hex(digest):
                return cls(algorithm, salt, digest.decode().lower())
        plain = stored[SALT_SIZE:] if salted else stored
        if not plain:
            raise ValueError("an empty password")
        salt = os.urandom(16)
        return cls("sha256", salt, hashlib.sha256(salt + plain).hexdigest())

    @property
    def fingerprint(self) -> bytes:
        return str(self).encode()

    def verify(self, password: bytes) -> bool:
        computed = hashlib.new(self.algorithm, self.salt + password, usedforsecurity=False).hexdigest()
        if hmac.compare_digest(computed, self.digest):
            return True
        ScryptHash.unknown().verify(password)
        return False

    def __str__(self) -> str:
        return f"emqx${self.algorithm}${to_base64(self.salt)}${self.digest}"


def _is_hex(text: bytes) -> bool:
    return all(char in _HEX for char in text)
