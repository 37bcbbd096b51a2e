"""Known secrets: passwords, secrets and keys that other brokers publish as defaults or samples. They protect nothing,
so they are never accepted."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from taipan.broker.access.emqx_hash import EmqxHash
from taipan.broker.access.foreign_hashes import BcryptHash, PackageMissing, Pbkdf2Hash, Sha512Hash, parse_hash
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.loop.regular_file import MAX_CREDENTIALS, read_regular

if TYPE_CHECKING:
    from cryptography import x509

SECRETS: Final = ("public", "emqxsecret")
"""Defaults of EMQX: the secrets of its application, of its dashboard user ``admin`` and of its JSON Web Tokens."""
_HASHES: Final = frozenset(hashlib.sha256(each.encode()).digest() for each in SECRETS)

_KEYS: Final = {
    "EMQX": (
        "cfdb1efe28e30f2c9c050454c0980b05776798a885040dec7945a1b80b952fda",  # of 2020: server
        "8f7c4873021d221297d475f13b3361bfdc19d91c256f8de4a2ed5308bcde74e9",  # client
        "8328da4b78fade21d5b12430e661b1a8558b289df1f6c89fca8604329cc85aac",  # authority: anyone has its client's key
        "5f17bfb9b78388ed06566dd68bdc8bf8b488edb6cc1a057d684d05414462a946",  # of 2019: server
        "995788d6c7346d05f66e51c907c0c847a16db25b30df019391ca120972ee32c5",  # of 2017: client
        "7948a61996def25a05022fddbe9136982e3882d6efb045c69b3c46958e320e42",  # authority
        "4d19b394e5f177eea96306de212aee1e4da88593c394c135999f687ca4ad03ac",  # of 2016: server
        "8b678fa33b2cab631451c2e0f84a51a94bd3f5189fe8bab368285407cace5e69",  # authority
        "912c548620a21d9ecc7bc87a3addb9550d30214dd9ed947b3a8e2449e203eecf",  # of 2026: server
        "3a55cd763c88512f4654eff130516a1ab3872c846b58b7df60000abbab83b1df",  # client
        "500c5bac49dac8845a7240cd48aae8117989d29db6d118fb3ae658f6a15bd361",  # authority
    ),
    "Mosquitto": (
        "4133aa5bd0e6c32030d725d7b8c9eb3ca2123cc987961fd3de7ca65d01ab730a",  # of 2013: server
        "b154b9dfcef8b59c2a92d0d749347627b56ebddc6a0400040ace015af570fa5c",  # signing authority
        "85bd988734edced53945fd46795a5d20446a6d361292283deaf99e28ba4f2300",  # root
        "3cd547869948edef9fca9d9fd36715efeb6e03efd68e5b75b51383676898d03e",  # of 2022: server
        "d9ab5770ffb6c48612928f29a2c1fdd39ffe97ab63133d200c29aee42aa4634f",  # signing authority
        "70674a40d3baa30769094ac450a180e7e9a53dbf4535826827e0c4a853aeb5fe",  # root
        "cd067a321207586a3ea6b930ece7f8fecfcc68c8f0c289980a6725229675681c",  # of 2025: server
        "fd25a65567f1fcadcfb4fd43f589f8405bb10cf07dbea8377d9db8937a13cec0",  # signing authority
        "6b0b6c704adf5f76b98b7549abec5423c3a9b0eec898ec1622f9e8b4a2ab7322",  # root
    ),
}
"""SHA-256 of public keys (SubjectPublicKeyInfo, DER) of sample certificates, by their publisher."""
_OWNERS: Final = {bytes.fromhex(each): owner for owner, digests in _KEYS.items() for each in digests}


def is_known(secret: str) -> bool:
    return secret in SECRETS


def is_known_hash(digest: bytes) -> bool:
    """``digest``: SHA-256 of the secret."""
    return digest in _HASHES


def is_known_password(written: str) -> bool:
    """Return whether a stored password with a fast hash is a known one. ``SlowHashes`` checks slow hashes."""
    if written.startswith("$6$"):
        salted = Sha512Hash.parse(written)
        return any(hashlib.sha512(secret.encode() + salted.salt).digest() == salted.digest for secret in SECRETS)
    if not written.startswith("emqx$"):
        return False
    found = EmqxHash.parse(written)
    digest = bytes.fromhex(found.digest)
    return any(_digest(found, secret) == digest for secret in SECRETS)


class SlowHashes:
    """Checks slow hashes against the known secrets, until this has taken ``budget`` seconds of a thread.

    ``not_tried`` counts the slow hashes after that."""

    def __init__(self, budget: float = 2.0) -> None:
        self._left = budget
        self.not_tried = 0

    def wants(self, written: str) -> bool:
        """Return whether ``is_known`` should be called for this hash. Its cost is estimated, so that the answer is the
        same on every machine."""
        seconds = _seconds(written)
        if not seconds:
            return False
        if self._left <= 0:
            self.not_tried += 1
            return False
        self._left -= seconds * len(SECRETS)
        return True

    @staticmethod
    def is_known(written: str) -> bool:
        """Return whether this is the hash of a known secret. Takes long, and releases the GIL."""
        try:
            found = parse_hash(written)
            return any(found.verify(secret.encode()) for secret in SECRETS)
        except (PackageMissing, ValueError):
            return False


def _seconds(written: str) -> float:
    """Return the approximate time of one verification of a slow hash; 0 for a fast one."""
    try:
        found = parse_hash(written)
    except ValueError:
        return 0.0
    if isinstance(found, Pbkdf2Hash):
        return found.work / 2_000_000
    if isinstance(found, BcryptHash):
        return 2.0**found.cost / 2**14
    if isinstance(found, ScryptHash):
        return found.n * found.r * found.p / 2**21
    return 0.0


def _digest(found: EmqxHash, secret: str) -> bytes:
    return hashlib.new(found.algorithm, found.salt + secret.encode(), usedforsecurity=False).digest()


def whose_certificate(files: Iterable[str]) -> tuple[str, str] | None:
    """Return the first of some PEM files with a certificate whose key is published, and the publisher. Files that
    cannot be read are ignored."""
    for file in files:
        try:
            chain = _read(read_regular(file, MAX_CREDENTIALS))
        except (OSError, ValueError):
            continue
        for each in chain:
            owner = _OWNERS.get(_fingerprint(each))
            if owner is not None:
                return file, owner
    return None


def _read(text: bytes) -> "list[x509.Certificate]":
    from cryptography import x509  # imported here: a node without certificates does not need it

    return x509.load_pem_x509_certificates(text)


def _fingerprint(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).digest()
