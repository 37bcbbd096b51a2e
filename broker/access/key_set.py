"""KeySet: the keys of a JWK Set, which verify the signatures of tokens."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import jwt

if TYPE_CHECKING:
    from jwt.algorithms import AllowedPublicKeys

# The type of key (``kty`` of a JWK) for the algorithms of a family.
_KINDS: Final = {"HS": "oct", "RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}

VerificationKey: TypeAlias = "AllowedPublicKeys | str | bytes"


@dataclass(slots=True, repr=False)
class _SetKey:
    """A key of a JWK Set. ``algorithm``: the only one that it may be used for, ``None`` if it does not specify one."""

    key: VerificationKey
    key_type: str | None
    key_id: str | None
    algorithm: str | None


class KeySet:
    """The keys of a set, by type and by ``kid``."""

    def __init__(self, keys: list[_SetKey] | None = None) -> None:
        self._keys = keys or []

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, algorithm: str, key_id: object) -> "VerificationKey | None":
        """Return the key for this algorithm and ``kid``; ``None``: no key matches, or several do."""
        kind = _KINDS[algorithm[:2]]
        fitting = [each for each in self._keys if each.key_type == kind and each.algorithm in (None, algorithm)]
        if key_id is not None:
            fitting = [each for each in fitting if each.key_id == key_id]
        return fitting[0].key if len(fitting) == 1 else None

    @classmethod
    def parse(cls, text: bytes) -> "KeySet":
        """Return the keys that verify signatures. Raises ``ValueError`` if there is no usable key."""
        found = 0
        keys: list[_SetKey] = []
        try:
            document = json.loads(text)
            for entry in document["keys"]:
                if not isinstance(entry, dict):
                    continue
                try:
                    key = jwt.PyJWK(entry)
                except jwt.PyJWTError:
                    continue  # with an algorithm that is not supported
                found += 1
                declared = entry.get("alg")
                if key.public_key_use in (None, "sig"):
                    algorithm = declared if isinstance(declared, str) else None
                    keys.append(_SetKey(key.key, key.key_type, key.key_id, algorithm))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise ValueError(f"not a JWK Set: {error}") from None
        if not found:
            raise ValueError("not a JWK Set with a usable key")
        return cls(keys)
