"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the Server's side, over AUTH packets.

    client                                     server
      n,,n=user,r=abc                  --->              client-first
                                       <---   r=abcXYZ,s=salt,i=4096
      c=biws,r=abcXYZ,p=proof          --->              client-final
                                       <---   v=signature        (with CONNACK, or AUTH 0x00)

No channel binding is offered. A failure sends ``e=...``, which never shows whether the user exists."""

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..mqtt import reason_codes
from ..session.client_info import ClientInfo
from .enhanced import CONTINUE, FAILURE, SUCCESS, AuthStep
from .saslprep import saslprep

if TYPE_CHECKING:
    from .users import User

NAME: Final = "SCRAM-SHA-256"
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 10_000_000
MAX_MESSAGE: Final = 8192  # larger than any honest message; limits what is decoded and signed
_DIGEST: Final = 32

_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,1024}")
_EXTENSION: Final = re.compile(r"[A-Za-z]=[^,\0]+")
_SASLNAME_ESCAPE: Final = re.compile(r"=(?:2C|3D)")


@dataclass(slots=True, repr=False)
class ScramVerifier:
    """``SCRAM-SHA-256$iterations:salt$stored_key:server_key``, in base64: the ``scram`` of a user (PostgreSQL's form).

    It verifies a password but is not one: an attacker who steals it cannot log in with it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> "ScramVerifier":
        """Read the stored form. Raises ``ValueError`` with the problem."""
        found = re.fullmatch(r"SCRAM-SHA-256\$(\d{1,9}):([^$:]+)\$([^$:]+):([^$:]+)", text, re.ASCII)
        if found is None:
            raise ValueError(
                "expected SCRAM-SHA-256$iterations:salt$stored_key:server_key, as printed by taipan hash-password"
            )
        iterations = int(found[1])
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ValueError(f"SCRAM iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        salt, stored_key, server_key = (_base64(found[index]) for index in (2, 3, 4))
        if salt is None or stored_key is None or server_key is None:
            raise ValueError("not base64")
        if len(salt) < 8 or len(stored_key) != _DIGEST or len(server_key) != _DIGEST:
            raise ValueError("SCRAM requires a salt of at least 8 bytes and two keys of 32 bytes")
        return cls(iterations, salt, stored_key, server_key)

    @classmethod
    def create(cls, password: str, iterations: int = MIN_ITERATIONS) -> "ScramVerifier":
        """Derive a new password's keys with a random salt. Raises ``ValueError`` for a password that SASLprep
        prohibits."""
        salt = os.urandom(16)
        client_key, server_key = _keys(saslprep(password, stored=True), salt, iterations)
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), server_key)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode("ascii") for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{NAME}${self.iterations}:{salt}${stored}:{server}"


class ScramLogin:
    """The client's side, for a test login. Raises ``ValueError`` for input that SASLprep prohibits."""

    __slots__ = ("_bare", "_password", "first")

    def __init__(self, username: str, password: str) -> None:
        """``first``: the message with which the exchange begins."""
        name = saslprep(username).replace("=", "=3D").replace(",", "=2C")
        self._password = saslprep(password)
        self._bare = f"n={name},r={_random_nonce()}"
        self.first = f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the answer to the server's message. Takes as long as a hash of a password."""
        text = server_first.decode("ascii")
        nonce, salt, iterations = (each[2:] for each in text.split(","))
        client_key, _ = _keys(self._password, base64.b64decode(salt), int(iterations))
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode('ascii')}".encode("ascii")


class FakeVerifiers:
    """Parameters for unknown users, so that they look like known ones.

    The same name has the same salt each time, even after a restart with the same users: the key comes from a secret of
    the first of them. Length of salt and iterations are those of one of the known users."""

    __slots__ = ("_key", "_models")

    def __init__(self, known: Sequence[ScramVerifier]) -> None:
        self._key = hmac.digest(known[0].server_key, b"unknown users", "sha256") if known else os.urandom(_DIGEST)
        self._models = [(verifier.iterations, len(verifier.salt)) for verifier in known] or [(MIN_ITERATIONS, 16)]

    def get(self, username: str) -> ScramVerifier:
        name = username.encode("utf-8", "surrogatepass")
        seed = hmac.digest(self._key, name, "sha512")
        iterations, length = self._models[int.from_bytes(seed[:8], "big") % len(self._models)]
        salt = hashlib.shake_256(seed).digest(length)
        # Random keys: no proof fits.
        return ScramVerifier(iterations, salt, os.urandom(_DIGEST), os.urandom(_DIGEST))


class ScramSha256:
    """The Authentication Method ``SCRAM-SHA-256``, an ``EnhancedMethod``.

    ``lookup`` finds a user by the prepared name. ``nonce`` returns the Server's part of the nonce."""

    __slots__ = ("fakes", "lookup", "name", "nonce")

    def __init__(
        self,
        lookup: "Callable[[ClientInfo, str], User | None]",
        fakes: FakeVerifiers,
        nonce: Callable[[], str] | None = None,
    ) -> None:
        self.name = NAME
        self.lookup = lookup
        self.fakes = fakes
        self.nonce = nonce or _random_nonce

    def start(self, client: ClientInfo) -> "ScramExchange":
        return ScramExchange(self, client)


class ScramExchange:
    """One exchange: waits for client-first, then for client-final; then it is complete, successful or not."""

    __slots__ = (
        "_client",
        "_first_bare",
        "_gs2_header",
        "_method",
        "_next",
        "_nonce",
        "_server_first",
        "_user",
        "_verifier",
        "username",
    )

    def __init__(self, method: ScramSha256, client: ClientInfo) -> None:
        self._method = method
        self._client = client
        self._next = self._client_first
        self._gs2_header = ""
        self._first_bare = ""
        self._server_first = ""
        self._nonce = ""
        self.username = ""
        self._user: User | None = None
        self._verifier: ScramVerifier | None = None

    def step(self, data: bytes | None) -> AuthStep:
        if not data and self._next == self._client_first:
            # RFC 5802 section 5: the client sends the first message; a CONNECT without data is answered by a request
            # for it.
            return AuthStep(CONTINUE) if data is None else self._fail("other-error", "empty client-first message")
        if data is None:
            return self._fail("other-error", "AUTH without Authentication Data")
        if len(data) > MAX_MESSAGE:
            return self._fail("other-error", f"message longer than {MAX_MESSAGE} bytes")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return self._fail("invalid-encoding", "message is not UTF-8")
        return self._next(text)

    def _client_first(self, text: str) -> AuthStep:
        flag, comma, rest = text.partition(",")
        authzid, comma2, bare = rest.partition(",")
        if not comma or not comma2:
            return self._fail("other-error", "no GS2 header")
        if flag.startswith("p="):
            return self._fail("channel-binding-not-supported", "asks for channel binding")
        # "y": the client supports channel binding and believes that the Server does not. It is right: no -PLUS method
        # is offered.
        if flag not in ("n", "y"):
            return self._fail("other-error", "GS2 flag is not n, y or p")
        if authzid and not authzid.startswith("a="):
            return self._fail("other-error", "GS2 header contains something other than an authzid")
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            return self._fail("extensions-not-supported", "mandatory extension")
        if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
            return self._fail("other-error", "client-first wants n= and r=")
        if not all(_EXTENSION.fullmatch(attribute) for attribute in attributes[2:]):
            return self._fail("other-error", "unreadable extension")
        nonce = attributes[1][2:]
        if not _NONCE.fullmatch(nonce):
            return self._fail("other-error", "nonce is empty, too long or not printable")
        username = _saslname(attributes[0][2:])
        if username is None:
            return self._fail("invalid-username-encoding", "username is badly escaped or not allowed by SASLprep")
        if authzid and _saslname(authzid[2:]) != username:
            return self._fail("other-error", "authzid is not the username")
        # A CONNECT with a User Name, or a re-authentication, cannot change to another user.
        if self._client.username and self._client.username != username:
            return self._fail("other-error", "SCRAM username is not the client's username", "access.users")
        self.username = username
        self._user = self._method.lookup(self._client, username)
        verifier = self._user.scram if self._user is not None else None
        if verifier is None:
            self._user = None
            verifier = self._method.fakes.get(username)
        self._verifier = verifier
        self._gs2_header = f"{flag},{authzid},"
        self._first_bare = bare
        self._nonce = nonce + self._method.nonce()
        salt = base64.b64encode(verifier.salt).decode("ascii")
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._next = self._client_final
        return AuthStep(CONTINUE, self._server_first.encode("ascii"))

    def _client_final(self, text: str) -> AuthStep:
        verifier = self._verifier
        assert verifier is not None
        without_proof, comma, proof_text = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if not comma or "," in proof_text or len(attributes) < 2:
            return self._fail("other-error", "client-final must consist of c=, r= and finally p=")
        if not attributes[0].startswith("c=") or not attributes[1].startswith("r="):
            return self._fail("other-error", "client-final must consist of c=, r= and finally p=")
        if not all(_EXTENSION.fullmatch(attribute) for attribute in attributes[2:]):
            return self._fail("other-error", "unreadable extension")
        if _base64(attributes[0][2:]) != self._gs2_header.encode("utf-8"):
            return self._fail("channel-bindings-dont-match", "c= is not the GS2 header sent before")
        if not hmac.compare_digest(attributes[1][2:].encode("utf-8"), self._nonce.encode("ascii")):
            return self._fail("other-error", "wrong nonce")
        proof = _base64(proof_text)
        if proof is None or len(proof) != _DIGEST:
            return self._fail("invalid-proof", "proof is not 32 bytes in base64")
        message = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(verifier.stored_key, message, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        proved = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
        if not proved or self._user is None:
            why = "wrong password" if self._user is not None else "unknown user"
            return self._fail("invalid-proof", why, "access.users", wrong=True)
        self._next = self._over
        server_signature = base64.b64encode(hmac.digest(verifier.server_key, message, "sha256"))
        user = self._user
        data = b"v=" + server_signature
        return AuthStep(SUCCESS, data, self.username, user.is_superuser, proved_by=user.source)

    def _over(self, text: str) -> AuthStep:
        return self._fail("other-error", "the exchange has ended")

    def _fail(self, error: str, detail: str, setting: str = "-", wrong: bool = False) -> AuthStep:
        self._next = self._over
        data = b"e=" + error.encode("ascii")
        # 0x87 for all failures: it is valid in CONNACK and DISCONNECT [MQTT-4.12.0-4] [MQTT-4.12.1-2].
        code = reason_codes.NOT_AUTHORIZED
        return AuthStep(FAILURE, data, reason_code=code, detail=detail, setting=setting, wrong=wrong)


def _keys(password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return ClientKey and ServerKey of a prepared password."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode("utf-8"), salt, iterations)
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def _saslname(escaped: str) -> str | None:
    """Return the prepared username, ``None`` if its escapes or characters are invalid or it is empty."""
    if "=" in _SASLNAME_ESCAPE.sub("", escaped):
        return None
    try:
        return saslprep(escaped.replace("=2C", ",").replace("=3D", "=")) or None
    except ValueError:
        return None


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None


def _random_nonce() -> str:
    return base64.b64encode(os.urandom(18)).decode("ascii")
