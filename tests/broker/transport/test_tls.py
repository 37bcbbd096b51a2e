"""TLS listeners over real sockets, their client certificates, and what is said about files that do not fit."""

import asyncio
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from taipan.broker.config import TlsSettings, ZoneSettings
from taipan.broker.transport import pending_connection
from taipan.broker.transport.tls import TlsError, build_context, peer_identity
from tests.broker.transport.echo import closed_by_peer, dial, listener_settings, listening, on_every_transport
from tests.support.certificates import Certificates


def client_context(certificates: Certificates, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def echoes(port: int, context: ssl.SSLContext, name: str = "localhost") -> Any:
    """Say hello over TLS; returns the server's certificate."""
    async with dial(port, ssl=context, server_hostname=name) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        return writer.get_extra_info("peercert")


async def is_refused(port: int, context: ssl.SSLContext) -> None:
    """With TLS 1.3 a client hears of the refusal of its certificate only when it reads."""
    try:
        async with dial(port, ssl=context, server_hostname="localhost") as (reader, writer):
            writer.write(b"hello")
            assert await closed_by_peer(reader) == b""
    except (ssl.SSLError, ConnectionError):
        pass


@on_every_transport
async def test_bytes_both_ways(certificates: Certificates) -> None:
    async with listening(type="ssl", tls=certificates.settings()) as listener:
        await echoes(listener.port, client_context(certificates))
        assert listener.protocol == "mqtt:ssl"
        assert listener.echoes[0].tls_version == "TLSv1.3"
        assert listener.echoes[0].identity == (None, None)
        await listener.until(lambda: listener.current_connections == 0)


@on_every_transport
async def test_close_sends_what_was_written(certificates: Certificates) -> None:
    async with (
        listening(type="ssl", tls=certificates.settings()) as listener,
        dial(listener.port, ssl=client_context(certificates), server_hostname="localhost") as (reader, writer),
    ):
        writer.write(b"quit")
        assert await closed_by_peer(reader) == b"bye"
        assert await listener.echoes[0].lost is None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_every_transport
async def test_client_certificate_required(certificates: Certificates, version: ssl.TLSVersion) -> None:
    pump = certificates.issue("pump-7")
    tls = certificates.settings(verify="required", cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        context = client_context(certificates, pump)
        context.maximum_version = version
        await echoes(listener.port, context)
        assert listener.echoes[0].identity == ("pump-7", "CN=pump-7,OU=Plant,O=Example\\, Inc.")
        without = client_context(certificates)
        without.maximum_version = version
        await is_refused(listener.port, without)
        await listener.until(lambda: listener.refused == {"tls_certificate": 1})
        assert len(listener.echoes) == 1


@on_every_transport
async def test_client_certificate_optional(certificates: Certificates) -> None:
    pump = certificates.issue("pump-7")
    tls = certificates.settings(verify="optional", cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        await echoes(listener.port, client_context(certificates))
        await echoes(listener.port, client_context(certificates, pump))
        names = [echo.identity[0] for echo in listener.echoes]
        assert names == [None, "pump-7"]


@pytest.mark.parametrize("verify", ["optional", "required"])
@on_every_transport
async def test_expired_revoked_and_foreign_certificates_are_refused(
    certificates: Certificates, tmp_path: Path, verify: str
) -> None:
    pump = certificates.issue("pump-7")
    stolen = certificates.issue("stolen")
    old = certificates.issue("old", expired=True)
    (tmp_path / "other").mkdir()
    foreign = Certificates(tmp_path / "other").issue("pump-7")
    tls = certificates.settings(verify=verify, cafile=certificates.ca, crlfile=certificates.revoke("stolen"))
    async with listening(type="ssl", tls=tls) as listener:
        for number, bad in enumerate([stolen, old, foreign], start=1):
            await is_refused(listener.port, client_context(certificates, bad))
            await listener.until(lambda number=number: listener.refused == {"tls_certificate": number})
        assert listener.echoes == []
        await echoes(listener.port, client_context(certificates, pump))


@on_every_transport
async def test_certificate_by_server_name(certificates: Certificates) -> None:
    other = certificates.issue("mqtt.example")
    wild = certificates.issue("*.plants.example")
    names = {
        "MQTT.example": {"certfile": other[0], "keyfile": other[1]},
        "*.plants.example": {"certfile": wild[0], "keyfile": wild[1]},
    }
    pump = certificates.issue("pump-7")
    tls = certificates.settings(server_names=names, verify="required", cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        context = client_context(certificates, pump)
        for asked, got in [
            ("mqtt.example", "mqtt.example"),
            ("a.plants.example", "*.plants.example"),
            ("localhost", "localhost"),
        ]:
            certificate = await echoes(listener.port, context, asked)
            assert ("DNS", got) in certificate["subjectAltName"]
        context.check_hostname = False
        for asked in ("plants.example", "b.a.plants.example", "unknown"):
            assert ("DNS", "localhost") in (await echoes(listener.port, context, asked))["subjectAltName"]
        assert listener.echoes[0].identity[0] == "pump-7"
        await is_refused(listener.port, client_context(certificates))
        await listener.until(lambda: listener.refused == {"tls_certificate": 1})


@on_every_transport
async def test_versions_and_ciphers(certificates: Certificates) -> None:
    async with listening(type="ssl", tls=certificates.settings(min_version="1.3")) as listener:
        context = client_context(certificates)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        await is_refused(listener.port, context)
        await listener.until(lambda: listener.refused == {"tls_handshake": 1})
    async with listening(type="ssl", tls=certificates.settings(ciphers="ECDHE-ECDSA-AES128-GCM-SHA256")) as listener:
        context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
        await is_refused(listener.port, context)
        await listener.until(lambda: listener.refused == {"tls_handshake": 1})
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        await echoes(listener.port, context)


@on_every_transport
async def test_encrypted_key(certificates: Certificates) -> None:
    certfile, keyfile = certificates.issue("localhost", password="open sesame", file="locked")
    tls = TlsSettings(certfile=certfile, keyfile=keyfile, key_password="open sesame")
    async with listening(type="ssl", tls=tls) as listener:
        await echoes(listener.port, client_context(certificates))


@on_every_transport
async def test_reload_changes_new_handshakes_and_drops_nobody(certificates: Certificates, tmp_path: Path) -> None:
    stolen = certificates.issue("stolen")
    tls = certificates.settings(verify="required", cafile=certificates.ca)
    async with (
        listening(type="ssl", tls=tls) as listener,
        dial(listener.port, ssl=client_context(certificates, stolen), server_hostname="localhost") as (reader, writer),
    ):
        first = writer.get_extra_info("peercert")["serialNumber"]
        pump = certificates.issue("pump-7")
        certificates.issue("localhost")  # the same files, another certificate
        tls = certificates.settings(
            verify="required", cafile=certificates.ca, crlfile=certificates.revoke("stolen"), handshake_timeout=3.0
        )
        zone = ZoneSettings(max_packet_size=1000)
        listener.reload(listener_settings(type="ssl", tls=tls, max_connections=2), zone)
        assert listener.zone is zone
        assert listener.max_connections == 2
        second = (await echoes(listener.port, client_context(certificates, pump)))["serialNumber"]
        assert second != first
        await is_refused(listener.port, client_context(certificates, stolen))
        await listener.until(lambda: listener.refused == {"tls_certificate": 1})
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"

        context, settings = listener.context, listener.settings
        os.truncate(tmp_path / "localhost.pem", 100)
        with pytest.raises(TlsError, match=r"tls\.certfile: listener test: .* contains no PEM certificate"):
            listener.reload(listener_settings(type="ssl", tls=tls), ZoneSettings())
        assert (listener.context, listener.settings, listener.zone) == (context, settings, zone)
        assert (await echoes(listener.port, client_context(certificates, pump)))["serialNumber"] == second


@on_every_transport
async def test_a_slow_handshake_is_bounded_in_time(certificates: Certificates) -> None:
    tls = certificates.settings(handshake_timeout=0.05)
    async with listening(type="ssl", tls=tls) as listener, dial(listener.port) as (reader, writer):
        writer.write(b"\x16\x03\x01")
        await closed_by_peer(reader)
        await listener.until(lambda: listener.refused == {"tls_timeout": 1})
        assert listener.pending == set()


@on_every_transport
async def test_something_else_than_tls_is_refused(certificates: Certificates) -> None:
    async with (
        listening(type="ssl", tls=certificates.settings()) as listener,
        dial(listener.port) as (reader, writer),
    ):
        writer.write(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02me")
        await closed_by_peer(reader)
        await listener.until(lambda: listener.refused == {"tls_handshake": 1})
        assert listener.pending == set()


@on_every_transport
async def test_a_client_that_leaves_during_the_handshake_is_counted(certificates: Certificates) -> None:
    async with listening(type="ssl", tls=certificates.settings()) as listener:
        async with dial(listener.port) as (_, writer):
            await listener.until(lambda: len(listener.pending) == 1)
            writer.write_eof()
            await listener.until(lambda: listener.refused == {"closed_early": 1})
        assert listener.pending == set()


@on_every_transport
async def test_sockets_in_their_handshake_count_against_max_connections(certificates: Certificates) -> None:
    async with (
        listening(type="ssl", tls=certificates.settings(), max_connections=2) as listener,
        dial(listener.port),
        dial(listener.port),
        dial(listener.port) as (reader, _),
    ):
        assert await closed_by_peer(reader) == b""
        assert listener.refused == {"max_connections": 1}
        assert listener.current_connections == 0
        await listener.stop()
        assert listener.pending == set()


@on_every_transport
async def test_proxy_header_before_tls(certificates: Certificates) -> None:
    async with listening(type="ssl", tls=certificates.settings(), proxy_protocol=True) as listener:
        loop = asyncio.get_running_loop()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(certificates).wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with dial(listener.port) as (reader, writer):
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            # The header and the first bytes of TLS arrive together.
            writer.write(b"PROXY TCP4 203.0.113.7 192.0.2.1 50000 8883\r\n" + outgoing.read())
            while True:
                incoming.write(await reader.read(65536))
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    pass
            client.write(b"hello")
            writer.write(outgoing.read())
            data = b""
            while data != b"hello":
                incoming.write(await reader.read(65536))
                try:
                    data += client.read()
                except ssl.SSLWantReadError:
                    pass
        assert listener.echoes[0].transport.get_extra_info("peername") == ("203.0.113.7", 50000)
        assert listener.echoes[0].tls_version == "TLSv1.3"
        assert loop is asyncio.get_running_loop()


# Files that do not fit


def errors(certificates: Certificates) -> list[tuple[str, dict[str, Any], str, str]]:
    directory = certificates.directory
    garbage = directory / "garbage.pem"
    garbage.write_text("not PEM")
    locked = certificates.issue("locked", password="secret")
    pump = certificates.issue("pump-7")
    return [
        ("no certificate file", {"certfile": str(directory / "none.pem")}, "tls.certfile", "No such file"),
        ("no key file", {"keyfile": str(directory / "none.key")}, "tls.keyfile", "No such file"),
        ("a directory", {"certfile": str(directory)}, "tls.certfile", "Is a directory"),
        ("empty name", {"certfile": ""}, "tls.certfile", "is missing"),
        ("certificate is not PEM", {"certfile": str(garbage)}, "tls.certfile", "contains no PEM certificate"),
        ("key is not PEM", {"keyfile": str(garbage)}, "tls.keyfile", "cannot use"),
        ("another's key", {"keyfile": pump[1]}, "tls.keyfile", "is not the private key of the certificate"),
        ("no password", {"certfile": locked[0], "keyfile": locked[1]}, "tls.keyfile", "key_password"),
        (
            "wrong password",
            {"certfile": locked[0], "keyfile": locked[1], "key_password": "x"},
            "tls.keyfile",
            "key_password",
        ),
        ("ciphers", {"ciphers": "ROT13"}, "tls.ciphers", "supports none of the ciphers"),
        ("verify without CA", {"verify": "required"}, "tls.cafile", "is required"),
        ("no CA file", {"verify": "required", "cafile": "/none"}, "tls.cafile", "No such file"),
        ("CA is not PEM", {"verify": "required", "cafile": str(garbage)}, "tls.cafile", "contains no PEM certificate"),
        ("CRL that nobody asks", {"crlfile": certificates.revoke()}, "tls.crlfile", "has no effect"),
        (
            "CRL is not PEM",
            {"verify": "required", "cafile": certificates.ca, "crlfile": str(garbage)},
            "tls.crlfile",
            "contains no PEM CRL",
        ),
        (
            "CRL is a certificate",
            {"verify": "required", "cafile": certificates.ca, "crlfile": pump[0]},
            "tls.crlfile",
            "contains no CRL",
        ),
        ("name from nothing", {"peer_cert_as_username": "cn"}, "tls.peer_cert_as_username", "no client certificate"),
        (
            "server name without a key",
            {"server_names": {"a.example": {"certfile": pump[0]}}},
            "tls.server_names.a.example.keyfile",
            "is missing",
        ),
        (
            "server name with an unknown key",
            {"server_names": {"a.example": {"certifcate": pump[0]}}},
            "tls.server_names.a.example.certifcate",
            "unknown key",
        ),
    ]


def test_each_error_names_its_setting_in_one_line(certificates: Certificates) -> None:
    for name, keys, setting, text in errors(certificates):
        with pytest.raises(TlsError) as raised:
            build_context(certificates.settings(**keys))
        assert raised.value.setting == setting, name
        assert str(raised.value).startswith(setting + ": "), name
        assert text in str(raised.value), name
        assert "\n" not in str(raised.value), name


class Presented:
    """An SSLObject as far as ``peer_identity`` looks."""

    def __init__(self, *subject: tuple[tuple[str, str], ...]) -> None:
        self.subject = subject

    def getpeercert(self) -> dict[str, Any]:
        return {"subject": self.subject}


@pytest.mark.parametrize(
    "subject, identity",
    [
        ([(("commonName", "a"),)], ("a", "CN=a")),
        ([(("countryName", "DE"),), (("commonName", "a"),)], ("a", "CN=a,C=DE")),
        ([(("commonName", "a"), ("userId", "7"))], ("a", "CN=a+UID=7")),
        ([(("commonName", 'a,b+c"d\\e<f>g;h'),)], ('a,b+c"d\\e<f>g;h', 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h')),
        ([(("commonName", "#a "),)], ("#a ", "CN=\\#a\\ ")),
        ([(("commonName", " "),)], (" ", "CN=\\ ")),
        ([(("commonName", "a\0b"),)], ("a\0b", "CN=a\\00b")),
        ([(("emailAddress", "a@b"),)], (None, "emailAddress=a@b")),
        ([(("commonName", "a"),), (("commonName", "admin"),)], (None, "CN=admin,CN=a")),
    ],
)
def test_identity(subject: Any, identity: tuple[str | None, str]) -> None:
    assert peer_identity(Presented(*subject)) == identity


def test_no_certificate_no_identity() -> None:
    assert peer_identity(None) == (None, None)


@on_every_transport
async def test_a_subject_with_every_trap_over_the_wire(certificates: Certificates) -> None:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.COMMON_NAME, "Pümpe, CN=admin"),
        ]
    )
    pump = certificates.issue("pump-8", subject=subject)
    tls = certificates.settings(verify="required", cafile=certificates.ca)
    async with listening(type="ssl", tls=tls) as listener:
        await echoes(listener.port, client_context(certificates, pump))
        assert listener.echoes[0].identity == ("Pümpe, CN=admin", "CN=Pümpe\\, CN=admin,C=DE")


ALERTS: list[tuple[dict[str, Any], str, str]] = [
    # the server's settings, whose certificate the client has, the alert
    ({"verify": "required"}, "", "CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE"),
    ({"verify": "required"}, "foreign", "UNKNOWN_CA|DECRYPT_ERROR"),
    ({"verify": "optional"}, "old", "CERTIFICATE_EXPIRED"),
    ({"verify": "required"}, "stolen", "CERTIFICATE_REVOKED"),
    ({"min_version": "1.3"}, "", "PROTOCOL_VERSION"),
]


def alert(port: int, context: ssl.SSLContext) -> str:
    """What a client hears that sends its CONNECT as soon as it may, and reads later."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(bytes(2000))
                time.sleep(0.05)
                secure.sendall(bytes(2000))
                return f"{len(secure.recv(100))} bytes"
        except OSError as error:
            return str(getattr(error, "reason", "") or error)


@pytest.mark.parametrize("kind", ["ssl", "wss"])
@pytest.mark.parametrize(
    "version, keys, who, expected",
    [
        (version, *alert)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        for alert in ALERTS
        if version == ssl.TLSVersion.TLSv1_2 or "min_version" not in alert[0]
    ],
)
@on_every_transport
async def test_a_refused_handshake_sends_its_alert(
    certificates: Certificates,
    tmp_path: Path,
    version: ssl.TLSVersion,
    keys: dict[str, Any],
    who: str,
    expected: str,
    kind: str,
) -> None:
    (tmp_path / "other").mkdir()
    own = {
        "": None,
        "foreign": Certificates(tmp_path / "other").issue("pump-7"),
        "old": certificates.issue("old", expired=True),
        "stolen": certificates.issue("stolen"),
    }
    crl = certificates.revoke("stolen")
    if "verify" in keys:
        keys = {**keys, "cafile": certificates.ca, "crlfile": crl}
    context = client_context(certificates, own[who])
    context.maximum_version = version
    async with listening(type=kind, tls=certificates.settings(**keys)) as listener:
        heard = await asyncio.to_thread(alert, listener.port, context)
        assert any(each in heard for each in expected.split("|")), heard
        assert sum(listener.refused.values()) == 1
        while listener.pending:  # the client has closed
            await asyncio.sleep(0.01)
        assert sum(listener.refused.values()) == 1


@on_every_transport
async def test_a_client_that_ignores_its_alert_is_closed_and_takes_a_place_until_then(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_connection, "ALERT_TIMEOUT", 0.3)
    async with listening(type="ssl", tls=certificates.settings(), max_connections=1) as listener:
        async with dial(listener.port) as (reader, writer):
            writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
            await listener.until(lambda: listener.refused == {"tls_handshake": 1})
            writer.write(bytes(100_000))
            assert len(listener.pending) == 1
            async with dial(listener.port) as (other, _):
                assert await closed_by_peer(other) == b""
            assert listener.refused == {"tls_handshake": 1, "max_connections": 1}
            await closed_by_peer(reader)
        assert listener.pending == set()
        await echoes(listener.port, client_context(certificates))
