"""A private certification authority and its server certificate, for trying TLS and for private networks."""

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 825
"""Apple's devices do not accept server certificates with a longer validity."""
_COMMON_NAME: Final = 64


class PemFiles(NamedTuple):
    """The contents of four files."""

    authority: bytes
    authority_key: bytes
    server: bytes
    server_key: bytes


def make(names: Sequence[str], now: datetime.datetime) -> PemFiles:
    """``names``: hostnames and addresses of the server. Raises ValueError if one of them is neither."""
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = _name(f"Taipan, private authority of {names[0]}")
    authority = _sign(authority_name, authority_name, authority_key, authority_key, now, AUTHORITY_DAYS, ())
    server = _sign(_name(names[0]), authority_name, server_key, authority_key, now, SERVER_DAYS, names)
    return PemFiles(_pem(authority), _private(authority_key), _pem(server), _private(server_key))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME])])


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: int,
    names: Sequence[str],
) -> x509.Certificate:
    """Sign a certificate; without ``names`` it is that of an authority."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of clients may differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None if names else 0), critical=True)
        .add_extension(_usage(not names), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(each) for each in names]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signing, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=authority, crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode("ascii"))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
