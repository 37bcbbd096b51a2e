"""Password hashes of other systems: PBKDF2, bcrypt and those of Mosquitto. They are read, verified, and replaced at the
login.

``parse_hash`` reads a stored hash in any stored form; ``read_hash`` reads a new one from the fields of a request or a
file."""

import binascii
import hashlib
import hmac
import re
from typing import Final

from .emqx_hash import EmqxHash
from .password_hash import ScryptHash, from_base64, to_base64
from .random_secret import RandomSecretHash

METHODS: Final = ("sha256", "pbkdf2", "bcrypt", "scrypt", "mosquitto")
_PBKDF2: Final = ("sha1", "sha256", "sha512")
_MAX_ITERATIONS: Final = 2_000_000
"""Limit for all blocks of a new hash: about a second of a thread. Each guess of the password costs that."""
_STORED_ITERATIONS: Final = 5_000_000
"""Limit for a stored hash, which was allowed earlier."""
_MAX_PBKDF2: Final = 1024
"""Maximum size of a hash, as some libraries create them: blocks after the first add no security."""
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_BCRYPT_COSTS: Final = range(4, 15)
_STORED_BCRYPT_COSTS: Final = range(4, 16)
_MAX_SCRYPT: Final = 2**21
"""Limit of n * r * p of a new hash: 16 times that of Taipan's hashes, about a second of a thread."""

NO_BCRYPT: Final = "a bcrypt hash requires the package bcrypt: pip install bcrypt"


_BCRYPT_COST: Final = f"bcrypt requires a cost of {_BCRYPT_COSTS.start} to {_BCRYPT_COSTS.stop - 1}"


class PackageMissing(ValueError):
    """The package that verifies such a hash is not installed. The message gives the command that installs it."""


class Sha512Hash:
    """``$6$salt$hash``, from ``mosquitto_passwd -H sha512``: SHA-512 of password and salt, both in base64."""

    __slots__ = ("digest", "salt")

    fast: Final = False
    outdated: Final = True

    def __init__(self, salt: bytes, digest: bytes) -> None:
        self.salt = salt
        self.digest = digest

    @classmethod
    def parse(cls, text: str) -> "Sha512Hash":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        parts = text.split("$")
        if len(parts) != 4 or parts[:2] != ["", "6"]:
            raise ValueError("expected $6$salt$hash, the mosquitto_passwd format")
        salt, digest = from_base64(parts[2]), from_base64(parts[3])
        if len(digest) != hashlib.sha512().digest_size:
            raise ValueError("a $6$ hash must be 64 bytes in base64")
        return cls(salt, digest)

    @property
    def fingerprint(self) -> bytes:
        return str(self).encode()

    def verify(self, password: bytes) -> bool:
        if hmac.compare_digest(hashlib.sha512(password + self.salt).digest(), self.digest):
            return True
        # The time must not reveal which users have a fast hash.
        ScryptHash.unknown().verify(password)
        return False

    def __str__(self) -> str:
        return f"$6${to_base64(self.salt)}${to_base64(self.digest)}"


class Pbkdf2Hash:
    """``pbkdf2$digest$iterations$salt$hash``, salt and hash in base64; Mosquitto's ``$7$iterations$salt$hash`` is read
    as one with SHA-512."""

    __slots__ = ("algorithm", "digest", "iterations", "salt")

    fast: Final = False
    outdated: Final = True

    def __init__(self, algorithm: str, iterations: int, salt: bytes, digest: bytes) -> None:
        if algorithm not in _PBKDF2:
            raise ValueError(f"PBKDF2 requires one of {', '.join(_PBKDF2)}")
        if not 1 <= iterations <= _STORED_ITERATIONS:
            raise ValueError(f"PBKDF2 requires 1 to {_MAX_ITERATIONS} iterations")
        if not 16 <= len(digest) <= _MAX_PBKDF2:
            raise ValueError(f"PBKDF2 requires a hash of 16 to {_MAX_PBKDF2} bytes")
        if len(digest) > hashlib.sha512().digest_size:
            # Each block is as hard to guess as all of them, but costs all iterations: only the first one is kept.
            digest = digest[: hashlib.new(algorithm, usedforsecurity=False).digest_size]
        self.algorithm = algorithm
        self.iterations = iterations
        self.salt = salt
        self.digest = digest

    @classmethod
    def parse(cls, text: str) -> "Pbkdf2Hash":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        parts = text.split("$")
        if parts[:2] == ["", "7"]:
            parts = ["pbkdf2", "sha512", *parts[2:]]
        if len(parts) != 5 or parts[0] != "pbkdf2":
            raise ValueError("expected pbkdf2$digest$iterations$salt$hash, or Mosquitto's $7$iterations$salt$hash")
        if not (parts[2].isascii() and parts[2].isdigit() and len(parts[2]) <= 9):
            raise ValueError("the iterations must be a decimal number")
        return cls(parts[1], int(parts[2]), from_base64(parts[3]), from_base64(parts[4]))

    @property
    def work(self) -> int:
        """Number of iterations of all blocks."""
        return self.iterations * -(-len(self.digest) // hashlib.new(self.algorithm, usedforsecurity=False).digest_size)

    @property
    def fingerprint(self) -> bytes:
        return str(self).encode()

    def verify(self, password: bytes) -> bool:
        computed = hashlib.pbkdf2_hmac(self.algorithm, password, self.salt, self.iterations, len(self.digest))
        return hmac.compare_digest(computed, self.digest)

    def __str__(self) -> str:
        return f"pbkdf2${self.algorithm}${self.iterations}${to_base64(self.salt)}${to_base64(self.digest)}"


class BcryptHash:
    """``$2b$cost$...``: bcrypt in its own form, which uses 72 bytes of a password."""

    __slots__ = ("text",)

    PREFIX: Final = "$2"
    """The prefix of this form, which no other stored form has."""

    fast: Final = False
    outdated: Final = True

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def parse(cls, text: str) -> "BcryptHash":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        found = _BCRYPT.fullmatch(text)
        if found is None:
            raise ValueError("expected the bcrypt format, $2b$ with cost, salt and hash in 60 characters")
        if int(found[1]) not in _STORED_BCRYPT_COSTS:
            raise ValueError(_BCRYPT_COST)
        return cls(text)

    @property
    def cost(self) -> int:
        """The work is two to the power of this number."""
        return int(self.text[4:6])

    @property
    def fingerprint(self) -> bytes:
        return self.text.encode()

    def verify(self, password: bytes) -> bool:
        """Raises ``PackageMissing``."""
        if not self.installed():
            # The time must not reveal which users have such a hash.
            ScryptHash.unknown().verify(password)
            raise PackageMissing(NO_BCRYPT)
        import bcrypt

        try:
            return bcrypt.checkpw(password[:72], self.text.encode())
        except ValueError:  # bytes that bcrypt would not use
            return False

    @staticmethod
    def installed() -> bool:
        """Return whether the package is installed. This imports it: call it only if there is such a hash."""
        try:
            import bcrypt  # noqa: F401
        except ImportError:
            return False
        return True

    def __str__(self) -> str:
        return self.text


PasswordHash = ScryptHash | RandomSecretHash | EmqxHash | Sha512Hash | Pbkdf2Hash | BcryptHash


def parse_hash(text: str) -> PasswordHash:
    """Read a password in any stored form. Raises ``ValueError`` with the problem."""
    kind = text.split("$", 2)
    match kind[0] or (kind[1] if len(kind) > 1 else ""):
        case "emqx":
            return EmqxHash.parse(text)
        case "random":
            return RandomSecretHash.parse(text)
        case "pbkdf2" | "7":
            return Pbkdf2Hash.parse(text)
        case "6":
            return Sha512Hash.parse(text)
        case "2a" | "2b" | "2y":
            return BcryptHash.parse(text)
        case "scrypt":
            return ScryptHash.parse(text)
    raise ValueError(
        "expected a hash as taipan hash-password prints it, scrypt$..., or pbkdf2$..., $2b$..., $6$... or $7$..."
    )


def check_work(found: PasswordHash) -> None:
    """Refuse a new hash that costs too much: ``ValueError`` names the limit. Stored hashes have other, earlier
    limits."""
    if isinstance(found, Pbkdf2Hash) and found.work > _MAX_ITERATIONS:
        raise ValueError(
            f"PBKDF2 requires 1 to {_MAX_ITERATIONS} iterations in total over all blocks of the hash; this hash has "
            f"{found.work}, which each wrong password would use"
        )
    if isinstance(found, BcryptHash) and found.cost not in _BCRYPT_COSTS:
        raise ValueError(_BCRYPT_COST)
    if isinstance(found, ScryptHash) and found.n * found.r * found.p > _MAX_SCRYPT:
        raise ValueError(
            f"scrypt with n={found.n}, r={found.r} and p={found.p} takes too long: n * r * p must be at most"
            f" {_MAX_SCRYPT}"
        )


def new_hash(text: str) -> PasswordHash:
    """Read a new hash in any stored form. Raises ``ValueError`` with the problem."""
    found = parse_hash(text)
    check_work(found)
    return found


def read_hash(
    password_hash: str,
    method: str | None = None,
    salt: str | None = None,
    iterations: int | None = None,
    digest: str | None = None,
) -> PasswordHash:
    """Read a new hash from a request or a file. Raises ``ValueError`` with the problem, ``PackageMissing`` for a
    missing package without which the user could not log in.

    Without ``method``, and for ``bcrypt`` and ``mosquitto``, the hash is in its stored form. Otherwise it is hex or
    base64, and ``salt`` is the text that was hashed with the password: before it, for ``sha256``."""
    found = _read_hash(password_hash, method, salt, iterations, digest)
    check_work(found)
    return found


def _read_hash(
    password_hash: str, method: str | None, salt: str | None, iterations: int | None, digest: str | None
) -> PasswordHash:
    written = method is None or method in ("bcrypt", "mosquitto")
    if (iterations is not None and (written or method == "sha256")) or (digest is not None and method != "pbkdf2"):
        raise ValueError("iterations require pbkdf2 or scrypt, digest requires pbkdf2")
    if written:
        if salt:
            raise ValueError("salt: a hash in this format already contains its salt")
        found = parse_hash(password_hash)
        if method == "bcrypt" and not isinstance(found, BcryptHash):
            raise ValueError("expected the bcrypt format, $2b$...")
        if method == "mosquitto" and not isinstance(found, Sha512Hash | Pbkdf2Hash):
            raise ValueError("expected Mosquitto's $6$... or $7$...")
        if isinstance(found, BcryptHash) and not found.installed():
            raise PackageMissing(NO_BCRYPT)
        return found
    if method == "scrypt" and password_hash.startswith("scrypt$"):
        if salt or iterations is not None:
            raise ValueError("salt: a hash in this format already contains its salt and its iterations")
        return ScryptHash.parse(password_hash)
    salted = (salt or "").encode("utf-8", "surrogatepass")
    decoded = _decoded(password_hash)
    if method == "sha256":
        if len(decoded) != hashlib.sha256().digest_size:
            raise ValueError("a SHA-256 hash has 32 bytes, 64 characters of hex")
        return EmqxHash("sha256", salted, decoded.hex())
    if method == "pbkdf2":
        if iterations is None:
            raise ValueError("iterations is missing: the number of PBKDF2 iterations of the hash")
        return Pbkdf2Hash(digest or "sha256", iterations, salted, decoded)
    if method == "scrypt":
        text = f"scrypt${iterations or 2**14}$8$1${to_base64(salted)}${to_base64(decoded)}"
        return ScryptHash.parse(text)
    raise ValueError(f"method: expected one of {', '.join(METHODS)}")


def _decoded(text: str) -> bytes:
    try:
        return binascii.unhexlify(text)
    except ValueError:
        pass
    try:
        return from_base64(text)
    except ValueError:
        raise ValueError("expected hex or base64") from None
