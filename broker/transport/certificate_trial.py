"""Whether a listener would accept the certificate of a client, tested without the client and its key.

In TLS 1.2 a client sends its certificates before it signs anything, and the server verifies them immediately. So the
listener's own context runs a handshake in memory up to that message: OpenSSL decides as for real clients, by the
authorities, dates, revocation, purposes and security level of the listener. Whether the client has the key would be the
next step, and is not tested."""

import datetime
import ssl
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from .tls import ServerContext, names_in
from .tls_resumption import Certificate

MAX_PEM: Final = 65_536
"""In characters. A handshake allows 100 KiB of certificates, and no client needs that many."""

_HANDSHAKE: Final = b"\x16\x03\x03"
_CERTIFICATE: Final = b"\x0b"
_MAX_FRAGMENT: Final = 16_384


class NotTried(Exception):
    """The handshake ended before a certificate was checked; the message says why."""


def read_certificates(pem: str) -> list[x509.Certificate]:
    """Return the certificate of a client, and those that it sends with it, in the given order. Raises ``ValueError``
    with the reason in words."""
    if len(pem) > MAX_PEM:
        raise ValueError(f"longer than {MAX_PEM} characters")
    if "PRIVATE KEY-----" in pem:
        raise ValueError("contains a private key; give only the certificate")
    try:
        return x509.load_pem_x509_certificates(pem.encode("utf-8", "surrogatepass"))
    except ValueError:
        raise ValueError("contains no readable PEM certificate (-----BEGIN CERTIFICATE-----)") from None


def judge(context: ServerContext, chain: list[x509.Certificate]) -> ssl.SSLError | None:
    """Return why the listener with this context refuses a client with these certificates; ``None``: it accepts them. An
    empty ``chain``: a client without a certificate. Raises NotTried."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = (context.for_trials or context).wrap_bio(incoming, outgoing, server_side=True)
    incoming.write(_client_hello())
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        raise NotTried(error.reason or str(error)) from None
    incoming.write(_certificate_message([each.public_bytes(serialization.Encoding.DER) for each in chain]))
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError as error:
        return error
    raise NotTried("the handshake ended early")


def names_of(certificate: x509.Certificate) -> tuple[str | None, str]:
    """Return common name and subject as ``peer_identity`` does for a client with this certificate.

    ``ssl`` returns the names of certificates only after a handshake, or for authorities: so this uses a copy that is
    one. Raises ``ValueError`` for a subject that it cannot read."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(certificate.subject).issuer_name(certificate.subject)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    copy = builder.sign(key, hashes.SHA256())
    context.load_verify_locations(cadata=copy.public_bytes(serialization.Encoding.DER))
    (told,) = cast(list[Certificate], context.get_ca_certs())
    return names_in(told["subject"])


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL")
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def _certificate_message(certificates: list[bytes]) -> bytes:
    """Return the handshake message Certificate (RFC 5246, 7.4.6) in as many records as necessary."""
    listed = b"".join(len(each).to_bytes(3, "big") + each for each in certificates)
    body = len(listed).to_bytes(3, "big") + listed
    message = _CERTIFICATE + len(body).to_bytes(3, "big") + body
    fragments = (message[start : start + _MAX_FRAGMENT] for start in range(0, len(message), _MAX_FRAGMENT))
    return b"".join(_HANDSHAKE + len(each).to_bytes(2, "big") + each for each in fragments)
