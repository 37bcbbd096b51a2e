"""Known secrets: what other brokers ship to everybody opens nothing here."""

import base64
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from taipan.broker.config import BrokerSettings
from taipan.management.configuration.config import load
from taipan.management.configuration.known_secrets import is_known_password, whose_certificate
from taipan.management.node import main
from tests.support.certificates import DAY, Certificates

PUBLISHED: Final = {
    "EMQX": (
        "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAs15ZPekT5AV+JEnMqacAxStajcraP9Obf5eeXpYvPrv/Stxisltsq9Le"
        "7JE/+y1fJcQrD0J6nJDVWIFUWRYCjLypAQ5YUOxlz/lTOFdSdvotevepOQUSM2aGP7u7O/+VsHGVQbU2VjNJ44Hr9FPzMf+WE54q"
        "EudZg9d1cqxrUUvqKPhfwN4M7WRjt+8AaYGf9MeHW5OkOLMzhiZ4j7vh2ZrIDnFe8BG17mHhW7lIjN7uILTns36/KZOgyTYmCT5l"
        "kWnJeuer7KjpFoPcA1yWtzgVt5RBnlrmzlLGCz1rRjdYwb7tzlWdVdxuMFHP9qrY206dBCOKQopADwYXTzQFCQIDAQAB"
    ),
    "EMQX, its authority": (
        "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAzcgVLex1EZ9ON64EX8v+wcSjzOZpiEOsAOuSXOEN3wb8FKUxCdsGrsJY"
        "B7a5VM/Jot25Mod2juS3OBMg6r85k2TWjdxUoUs+HiUB/pP/ARaaW6VntpAEokpij/przWMPgJnBF3UrMjtbLayH9hGmpQrI5c2v"
        "mHQ2reRZnSFbY+2b8SXZ+3lZZgz9+BaQYWdQWfaUWEHZuDaNiViVO0OT8DRjCuiDp3yYDj3iLWbTA/gDL6Tf5XuHuEwcOQUrd+h0"
        "hyIphO8DtsrsHZ14j4AWYLk1CPA6pq1HIUvEl2rANx2lVUNv+nt64K/Mr3RnVQd9s8bK+TXQKGHd2Lv/PALYuwIDAQAB"
    ),
    "Mosquitto": (
        "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAjH+AI79EPOwfTUl+498gr9nieZN18GgchhPfIZHKEl56PDtk3I3ojofg"
        "9OTeuPVupH5r97DdEMFZ4sA3po1/gjBnRhUIUkzg0bBCuQ9sCAiTsIT6k/d6Kg06C6KaudOEbof9IEmzVMXOdEyaCojVxhb3PcHF"
        "gwX6bPn+rfG9BYC5cjH/QwvVwiG4tizTkYcul+Se1bnQsGACor83nr/rbNJfg3k6NTR4ezikxFLF98Hoxyg12j0a9lef1RBRi2NT"
        "qsMEQjOAwWN3FYrAmoJ11VjZA3H9mcJ31/8GS2/9pWaUuXqkh2VeFZcyLDIrXFqNiPFd6QTWi6tM+xSc+wRmiQIDAQAB"
    ),
}
"""Public keys of samples, whose private keys, or those of whom they have signed, stand in the sources."""


def sample(directory: Path, name: str, file: str) -> str:
    """A certificate of such a key, made here."""
    key = serialization.load_der_public_key(base64.b64decode(PUBLISHED[name]))
    assert isinstance(key, rsa.RSAPublicKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Server")])
    now = Certificates(directory).now
    builder = x509.CertificateBuilder(subject, subject, key, x509.random_serial_number(), now - DAY, now + DAY)
    made = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    path = directory / file
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return str(path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_key_is_recognised_whoever_signed_it(name: str, tmp_path: Path) -> None:
    found = sample(tmp_path, name, "cert.pem")
    own, _ = Certificates(tmp_path).issue("localhost")
    assert whose_certificate([own]) is None
    assert whose_certificate([str(tmp_path / "none.pem"), own, found]) == (found, name.partition(",")[0])


def test_what_is_no_certificate_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no PEM")
    assert whose_certificate([str(tmp_path / "x.pem"), str(tmp_path)]) is None


@pytest.mark.parametrize("written", ["scrypt$1$c2FsdA==$aGFzaA==", "$2b$04$x", "pbkdf2$sha256$1$c2FsdA==$aGFzaA=="])
def test_hashes_of_others_are_not_looked_into(written: str) -> None:
    assert not is_known_password(written)


def migrated(source: str, path: Path, into: Path, capsys: pytest.CaptureFixture[str]) -> tuple[BrokerSettings, str]:
    assert main(["migrate", source, str(path), "--into", str(into)]) == 0, capsys.readouterr()
    return load(str(into / "taipan.toml"), environ={}).broker, capsys.readouterr().out


@pytest.mark.parametrize("which", ["certificate", "authority", "authority that is not asked"])
@pytest.mark.parametrize("source", ["emqx", "mosquitto"])
def test_a_migration_leaves_out_listeners_of_published_keys(
    source: str, which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    certificates = Certificates(etc)
    cert, key = certificates.issue("localhost")
    ca = certificates.ca
    if which == "certificate":
        cert = sample(etc, "EMQX" if source == "emqx" else "Mosquitto", "sample.pem")
    else:
        ca = sample(etc, "EMQX, its authority", "sample-ca.pem")
    verify = which != "authority that is not asked"
    if source == "emqx":
        lines = ["listener.tcp.external = 127.0.0.1:1883", "listener.ssl.external = 127.0.0.1:8883"]
        lines += [f"listener.ssl.external.{name} = {file}" for name, file in (("certfile", cert), ("keyfile", key))]
        if verify:
            lines += [f"listener.ssl.external.cacertfile = {ca}", "listener.ssl.external.verify = verify_peer"]
        path = etc
        (etc / "emqx.conf").write_text("\n".join(lines) + "\n")
    else:
        lines = ["listener 1883 127.0.0.1", "listener 8883 127.0.0.1", f"certfile {cert}", f"keyfile {key}"]
        if verify:
            lines += [f"cafile {ca}", "require_certificate true"]
        path = etc / "mosquitto.conf"
        path.write_text("\n".join(lines) + "\n")
    found, told = migrated(source, path, tmp_path / "into", capsys)
    kinds = [each.type for each in found.listeners]
    if verify:
        assert kinds == ["tcp"] and "publishes the key of this certificate" in told
    else:
        assert kinds == ["tcp", "ssl"] and "publishes the key" not in told


def test_a_user_of_etc_whose_password_everybody_knows_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    etc = tmp_path / "etc"
    (etc / "plugins").mkdir(parents=True)
    (etc / "emqx.conf").write_text("listener.tcp.external = 127.0.0.1:1883\n")
    lines = ["auth.user.1.username = admin", "auth.user.1.password = public"]
    (etc / "plugins" / "emqx_auth_mnesia.conf").write_text("\n".join(lines) + "\n")
    _, told = migrated("emqx", etc, tmp_path / "into", capsys)
    assert "left out: user admin: its password is EMQX's published default" in told
    assert not (tmp_path / "into" / "data" / "import.plan").exists()
