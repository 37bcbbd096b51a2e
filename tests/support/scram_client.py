"""The client's side of SCRAM-SHA-256, written from RFC 5802 and not from the broker's code."""

import base64
import hashlib
import hmac


class ScramClient:
    """Says ``first()``, answers the server's message by ``final()``, and checks the end by ``verify()``."""

    def __init__(self, username: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL", gs2: str = "n,,") -> None:
        self.password = password
        self.nonce = nonce
        self.gs2 = gs2
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        return (self.gs2 + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, iterations)
        client_key = _hmac(salted, b"Client Key")
        binding = base64.b64encode(self.gs2.encode()).decode()
        without_proof = f"c={binding},r={fields['r']}"
        message = ",".join((self._bare, server_first.decode(), without_proof)).encode()
        signature = _hmac(hashlib.sha256(client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = b"v=" + base64.b64encode(_hmac(_hmac(salted, b"Server Key"), message))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> bool:
        """Whether the server knows the password's keys too."""
        return server_final == self._expected


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
