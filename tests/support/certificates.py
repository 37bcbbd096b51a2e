"""A certification authority of the tests."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from taipan.broker.config import ListenerTlsSettings

DAY = datetime.timedelta(days=1)
CA_USAGE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Certificates:
    """A small certification authority that writes PEM files into ``directory``.

    Its certificates hold what a strict verification asks for (RFC 5280, 4.2.1), as Python 3.13 does it by default.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = datetime.datetime.now(datetime.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
        self._certificates: dict[str, x509.Certificate] = {}
        builder = self._builder(self._name, self._key.public_key(), self.now - DAY, self.now + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        ca = builder.add_extension(CA_USAGE, critical=True).sign(self._key, hashes.SHA256())
        self.ca = self._write("ca.pem", ca.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime.datetime, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        builder = builder.add_extension(issuer, critical=False)
        return builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)

    def _write(self, name: str, data: bytes) -> str:
        path = self.directory / name
        path.write_bytes(data)
        return str(path)

    def issue(
        self,
        name: str,
        *,
        expired: bool = False,
        password: str = "",
        subject: x509.Name | None = None,
        file: str = "",
        days: float = 1,
    ) -> tuple[str, str]:
        """A certificate for the server or client ``name``, valid for ``days``, and its key; returns their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        if subject is None:
            subject = x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
                    x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "Plant"),
                    x509.NameAttribute(NameOID.COMMON_NAME, name),
                ]
            )
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if name == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        end = self.now - DAY / 2 if expired else self.now + days * DAY
        builder = self._builder(subject, key.public_key(), self.now - DAY, end)
        certificate = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
            self._key, hashes.SHA256()
        )
        self._certificates[name] = certificate
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        file = file or name.replace("*", "star")
        return (
            self._write(f"{file}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{file}.key", pem),
        )

    def revoke(self, *names: str) -> str:
        """A CRL that revokes the certificates last issued for ``names``; returns its path."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(self.now - DAY).next_update(self.now + DAY)
        for name in names:
            revoked = x509.RevokedCertificateBuilder().serial_number(self._certificates[name].serial_number)
            builder = builder.add_revoked_certificate(revoked.revocation_date(self.now - DAY / 2).build())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False).add_extension(x509.CRLNumber(1), critical=False)
        crl = builder.sign(self._key, hashes.SHA256())
        return self._write("crl.pem", crl.public_bytes(serialization.Encoding.PEM))

    def settings(self, **keys: object) -> ListenerTlsSettings:
        """Settings with the server certificate of ``localhost``."""
        files = {"certfile": str(self.directory / "localhost.pem"), "keyfile": str(self.directory / "localhost.key")}
        return ListenerTlsSettings(**{**files, **keys})  # type: ignore[arg-type]
