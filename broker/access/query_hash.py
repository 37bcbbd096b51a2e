"""Passwords in the rows of a database: the format in ``password_hash``, and the two columns of a row.

The formats are those of EMQX 4: a digest, with the salt before or after the password; bcrypt; PBKDF2.
"""

import hashlib
import hmac
import re
from typing import Final

from .foreign_hashes import NO_BCRYPT, BcryptHash, PackageMissing

_DIGESTS: Final = {"md5": "md5", "sha": "sha1", "sha1": "sha1", "sha256": "sha256", "sha512": "sha512"}
_PBKDF2: Final = ("md4", "md5", "ripemd160", "sha", "sha224", "sha256", "sha384", "sha512")
_MAX_ITERATIONS: Final = 2_000_000
_MAX_LENGTH: Final = 1024
_BCRYPT_SALT: Final = re.compile(r"\$2[aby]\$(0[4-9]|1[0-5])\$[./A-Za-z0-9]{22}")
FORMATS: Final = (
    "plain, md5, sha, sha256, sha512, the last four with salt before or behind (salt,sha256), bcrypt, salt,bcrypt, "
    "bcrypt,salt, or pbkdf2,<digest>,<iterations>,<length>"
)


class HashFormat:
    """The value of ``password_hash``. ``salted``: a row must have a salt."""

    __slots__ = ("_method", "digest", "iterations", "length", "place")

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` with the problem."""
        parts = [part.strip() for part in text.split(",")]
        self.place = ""
        self.digest = ""
        self.iterations = 0
        self.length = 0
        if parts[0] == "pbkdf2" and len(parts) == 4:
            self._method = "pbkdf2"
            self._read_pbkdf2(parts[1], parts[2], parts[3])
            return
        if len(parts) == 2 and "salt" in parts:
            self.place = "before" if parts[0] == "salt" else "behind"
            parts.remove("salt")
        method = parts[0] if len(parts) == 1 else ""
        if method in ("plain", "bcrypt") and not (method == "plain" and self.place):
            self._method = method
            if method == "bcrypt" and not BcryptHash.installed():
                raise ValueError(NO_BCRYPT)
        elif method in _DIGESTS:
            self._method = "digest"
            self.digest = _DIGESTS[method]
        else:
            raise ValueError(f"expected {FORMATS}")

    def _read_pbkdf2(self, digest: str, iterations: str, length: str) -> None:
        if digest not in _PBKDF2:
            raise ValueError(f"pbkdf2 with one of {', '.join(_PBKDF2)}")
        self.digest = "sha1" if digest == "sha" else digest
        try:
            hashlib.pbkdf2_hmac(self.digest, b"", b"", 1, 1)
        except ValueError:
            raise ValueError(f"the OpenSSL of this machine does not have {digest}") from None
        self.iterations = _whole(iterations, "iterations", _MAX_ITERATIONS)
        self.length = _whole(length, "bytes", _MAX_LENGTH)
        if self.iterations * -(-self.length // hashlib.new(self.digest, usedforsecurity=False).digest_size) > (
            _MAX_ITERATIONS
        ):
            raise ValueError(f"pbkdf2 requires 1 to {_MAX_ITERATIONS} iterations in total over all blocks of the hash")

    @property
    def salted(self) -> bool:
        return bool(self.place) or self._method == "pbkdf2"

    @property
    def fast(self) -> bool:
        """Whether the event loop can verify it."""
        return self._method in ("plain", "digest")

    def matches(self, stored: bytes, salt: bytes, password: bytes) -> bool:
        """Return whether the password matches; False if ``stored`` is not a hash of this kind. Raises
        ``PackageMissing``."""
        if self._method == "plain":
            return hmac.compare_digest(stored, password)
        if self._method == "bcrypt":
            return _bcrypt(stored, salt if self.place else stored[:29], password)
        if self._method == "pbkdf2":
            made = hashlib.pbkdf2_hmac(self.digest, password, salt, self.iterations, self.length).hex()
        else:
            salted = salt + password if self.place == "before" else password + salt if self.place else password
            made = hashlib.new(self.digest, salted, usedforsecurity=False).hexdigest()
        return hmac.compare_digest(stored.lower(), made.encode())


class QueryHash:
    """The password of one user in a row: a ``PasswordVerifier``. ``owner`` distinguishes it from the same password of
    another user."""

    __slots__ = ("_format", "_owner", "_salt", "_stored", "fast")

    outdated: Final = False

    def __init__(self, form: HashFormat, stored: bytes, salt: bytes, owner: str) -> None:
        self._format = form
        self._stored = stored
        self._salt = salt
        self._owner = owner
        self.fast = form.fast

    @property
    def fingerprint(self) -> bytes:
        parts = (self._owner.encode("utf-8", "surrogatepass"), self._stored, self._salt)
        return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()

    def verify(self, password: bytes) -> bool:
        """Return whether the password matches. Raises ``PackageMissing``."""
        return self._format.matches(self._stored, self._salt, password)


def _bcrypt(stored: bytes, salt: bytes, password: bytes) -> bool:
    if not _BCRYPT_SALT.fullmatch(salt[:29].decode("latin-1")):
        return False
    try:
        import bcrypt
    except ImportError:
        raise PackageMissing(NO_BCRYPT) from None
    try:
        return hmac.compare_digest(bcrypt.hashpw(password[:72], salt[:29]), stored)
    except ValueError:  # bytes that bcrypt would not use
        return False


def _whole(text: str, what: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise ValueError(f"pbkdf2 requires 1 to {most} {what}")
    return int(text)
