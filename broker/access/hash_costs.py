"""HashCosts: the cost of verifying the passwords of the known users, so that unknown usernames cost the same."""

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from .foreign_hashes import BcryptHash, Pbkdf2Hash
from .password_hash import PasswordVerifier, ScryptHash

_MAX_COSTS: Final = 256
"""Maximum number of different costs; further hashes count like one of Taipan's own."""
_OURS: Final = "scrypt"


class HashCosts:
    """Counts the stored hashes of users by the cost of a wrong password.

    An unknown username is verified against a hash that no password fits. The cost depends on the name, and each cost is
    as frequent among unknown names as among known ones, so the time of an answer does not reveal whether a user exists.
    Hashes of random secrets are not counted, because a wrong secret is treated like an unknown name."""

    __slots__ = ("_counts", "_hashes", "_key", "total")

    def __init__(self, written: Iterable[str] = ()) -> None:
        """The first hash also determines which name has which cost, which stays the same after a restart."""
        self._key = b""
        self._counts: dict[str, int] = {}
        self._hashes: dict[str, PasswordVerifier] = {}
        self.total = 0
        for each in written:
            self._key = self._key or hashlib.sha256(b"unknown users" + each.encode()).digest()
            self.count(each, 1)
        self._key = self._key or os.urandom(32)

    def count(self, written: str, step: int) -> None:
        """Change the number of users with this hash by ``step``."""
        cost = _cost_of(written)
        if cost is None:
            return
        counts = self._counts
        if cost not in counts and (step < 0 or len(counts) >= _MAX_COSTS):
            cost = _OURS
        left = max(counts.get(cost, 0) + step, 0)
        self.total += left - counts.get(cost, 0)
        if left:
            counts[cost] = left
        else:
            counts.pop(cost, None)
            self._hashes.pop(cost, None)

    @staticmethod
    def unknown(all_costs: "Sequence[HashCosts]", username: str, ours: PasswordVerifier) -> PasswordVerifier:
        """Return the hash for verifying a password of an unknown user; ``ours`` while there are no users."""
        known = [each for each in all_costs if each.total]
        if not known:
            return ours
        digest = hmac.digest(known[0]._key, username.encode("utf-8", "surrogatepass"), "sha256")
        place = int.from_bytes(digest[:8], "big") % sum(each.total for each in known)
        for costs in known:
            for cost, count in costs._counts.items():
                place -= count
                if place < 0:
                    return costs._hash_of(cost)
        return ours

    def _hash_of(self, cost: str) -> PasswordVerifier:
        found = self._hashes.get(cost)
        if found is None:
            kind, *numbers = cost.split("$")
            found = self._hashes[cost] = _MAKERS[kind](*numbers)
        return found


def _cost_of(written: str) -> str | None:
    """Return the part of a stored hash that determines its verification time; ``None``: it is verified immediately."""
    parts = written.split("$")
    if parts[0] == "random":
        return None
    if parts[0] == "scrypt" and len(parts) == 6:
        return "$".join(parts[:4])
    if parts[0] == "pbkdf2" and len(parts) == 5:
        return f"pbkdf2${parts[1]}${parts[2]}${len(parts[4].rstrip('='))}"
    if written.startswith(BcryptHash.PREFIX) and len(parts) == 4 and BcryptHash.installed():
        return f"bcrypt${parts[2]}"
    return _OURS  # a fast hash: a wrong password costs one of Taipan's own hashes


def _scrypt(n: str = "", r: str = "", p: str = "") -> PasswordVerifier:
    return ScryptHash.unknown(int(n), int(r), int(p)) if n else ScryptHash.unknown()


def _pbkdf2(algorithm: str, iterations: str, characters: str) -> PasswordVerifier:
    return Pbkdf2Hash(algorithm, int(iterations), os.urandom(16), os.urandom(int(characters) * 3 // 4))


def _bcrypt(cost: str) -> PasswordVerifier:
    return BcryptHash(f"$2b${cost}$" + "." * 53)


_MAKERS: Final[dict[str, Callable[..., PasswordVerifier]]] = {"scrypt": _scrypt, "pbkdf2": _pbkdf2, "bcrypt": _bcrypt}
