"""Passwords in the formats of the attribute ``userPassword``: ``{SSHA}...`` and others (RFC 2307), or the whole value
in Base64."""

import base64
import binascii
import hashlib
import re
from typing import Final

from ..foreign_hashes import BcryptHash
from ..query_hash import HashFormat, QueryHash

_SCHEME: Final = re.compile(rb"\{([A-Za-z0-9-]{1,32})\}(.*)", re.DOTALL)
_DIGESTS: Final = {
    "md5": ("md5", "md5"), "smd5": ("md5", "md5,salt"), "sha": ("sha1", "sha"), "ssha": ("sha1", "sha,salt"),
    "sha256": ("sha256", "sha256"), "ssha256": ("sha256", "sha256,salt"),
    "sha512": ("sha512", "sha512"), "ssha512": ("sha512", "sha512,salt"),
}  # fmt: skip
"""The digest of a scheme, and the format of a row with the same password. A salt follows the digest."""
_FORMATS: Final = {scheme: HashFormat(form) for scheme, (_, form) in _DIGESTS.items()}


def hash_in_directory(stored: bytes, owner: str) -> QueryHash | None:
    """Return the verifier of a password; None for a plain-text password and for a scheme that is not supported."""
    found = _SCHEME.fullmatch(stored) or _SCHEME.fullmatch(_decoded(stored))
    if found is None:
        return None
    scheme, text = found[1].decode().lower(), found[2]
    if scheme == "crypt":
        if not text.startswith(BcryptHash.PREFIX.encode()) or not BcryptHash.installed():
            return None
        return QueryHash(HashFormat("bcrypt"), text, b"", owner)
    if scheme not in _DIGESTS:
        return None
    data = _decoded(text)
    size = hashlib.new(_DIGESTS[scheme][0], usedforsecurity=False).digest_size
    form = _FORMATS[scheme]
    if len(data) < size or form.salted != (len(data) > size):
        return None
    return QueryHash(form, data[:size].hex().encode(), data[size:], owner)


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
