"""Password hashes (scrypt), and the cache of verified credentials."""

import base64
import binascii
import hashlib
import hmac
import os
from collections import OrderedDict
from typing import Final, Protocol

N: Final = 2**14
R: Final = 8
P: Final = 1
_MAX_MEMORY: Final = 256 * 1024 * 1024
_MAX_WORK: Final = 2**23
"""Limit of n * r * p: 64 times that of Taipan's hashes, some seconds of a thread."""


class PasswordVerifier(Protocol):
    """A stored form of a password. ``fingerprint`` changes whenever the stored form changes.

    ``fast``: the hash of a secret that cannot be guessed; it is verified immediately. ``outdated``: to be replaced by a
    hash of Taipan's own at the next login, which provides the password."""

    @property
    def fingerprint(self) -> bytes: ...

    @property
    def fast(self) -> bool: ...

    @property
    def outdated(self) -> bool: ...

    def verify(self, password: bytes) -> bool:
        """Return whether ``password`` is correct. Unless ``fast``: intentionally slow, releases the GIL, called outside
        the loop."""
        ...


class ScryptHash:
    """``scrypt$n$r$p$salt$hash``, salt and hash in base64: the ``password_hash`` of a user."""

    __slots__ = ("digest", "n", "p", "r", "salt")

    fast: Final = False
    outdated: Final = False

    def __init__(self, n: int, r: int, p: int, salt: bytes, digest: bytes) -> None:
        self.n = n
        self.r = r
        self.p = p
        self.salt = salt
        self.digest = digest

    @classmethod
    def parse(cls, text: str) -> "ScryptHash":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        parts = text.split("$")
        if len(parts) != 6 or parts[0] != "scrypt":
            raise ValueError("expected scrypt$n$r$p$salt$hash, as printed by taipan hash-password")
        n, r, p = (_number(part) for part in parts[1:4])
        if n < 2 or n & (n - 1) or not 1 <= r <= 64 or not 1 <= p <= 64:
            raise ValueError("scrypt requires n to be a power of two, and r and p to be from 1 to 64")
        if 128 * n * r > _MAX_MEMORY:
            raise ValueError(f"scrypt with n={n} and r={r} takes more than 256 MiB")
        if n * r * p > _MAX_WORK:
            raise ValueError(
                f"scrypt with n={n}, r={r} and p={p} takes too long: n * r * p must be {_MAX_WORK} at most"
            )
        salt = from_base64(parts[4])
        digest = from_base64(parts[5])
        if len(salt) < 8 or not 16 <= len(digest) <= 64:
            raise ValueError("scrypt requires a salt of at least 8 bytes and a hash of 16 to 64 bytes")
        return cls(n, r, p, salt, digest)

    @classmethod
    def create(cls, password: bytes, n: int = N, r: int = R, p: int = P) -> "ScryptHash":
        """Hash a new password with a random salt."""
        salt = os.urandom(16)
        return cls(n, r, p, salt, _scrypt(password, salt, n, r, p, 32))

    @classmethod
    def unknown(cls, n: int = N, r: int = R, p: int = P) -> "ScryptHash":
        """Return a hash that no password matches, and that costs as much as any other."""
        return cls(n, r, p, os.urandom(16), os.urandom(32))

    @property
    def fingerprint(self) -> bytes:
        return b"%d %d %d " % (self.n, self.r, self.p) + self.salt + self.digest

    def verify(self, password: bytes) -> bool:
        computed = _scrypt(password, self.salt, self.n, self.r, self.p, len(self.digest))
        return hmac.compare_digest(computed, self.digest)

    def __str__(self) -> str:
        return f"scrypt${self.n}${self.r}${self.p}${to_base64(self.salt)}${to_base64(self.digest)}"


class VerifiedCredentials:
    """Credentials that were verified since the start, so that many clients that reconnect cost one hash each at most.

    They are kept as keyed digests, with a key that only exists in this process: memory contains neither a password nor
    data for guessing one offline. At most ``limit`` entries; the least recently used one is removed first."""

    __slots__ = ("_entries", "_key", "limit")

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        self._key = os.urandom(32)
        # Key of username and stored hash -> digest of this key and the correct password.
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()

    def user(self, username: str, fingerprint: bytes) -> bytes:
        """Return the key of one username and stored hash. A changed hash has another key."""
        name = username.encode("utf-8", "surrogatepass")
        # The length first, so that different pairs never result in the same bytes.
        return self._digest(b"user %d " % len(name) + name + fingerprint)

    def digest(self, user: bytes, password: bytes) -> bytes:
        """Return the digest of a password for ``add``; ``user`` is its key."""
        return self._digest(b"password " + user + password)

    def check(self, user: bytes, digest: bytes) -> bool | None:
        """Return whether this is the password; ``None``: no password of this user was verified yet."""
        right = self._entries.get(user)
        if right is None:
            return None
        self._entries.move_to_end(user)
        return hmac.compare_digest(right, digest)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, user: bytes, digest: bytes) -> None:
        self._entries[user] = digest
        self._entries.move_to_end(user)
        if len(self._entries) > self.limit:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes:
    """Decode strict base64. Raises ``ValueError`` for anything else."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not base64") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError("scrypt's n, r and p must be decimal numbers")
    return int(text)


def _scrypt(password: bytes, salt: bytes, n: int, r: int, p: int, length: int) -> bytes:
    # OpenSSL's own limit is 32 MiB; it needs 128 * r * (n + p + 2) bytes.
    maxmem = 128 * r * (n + p + 2) + 1024 * 1024
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=maxmem, dklen=length)
